"""Where the attention backend takes the width of a verify step from: an abstract run of its class.

In target-verify mode every request brings `draft_token_num` rows (the *width*). Offsets into the flat tree mask are
right only when they are computed with that number; the fault computes them with the server setting. Whether a line
does one or the other is a question of data flow, so the class is run symbolically instead of being searched for
known lines: once as if the forward mode were TARGET_VERIFY, and once as if it were anything else. Statements that
only the first run reaches are verify code; every number there is followed back, through locals, conditions,
parameters and helper methods, to where it comes from.

Nothing here depends on line numbers, on whole lines of text, on formatting or on the names of locals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Literal, cast

import libcst as cst
from libcst import metadata

CLASS = "TritonAttnBackend"

Role = Literal["qo_indptr", "seq_mask_len", "max_extend_len", "definition"]
Source = Literal["server", "verify"]

SETTING = "speculative_num_draft_tokens"
SETTING_ATTRIBUTES = {"num_draft_tokens", SETTING}
SETTING_CALLS = {"decode_num_tokens_per_req"}
VERIFY_ATTRIBUTES = {"draft_token_num", "num_tokens_per_req", "num_tokens_per_batch"}

# Forward modes whose tests are false for TARGET_VERIFY; `is_extend` and `is_cuda_graph` are true for some modes
# including it, so tests with these words in their name decide nothing.
_UNDECIDED_MODE_TEST = re.compile(r"(?<!draft_)(?<!dllm_)extend|graph|verify|spec")
_LAYOUT = re.compile(
    "whitespace|^[lr]par$|bracket|^[lr]brace$|comma$|semicolon|lines?$|^lines_after|header|footer|newline|indent|^dot$"
)
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Value:
    """What is known of an expression. `sources`: where the width comes from (one of several, if more);
    `assigned`: the expressions that were assigned to this local as they are; `truth`: for conditions;
    `is_spec`: it is the verify input (`spec_info`) itself."""

    sources: frozenset[Source] = frozenset()
    assigned: frozenset[cst.BaseExpression] = frozenset()
    truth: bool | None = None
    is_spec: bool = False


NOTHING = Value()
Env = dict[str, Value]


@dataclass(frozen=True)
class Step:
    """One statement on the way from a method's body to a use."""

    suite: cst.CSTNode
    statement: cst.CSTNode
    spec_names: tuple[str, ...]
    under_verify_test: bool


@dataclass
class Use:
    """A width that ends in one of the offsets. `sources` holds one set for each way the code gets there."""

    method: str
    role: Role
    node: cst.BaseExpression
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
    """Everything found in one file. Positions are those of `ranges`; lines count from 1, columns from 0."""

    uses: tuple[Use, ...]
    definitions: tuple[tuple[str, cst.BaseExpression], ...]
    mentions_verify: bool
    elsewhere: frozenset[int]
    methods: Mapping[str, cst.FunctionDef]
    ranges: Mapping[cst.CSTNode, metadata.CodeRange]


class Unreadable(Exception):
    """The text cannot be surveyed; the message says why."""


