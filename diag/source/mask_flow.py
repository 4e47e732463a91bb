"""What the tree mask is read and written with: the widths that go into an index, a stored offset, a buffer's size.

`diag.source.verify_width` knows an offset by what its expression looks like. Other backends use the width in longer
computations, so here every local carries the widths that went into it, and what is looked at are places that no
renaming of locals can hide: reads of `custom_mask` at a computed index, stores into `mask_indptr`, and the
allocation of an attribute that holds a mask.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from diag.source import syntax
from diag.source.flow import Class, Env, Leaf, Run, Source, Step, Value, arguments, both_runs
from diag.source.syntax import is_self, last_name, self_attribute, walk

MASK = "custom_mask"
OFFSETS = "mask_indptr"

_INDEXED_READS = {"gather", "take", "take_along_dim", "index_select"}
_SHAPED = {"view", "reshape"}


@dataclass
class Sink:
    """A place, and the widths that end in it. names: what else stands in a size, for the judge of buffers."""

    method: str
    node: ast.expr
    path: tuple[Step, ...]
    leaves: set[Leaf] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    @property
    def sources(self) -> set[frozenset[Source]]:
        return {leaf.sources for leaf in self.leaves}

    @property
    def from_setting(self) -> bool:
        return frozenset({"server"}) in self.sources


@dataclass(frozen=True)
class Flow:
    """reads: of the mask at an index that is computed; stores: into the offsets of the mask, both of verify code;
    buffers: calls whose result a mask attribute of self holds; each in the order of the source."""

    tree: syntax.Tree
    over: Class
    reads: tuple[Sink, ...]
    stores: tuple[Sink, ...]
    buffers: tuple[Sink, ...]


@lru_cache(maxsize=8)
def follow(text: str, name: str) -> Flow:
    """Raises Unreadable when the file or the class is not there."""
    tree = syntax.parse(text)
    over = Class.read(tree, name)
    run, _ = both_runs(over, _Carrying)
    if not isinstance(run, _Carrying):
        raise TypeError(type(run))
    verify = [(sink, run.about_verify(sink.path)) for sink in (*run.reads.values(), *run.stores.values())]
    kept = {id(sink) for sink, about in verify if about}
    return Flow(
        tree,
        over,
        _ordered(sink for sink in run.reads.values() if id(sink) in kept),
        _ordered(sink for sink in run.stores.values() if id(sink) in kept),
        _ordered(run.buffers.values()),
    )


def _ordered(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    return tuple(sorted(sinks, key=lambda sink: (sink.node.lineno, sink.node.col_offset)))


class _Carrying(Run):
    """A run in which every local carries the widths that went into it."""

    def __init__(self, over: Class, *, verify: bool, elsewhere: frozenset[int] = frozenset()) -> None:
        super().__init__(over, verify=verify, elsewhere=elsewhere)
        self.reads: dict[int, Sink] = {}
        self.stores: dict[int, Sink] = {}
        self.buffers: dict[int, Sink] = {}

    # --- what an expression carries

    def full(self, node: ast.expr, env: Env) -> Value:
        return replace(self.value(node, env), carries=frozenset(self.carried(node, env)), alias=alias(node, env))

    def carried(self, node: ast.AST, env: Env) -> Iterator[Leaf]:
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.expr):
            known = self.value(node, env)
            if known.sources:
                yield Leaf(node, known.sources, self.frames[-1].method)
                return
            if known.carries:
                yield from known.carries
                return
        for child in ast.iter_child_nodes(node):
            yield from self.carried(child, env)

    # --- what is looked for

    def look(self, node: ast.expr, env: Env, targets: Sequence[ast.expr] = ()) -> None:
        for target in targets:
            if isinstance(target, ast.Subscript) and alias(target.value, env) == OFFSETS:
                self.add(self.stores, target, self.carried(node, env))
            attribute = self_attribute(target)
            if attribute is not None and "mask" in attribute and "indptr" not in attribute:
                self.allocated(node, env)
        for part in walk(node):
            if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load) and _is_computed(part.slice):
                if alias(part.value, env) == MASK:
                    self.add(self.reads, part, self.carried(part.slice, env))
            elif isinstance(part, ast.Call):
                self.call_seen(part, env)

    def call_seen(self, node: ast.Call, env: Env) -> None:
        function = last_name(node.func)
        given = list(arguments(node))
        on = node.func.value if isinstance(node.func, ast.Attribute) else None
        if function in _INDEXED_READS and any(
            alias(each, env) == MASK for each in (on, *(value for _, value in given[:1])) if each is not None
        ):
            self.add(self.reads, node, (leaf for _, value in given for leaf in self.carried(value, env)))
        elif function in _SHAPED and isinstance(on, ast.Subscript) and alias(on.value, env) == MASK:
            self.add(self.reads, on, (leaf for _, value in given for leaf in self.carried(value, env)))
        elif function in ("copy_", "add_") and on is not None and alias(on, env) == OFFSETS:
            self.add(self.stores, node, (leaf for _, value in given for leaf in self.carried(value, env)))
        elif any(keyword == "out" and alias(value, env) == OFFSETS for keyword, value in given):
            self.add(self.stores, node, self.carried(node, env))
        elif self_attribute(node.func) in self.methods:
            self.value(node, env)

    def allocated(self, node: ast.expr, env: Env) -> None:
        if isinstance(node, ast.IfExp):
            self.allocated(node.body, env)
            self.allocated(node.orelse, env)
        elif isinstance(node, ast.Call):
            sink = self.add(self.buffers, node, self.carried(node, env))
            for keyword, value in arguments(node):
                if keyword not in ("dtype", "device"):
                    sink.names |= set(_named(value))

    def add(self, kind: dict[int, Sink], node: ast.expr, leaves: Iterable[Leaf]) -> Sink:
        method, path = self.here()
        sink = kind.setdefault(id(node), Sink(method, node, path))
        sink.leaves |= set(leaves)
        return sink


def alias(node: ast.expr, env: Env) -> str | None:
    """The attribute that an expression is, or is a part or a converted copy of."""
    if isinstance(node, ast.Name):
        known = env.get(node.id)
        return known.alias if known is not None and known.alias is not None else node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return alias(node.value, env)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return alias(node.func.value, env)
    return None


def _is_computed(index: ast.expr) -> bool:
    """An index that is more than a slice or a number."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return not all(isinstance(part, ast.Slice | ast.Constant) for part in parts)


def _named(node: ast.AST) -> Iterator[str]:
    """Variables and attributes of self in a size, `max_bs` and `max_context_len` of `max_bs * self.max_context_len`."""
    for part in walk(node):
        if isinstance(part, ast.Name) and not is_self(part):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
