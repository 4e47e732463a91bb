"""The offsets of the verify step in an attention backend, and the width that each is computed with."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from diag.source import syntax
from diag.source.flow import VERIFY_ATTRIBUTES, Class, Env, Run, Source, Step, arguments, both_runs
from diag.source.syntax import last_name, self_attribute, walk, words

CLASS = "TritonAttnBackend"

Role = Literal["definition", "qo_indptr", "seq_mask_len", "max_extend_len", "custom_mask", "mask_buffer", "fallback"]


@dataclass
class Use:
    """A width that ends in one of the offsets. `sources` holds one set for each way the code gets there."""

    method: str
    role: Role
    node: ast.expr
    path: tuple[Step, ...]
    verify_only: bool
    sources: set[frozenset[Source]] = field(default_factory=set)

    @property
    def recognised(self) -> bool:
        return all(self.sources)

    @property
    def from_setting(self) -> bool:
        """On some way here the server setting is the only source."""
        return frozenset({"server"}) in self.sources


@dataclass(frozen=True)
class Survey:
    """Everything found in one class. elsewhere: ids of the statements that other forward modes reach."""

    tree: syntax.Tree
    over: Class
    uses: tuple[Use, ...]
    elsewhere: frozenset[int]

    @property
    def mentions_verify(self) -> bool:
        return self.over.mentions_verify


@lru_cache(maxsize=8)
def survey(text: str, name: str = CLASS, widths: frozenset[str] = VERIFY_ATTRIBUTES) -> Survey:
    """Follow every width in class `name`. Raises Unreadable when the file or the class is not there.

    The last few answers are kept: detecting, rewriting and checking look at the same text.
    """
    tree = syntax.parse(text)
    over = Class.read(tree, name, widths)
    verify, elsewhere = both_runs(over, Offsets)
    found = verify.uses.values() if isinstance(verify, Offsets) else ()
    uses = [use for use in found if use.verify_only or use.path[-1].under_verify_test]
    uses.sort(key=lambda use: (use.node.lineno, use.node.col_offset))
    return Survey(tree, over, tuple(uses), elsewhere)


class Offsets(Run):
    """Records every width that ends in an offset, by what it ends in."""

    def __init__(self, over: Class, *, verify: bool, elsewhere: frozenset[int] = frozenset()) -> None:
        super().__init__(over, verify=verify, elsewhere=elsewhere)
        self.uses: dict[int, Use] = {}

    def look(self, node: ast.expr, env: Env, targets: Sequence[ast.expr] = ()) -> None:
        context = _Context(
            targets=tuple(name for target in targets if (name := last_name(target)) is not None),
            stored=any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets),
        )
        if "forward_metadata" in context.targets and isinstance(node, ast.Tuple):
            context = replace(context, in_metadata=True)
        self.inside(node, env, context)
        for part in walk(node) if self.verify else ():
            if isinstance(part, ast.Call) and _is_stepped_arange(part) and not self.holds_use(part):
                self.use(part, "qo_indptr", frozenset())

    def holds_use(self, node: ast.AST) -> bool:
        return any(id(part) in self.uses for part in walk(node))

    def inside(self, node: ast.AST, env: Env, context: _Context) -> None:
        if isinstance(node, ast.Compare | ast.JoinedStr | ast.Lambda):
            return
        if isinstance(node, ast.expr):
            known = self.value(node, env)
            if known.sources:
                self.found(node, known.sources, known.assigned, context)
                return
        if isinstance(node, ast.IfExp):
            truth = self.value(node.test, env).truth
            for part, dead in ((node.body, truth is False), (node.orelse, truth is True)):
                if not dead:
                    self.inside(part, env, context)
        elif isinstance(node, ast.Call):
            if self_attribute(node.func) in self.methods:
                return  # what it is given is followed into the method
            for keyword, argument in arguments(node):
                self.inside(argument, env, context.argument(node, keyword))
        elif isinstance(node, ast.Subscript):
            self.inside(node.value, env, context)
        else:
            if isinstance(node, ast.BinOp):
                context = context.operand(node)
            for child in ast.iter_child_nodes(node):
                self.inside(child, env, context)

    def found(
        self, node: ast.expr, sources: frozenset[Source], assigned: frozenset[ast.expr], context: _Context
    ) -> None:
        role = context.role()
        if role is None or not self.verify:
            return
        # A local that is handed on as it is: the lines to show are those of verify code that gave it its value.
        origins = [origin for origin in assigned if self.about_verify(self.places[id(origin)][1])]
        if role == "max_extend_len" and isinstance(node, ast.Name) and origins:
            for origin in origins:
                self.use(origin, role, sources)
        else:
            self.use(node, role, sources)

    def use(self, node: ast.expr, role: Role, sources: frozenset[Source]) -> None:
        method, path = self.places.get(id(node), self.here())
        use = self.uses.setdefault(id(node), Use(method, role, node, path, self.only_here(path)))
        use.sources.add(sources)


@dataclass(frozen=True)
class _Context:
    """What surrounds an expression, as far as it says what a width in it ends in."""

    targets: tuple[str, ...] = ()
    stored: bool = False
    keyword: str | None = None
    in_arange: bool = False
    in_metadata: bool = False
    arithmetic: bool = False

    def argument(self, call: ast.Call, keyword: str | None) -> _Context:
        function = last_name(call.func)
        return replace(
            self,
            keyword=keyword,
            in_arange=self.in_arange or function == "arange",
            in_metadata=function == "ForwardMetadata",
        )

    def operand(self, node: ast.BinOp) -> _Context:
        return replace(
            self,
            keyword=None,
            in_arange=self.in_arange or any(_is_arange(part) for part in walk(node)),
            in_metadata=False,
            arithmetic=self.arithmetic or _is_mask_arithmetic(node),
        )

    def role(self) -> Role | None:
        if self.keyword == "max_extend_len" or (self.stored and "max_extend_len" in self.targets):
            return "max_extend_len"
        if self.in_arange or any("qo_indptr" in name for name in self.targets):
            return "qo_indptr"
        if self.arithmetic or any("mask" in name for name in self.targets):
            return "seq_mask_len"
        return "max_extend_len" if self.in_metadata else None


def _is_arange(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "arange"


def _is_stepped_arange(node: ast.Call) -> bool:
    return _is_arange(node) and (any(keyword.arg == "step" for keyword in node.keywords) or len(node.args) > 2)


def _is_mask_arithmetic(node: ast.BinOp) -> bool:
    """`width * (length + width)` and its rearrangements: a product and a sum, or anything with a length."""
    operators = {type(part.op) for part in walk(node) if isinstance(part, ast.BinOp)}
    lengths = any("lens" in word for word in words(node))
    return lengths or {ast.Mult, ast.Add} <= operators