@lru_cache(maxsize=4)
def survey(text: str) -> Survey:
    """Follow every width in class TritonAttnBackend. Raises Unreadable when the file or the class is not there.

    The last few answers are kept: detecting, rewriting and checking look at the same text.
    """
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except Exception as error:  # the parser meets any text here, and has several ways to refuse it
        raise Unreadable(f"not readable as Python: {_first_line(error)}") from None
    ranges = cast(Mapping[cst.CSTNode, metadata.CodeRange], wrapper.resolve(metadata.PositionProvider))
    methods = _methods(_only_class(wrapper.module))
    attributes, definitions = _attributes(methods)

    other = _Run(methods, attributes, verify=False)
    other.everything()
    elsewhere = frozenset(other.reached)
    verify = _Run(methods, attributes, verify=True, elsewhere=elsewhere)
    verify.everything()
    uses = [use for use in verify.uses.values() if use.verify_only or use.path[-1].under_verify_test]
    uses.sort(key=lambda use: (ranges[use.node].start.line, ranges[use.node].start.column))
    return Survey(
        uses=tuple(uses),
        definitions=definitions,
        mentions_verify=_mentions_verify(methods),
        elsewhere=elsewhere,
        methods=methods,
        ranges=ranges,
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# --- the class -----------------------------------------------------------------------------------------------------


def _only_class(module: cst.Module) -> cst.ClassDef:
    found = [node for node in _statements(module) if isinstance(node, cst.ClassDef) and node.name.value == CLASS]
    if not found:
        raise Unreadable(f"class {CLASS} is not in this file")
    if len(found) > 1:
        raise Unreadable(f"class {CLASS} is defined {len(found)} times in this file")
    return found[0]


def _statements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Statements at module level, also inside `if` and `try`, but not inside classes and functions."""
    for child in _children(node):
        if isinstance(child, cst.ClassDef | cst.FunctionDef):
            yield child
        elif isinstance(child, cst.BaseCompoundStatement | cst.BaseSuite | cst.Else | cst.ExceptHandler | cst.Finally):
            yield from _statements(child)


def _methods(definition: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    return {node.name.value: node for node in _statements(definition.body) if isinstance(node, cst.FunctionDef)}


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The children that are code, in the order of the source; `node.children` visits all white space as well."""
    for name in _code_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, tuple | list):
            yield from value


@cache
def _code_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = (each.name for each in fields(kind))
    return tuple(name for name in names if not _LAYOUT.search(name))


def _assignments(method: cst.FunctionDef) -> Iterator[cst.Assign]:
    return (node for node in _walk(method) if isinstance(node, cst.Assign))


def _attributes(
    methods: Mapping[str, cst.FunctionDef],
) -> tuple[dict[str, frozenset[Source]], tuple[tuple[str, cst.BaseExpression], ...]]:
    """Sources of the attributes of self, and (method, attribute) where one is set to the server setting."""
    sources: dict[str, frozenset[Source]] = {name: frozenset({"server"}) for name in SETTING_ATTRIBUTES}
    definitions: list[tuple[str, cst.BaseExpression]] = []
    for owner, method in methods.items():
        for assign in _assignments(method):
            found, defines = _plain_source(assign.value)
            for target in assign.targets:
                name = _self_attribute(target.target)
                if name is not None and found:
                    sources[name] = sources.get(name, frozenset()) | found
                    definitions += [(owner, target.target)] if defines else []
    return sources, tuple(definitions)


def _plain_source(value: cst.BaseExpression) -> tuple[frozenset[Source], bool]:
    """The source of what is stored in an attribute, and whether it is the server setting itself."""
    if isinstance(value, cst.Call) and _name(value.func) == "int" and value.args:
        return _plain_source(value.args[0].value)
    if isinstance(value, cst.Attribute) and value.attr.value == SETTING:
        return frozenset({"server"}), True
    if isinstance(value, cst.Call) and _last_name(value.func) in SETTING_CALLS:
        return frozenset({"server"}), False
    if isinstance(value, cst.Attribute) and value.attr.value in VERIFY_ATTRIBUTES and not _is_self(value.value):
        return frozenset({"verify"}), False
    return frozenset(), False


def _mentions_verify(methods: Mapping[str, cst.FunctionDef]) -> bool:
    if any("target_verify" in name for name in methods):
        return True
    names = (node.value for method in methods.values() for node in _walk(method) if isinstance(node, cst.Name))
    return any(name in ("is_target_verify", "TARGET_VERIFY") for name in names)


# --- small questions about expressions -----------------------------------------------------------------------------


def _name(node: cst.CSTNode) -> str | None:
    return node.value if isinstance(node, cst.Name) else None


def _last_name(node: cst.CSTNode) -> str | None:
    """`arange` of `torch.arange`, `x` of `x` and of `x[...]`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Subscript):
        return _last_name(node.value)
    return _name(node)


def _is_self(node: cst.CSTNode) -> bool:
    return _name(node) == "self"


def _self_attribute(node: cst.CSTNode) -> str | None:
    return node.attr.value if isinstance(node, cst.Attribute) and _is_self(node.value) else None


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def _names_verify_mode(node: cst.CSTNode) -> bool:
    return any(isinstance(part, cst.Name) and "target_verify" in part.value.lower() for part in _walk(node))


def _join(left: Env | None, right: Env | None) -> Env | None:
    if left is None or right is None:
        return right if left is None else left
    return {name: _either(left.get(name, NOTHING), right.get(name, NOTHING)) for name in {**left, **right}}


def _either(left: Value, right: Value) -> Value:
    if left == right:
        return left
    return Value(
        left.sources | right.sources,
        left.assigned | right.assigned,
        left.truth if left.truth == right.truth else None,
        left.is_spec or right.is_spec,
    )


def _parameters(method: cst.FunctionDef) -> Env:
    """The parameters that are the verify input, by name or by annotation."""
    env: Env = {}
    for param in (*method.params.params, *method.params.kwonly_params):
        annotation = [] if param.annotation is None else list(_walk(param.annotation))
        words = [part.value for part in annotation if isinstance(part, cst.Name | cst.SimpleString)]
        if "spec_info" in param.name.value or any(re.search("Spec(Input|Info)", word) for word in words):
            env[param.name.value] = Value(is_spec=True)
    return env


# --- the abstract run ----------------------------------------------------------------------------------------------


@dataclass
class _Frame:
    method: str
    path: list[Step]
    returns: Value | None = None


class _Run:
    """One run of all methods, with the forward mode taken as TARGET_VERIFY (`verify`) or as any other."""

    def __init__(
        self,
        methods: Mapping[str, cst.FunctionDef],
        attributes: Mapping[str, frozenset[Source]],
        *,
        verify: bool,
        elsewhere: frozenset[int] = frozenset(),
    ) -> None:
        self.methods = methods
        self.attributes = attributes
        self.verify = verify
        self.elsewhere = elsewhere
        self.reached: set[int] = set()
        self.uses: dict[int, Use] = {}
        self.frames: list[_Frame] = []
        self.known: dict[object, Value] = {}
        self.places: dict[int, tuple[str, tuple[Step, ...]]] = {}

    def everything(self) -> None:
        called = {
            name
            for method in self.methods.values()
            for node in _walk(method)
            if isinstance(node, cst.Call) and (name := _self_attribute(node.func)) and name != method.name.value
        }
        for name in self.methods:
            if name not in called:
                self.call(name, {})

    # --- methods

    def call(self, name: str, bound: Env) -> Value:
        """Run a method with these parameters; what it returns."""
        if not self.verify and "target_verify" in name:
            return NOTHING
        if len(self.frames) >= _MAX_DEPTH or any(frame.method == name for frame in self.frames):
            return NOTHING
        tested = bool(self.frames) and any(step.under_verify_test for step in self.frames[-1].path)
        key = (name, tested, frozenset(bound.items()))
        if key not in self.known:
            method = self.methods[name]
            self.frames.append(_Frame(name, []))
            self.suite(method.body, {**_parameters(method), **bound}, tested or "target_verify" in name)
            self.known[key] = self.frames.pop().returns or NOTHING
        return self.known[key]

    # --- statements: each returns the locals after it, or None when control never gets past it

    def suite(self, suite: cst.BaseSuite, env: Env, tested: bool) -> Env | None:
        if isinstance(suite, cst.SimpleStatementSuite):
            return self.block(suite, [suite], env, tested)
        return self.block(suite, suite.body, env, tested)

    def block(self, suite: cst.CSTNode, body: Sequence[cst.CSTNode], env: Env, tested: bool) -> Env | None:
        after: Env | None = env
        path = self.frames[-1].path
        for statement in body:
            if after is None:
                break
            self.reached.add(id(statement))
            specs = tuple(name for name, value in after.items() if value.is_spec)
            path.append(Step(suite, statement, specs, tested))
            after = self.statement(statement, after, tested)
            path.pop()
        return after

    def statement(self, node: cst.CSTNode, env: Env, tested: bool) -> Env | None:
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            after: Env | None = env
            for small in node.body:
                after = self.small(small, after) if after is not None else None
            return after
        if isinstance(node, cst.If):
            return self.branch(node, env, tested)
        if isinstance(node, cst.With):
            for item in node.items:
                self.look(item.item, env)
            return self.suite(node.body, env, tested)
        if isinstance(node, cst.FunctionDef):  # a closure: it sees the locals, and may or may not run
            before = self.frames[-1].returns
            self.suite(node.body, dict(env), tested)
            self.frames[-1].returns = before
            return env
        if isinstance(node, cst.For | cst.While):
            once = self.suite(node.body, dict(env), tested)
            return self.orelse(node.orelse, _join(env, once) or env, tested)
        if isinstance(node, cst.Try | cst.TryStar):
            return self.attempt(node, env, tested)
        if isinstance(node, cst.Match):
            after = env
            for case in node.cases:
                after = _join(after, self.suite(case.body, dict(env), tested))
            return after
        return env

    def branch(self, node: cst.If, env: Env, tested: bool) -> Env | None:
        truth = self.value(node.test, env).truth
        about_verify = tested or (truth is not False and _names_verify_mode(node.test))
        taken = self.suite(node.body, dict(env), about_verify) if truth is not False else None
        if truth is True:
            return taken
        if isinstance(node.orelse, cst.If):
            self.reached.add(id(node.orelse))
            return _join(taken, self.branch(node.orelse, dict(env), tested))
        return _join(taken, self.orelse(node.orelse, dict(env), tested))

    def orelse(self, node: cst.Else | None, env: Env, tested: bool) -> Env | None:
        return env if node is None else self.suite(node.body, env, tested)

    def attempt(self, node: cst.Try | cst.TryStar, env: Env, tested: bool) -> Env | None:
        after = self.suite(node.body, dict(env), tested)
        if after is not None:
            after = self.orelse(node.orelse, after, tested)
        for handler in node.handlers:
            after = _join(after, self.suite(handler.body, dict(env), tested))
        if node.finalbody is None:
            return after
        final = self.suite(node.finalbody.body, dict(after or env), tested)
        return None if after is None else final

    def small(self, node: cst.BaseSmallStatement, env: Env) -> Env | None:
        if isinstance(node, cst.Assign):
            targets = [target.target for target in node.targets]
            self.look(node.value, env, targets)
            for target in targets:
                self.assign(target, node.value, env)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self.look(node.value, env, [node.target])
            self.assign(node.target, node.value, env)
        elif isinstance(node, cst.AugAssign):
            self.look(node.value, env, [node.target])
        elif isinstance(node, cst.Return):
            value = NOTHING
            if node.value is not None:
                self.look(node.value, env)
                value = replace(self.value(node.value, env), assigned=frozenset())
            frame = self.frames[-1]
            frame.returns = value if frame.returns is None else _either(frame.returns, value)
            return None
        elif isinstance(node, cst.Raise | cst.Continue | cst.Break):
            return None
        elif isinstance(node, cst.Expr):
            self.look(node.value, env)
        return env

    def assign(self, target: cst.BaseExpression, value: cst.BaseExpression, env: Env) -> None:
        if isinstance(target, cst.Name):
            known = self.value(value, env)
            env[target.value] = replace(known, assigned=frozenset({value} if known.sources else ()))
            frame = self.frames[-1]
            self.places.setdefault(id(value), (frame.method, tuple(frame.path)))
        elif isinstance(target, cst.Tuple | cst.List):
            values = value.elements if isinstance(value, cst.Tuple | cst.List) else ()
            for index, element in enumerate(target.elements):
                if len(values) == len(target.elements):
                    self.assign(element.value, values[index].value, env)
                elif isinstance(element.value, cst.Name):
                    env[element.value.value] = NOTHING

    # --- expressions

    def value(self, node: cst.BaseExpression, env: Env) -> Value:
        """What an expression is, when it is a width, a condition or the verify input as a whole."""
        if isinstance(node, cst.Name):
            if node.value in ("True", "False"):
                return Value(truth=node.value == "True")
            return env.get(node.value, NOTHING)
        if isinstance(node, cst.Attribute):
            return self.attribute(node.value, node.attr.value)
        if isinstance(node, cst.Call):
            return self.called(node, env)
        if isinstance(node, cst.IfExp):
            truth = self.value(node.test, env).truth
            if truth is not None:
                return self.value(node.body if truth else node.orelse, env)
            return _either(self.value(node.body, env), self.value(node.orelse, env))
        if isinstance(node, cst.BooleanOperation):
            return self.boolean(node, env)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            truth = self.value(node.expression, env).truth
            return Value(truth=None if truth is None else not truth)
        if isinstance(node, cst.Comparison):
            return Value(truth=self.compared(node))
        if isinstance(node, cst.NamedExpr):
            self.assign(node.target, node.value, env)
            return self.value(node.value, env)
        return NOTHING

    def attribute(self, base: cst.BaseExpression, name: str) -> Value:
        if _is_self(base):
            return Value(self.attributes.get(name, frozenset()))
        if name == SETTING:
            return Value(frozenset({"server"}))
        if name in VERIFY_ATTRIBUTES:
            return Value(frozenset({"verify"}))
        return Value(is_spec=name == "spec_info")

    def called(self, node: cst.Call, env: Env) -> Value:
        function = _last_name(node.func)
        if isinstance(node.func, cst.Name) and function == "int" and len(node.args) == 1:
            return self.value(node.args[0].value, env)
        if isinstance(node.func, cst.Name) and function == "getattr" and len(node.args) >= 2:
            name = _text(node.args[1].value)
            found = self.attribute(node.args[0].value, name) if name is not None else NOTHING
            fallback = self.value(node.args[2].value, env) if len(node.args) > 2 else NOTHING
            return _either(found, fallback)
        if isinstance(node.func, cst.Attribute):
            if function is not None and function in self.methods and _is_self(node.func.value):
                return self.call(function, self.bound(self.methods[function], node, env))
            if function in SETTING_CALLS:
                return Value(frozenset({"server"}))
            if function is not None and function.startswith("is_"):
                return Value(truth=self.mode_test(function, node.func.value))
        return NOTHING

    def bound(self, method: cst.FunctionDef, node: cst.Call, env: Env) -> Env:
        names = [param.name.value for param in method.params.params][1:]
        given: Env = {}
        for index, argument in enumerate(node.args):
            value = replace(self.value(argument.value, env), assigned=frozenset())
            if argument.keyword is not None:
                given[argument.keyword.value] = value
            elif argument.star == "" and index < len(names):
                given[names[index]] = value
        return {name: value for name, value in given.items() if value != NOTHING}

    def boolean(self, node: cst.BooleanOperation, env: Env) -> Value:
        left, right = self.value(node.left, env), self.value(node.right, env)
        deciding = isinstance(node.operator, cst.Or)
        if deciding in (left.truth, right.truth):
            truth: bool | None = deciding
        else:
            truth = None if None in (left.truth, right.truth) else not deciding
        return Value(left.sources | right.sources, truth=truth, is_spec=left.is_spec or right.is_spec)

    def mode_test(self, name: str, base: cst.BaseExpression) -> bool | None:
        """`forward_mode.is_...()` in this run, or None when it can be either."""
        if name == "is_target_verify":
            return self.verify
        about_mode = "mode" in (_last_name(base) or "")
        if not self.verify or not about_mode or _UNDECIDED_MODE_TEST.search(name):
            return None
        return False

    def compared(self, node: cst.Comparison) -> bool | None:
        """`forward_mode == ForwardMode.TARGET_VERIFY`, also with `is`, `!=`, `in (...)`."""
        if len(node.comparisons) != 1:
            return None
        operator, right = node.comparisons[0].operator, node.comparisons[0].comparator
        parts = (part for side in (node.left, right) for part in _walk(side))
        modes = [part.attr.value for part in parts if isinstance(part, cst.Attribute) and _is_mode(part)]
        if not modes or not (self.verify or "TARGET_VERIFY" in modes):
            return None
        alone = len(modes) == 1
        if isinstance(operator, cst.Equal | cst.Is | cst.In):
            return ("TARGET_VERIFY" in modes) if self.verify else (False if alone else None)
        if isinstance(operator, cst.NotEqual | cst.IsNot | cst.NotIn):
            return ("TARGET_VERIFY" not in modes) if self.verify else (True if alone else None)
        return None

    # --- uses: widths that end in an offset

    def look(
        self,
        node: cst.BaseExpression,
        env: Env,
        targets: Sequence[cst.BaseExpression] = (),
    ) -> None:
        """Record the widths inside one expression, by what they end in."""
        context = _Context(
            targets=tuple(name for target in targets if (name := _last_name(target)) is not None),
            stored=any(isinstance(target, cst.Attribute | cst.Subscript) for target in targets),
        )
        if "forward_metadata" in context.targets and isinstance(node, cst.Tuple):
            context = replace(context, in_metadata=True)
        self.inside(node, env, context)
        if self.verify:
            for part in _walk(node):
                if isinstance(part, cst.Call) and _is_stepped_arange(part) and not self.holds_use(part):
                    self.use(part, "qo_indptr", frozenset())

    def holds_use(self, node: cst.CSTNode) -> bool:
        return any(id(part) in self.uses for part in _walk(node))

    def inside(self, node: cst.CSTNode, env: Env, context: _Context) -> None:
        if isinstance(node, cst.Comparison | cst.FormattedString | cst.Lambda | cst.BaseSlice):
            return
        if isinstance(node, cst.BaseExpression):
            known = self.value(node, env)
            if known.sources:
                self.found(node, known, context)
                return
        if isinstance(node, cst.IfExp):
            truth = self.value(node.test, env).truth
            for part, dead in ((node.body, truth is False), (node.orelse, truth is True)):
                if not dead:
                    self.inside(part, env, context)
            return
        if isinstance(node, cst.Call):
            if _self_attribute(node.func) in self.methods:
                return  # what it is given is followed into the method
            for argument in node.args:
                self.inside(argument.value, env, context.argument(node, argument))
            return
        if isinstance(node, cst.BinaryOperation):
            context = context.operand(node)
        for child in _children(node):
            self.inside(child, env, context)

    def found(self, node: cst.BaseExpression, known: Value, context: _Context) -> None:
        role = context.role()
        if role is None or not self.verify:
            return
        # A local that is handed on as it is: the lines to show are those of verify code that gave it its value.
        origins = [origin for origin in known.assigned if self.about_verify(self.places[id(origin)][1])]
        if role == "max_extend_len" and isinstance(node, cst.Name) and origins:
            for origin in origins:
                self.use(origin, role, known.sources)
        else:
            self.use(node, role, known.sources)

    def use(self, node: cst.BaseExpression, role: Role, sources: frozenset[Source]) -> None:
        frame = self.frames[-1]
        method, path = self.places.get(id(node), (frame.method, tuple(frame.path)))
        use = self.uses.setdefault(id(node), Use(method, role, node, path, self.only_here(path)))
        use.sources.add(sources)

    def about_verify(self, path: Sequence[Step]) -> bool:
        return path[-1].under_verify_test or self.only_here(path)

    def only_here(self, path: Sequence[Step]) -> bool:
        return any(id(step.statement) not in self.elsewhere for step in path)


@dataclass(frozen=True)
class _Context:
    """What surrounds an expression, as far as it says what a width in it ends in."""

    targets: tuple[str, ...] = ()
    stored: bool = False
    keyword: str | None = None
    in_arange: bool = False
    in_metadata: bool = False
    arithmetic: bool = False

    def argument(self, call: cst.Call, argument: cst.Arg) -> _Context:
        function = _last_name(call.func)
        return replace(
            self,
            keyword=argument.keyword.value if argument.keyword is not None else None,
            in_arange=self.in_arange or function == "arange",
            in_metadata=function == "ForwardMetadata",
        )

    def operand(self, node: cst.BinaryOperation) -> _Context:
        return replace(
            self,
            keyword=None,
            in_arange=self.in_arange or any(_is_arange(part) for part in _walk(node)),
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


def _is_mode(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and _last_name(node.value) == "ForwardMode"


def _is_arange(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and _last_name(node.func) == "arange"


def _is_stepped_arange(node: cst.Call) -> bool:
    keywords = {argument.keyword.value for argument in node.args if argument.keyword is not None}
    return _is_arange(node) and ("step" in keywords or len(node.args) - len(keywords) > 2)


def _is_mask_arithmetic(node: cst.BinaryOperation) -> bool:
    """`width * (length + width)` and its rearrangements: a product and a sum, or anything with a length."""
    operators = {type(part.operator) for part in _walk(node) if isinstance(part, cst.BinaryOperation)}
    lengths = any(isinstance(part, cst.Name) and "lens" in part.value for part in _walk(node))
    return lengths or {cst.Multiply, cst.Add} <= operators
