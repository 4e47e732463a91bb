"""An abstract run of a class: which statements only a verify step reaches, and where each width comes from.

In target-verify mode every request brings `draft_token_num` rows (the *width*). Offsets into the flat tree mask are
right only when they are computed with that number; the faults compute them with the server setting. Whether a line
does one or the other is a question of data flow, so the class is run symbolically instead of being searched for known
lines: once as if the forward mode were TARGET_VERIFY, and once as if it were anything else. Statements that only the
first run reaches are verify code; every number there is followed back, through locals, conditions, parameters and
helper methods, to where it comes from.

Nothing here depends on line numbers, on whole lines of text, on formatting or on the names of locals.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from diag.source import syntax
from diag.source.syntax import is_self, last_name, self_attribute, walk, words

Source = Literal["server", "verify"]

SETTING = "speculative_num_draft_tokens"
SETTING_ATTRIBUTES = frozenset({"num_draft_tokens", SETTING})
SETTING_CALLS = frozenset({"decode_num_tokens_per_req"})
VERIFY_ATTRIBUTES = frozenset({"draft_token_num", "num_tokens_per_req", "num_tokens_per_batch"})

# Forward modes whose tests are false for TARGET_VERIFY; `is_extend` and `is_cuda_graph` are true for some modes
# including it, so tests with these words in their name decide nothing.
_UNDECIDED_MODE_TEST = re.compile(r"(?<!draft_)(?<!dllm_)extend|graph|verify|spec")
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Leaf:
    """A width inside a larger expression. method: where it stands."""

    node: ast.expr
    sources: frozenset[Source]
    method: str


@dataclass(frozen=True)
class Value:
    """What is known of an expression. `sources`: where the width comes from (one of several, if more);
    `assigned`: the expressions that were assigned to this local as they are; `truth`: for conditions;
    `is_spec`: it is the verify input (`spec_info`) itself; `carries`: the widths that went into it;
    `alias`: the attribute that it is (a part of)."""

    sources: frozenset[Source] = frozenset()
    assigned: frozenset[ast.expr] = frozenset()
    truth: bool | None = None
    is_spec: bool = False
    carries: frozenset[Leaf] = frozenset()
    alias: str | None = None


NOTHING = Value()
SERVER = Value(frozenset({"server"}))
VERIFY = Value(frozenset({"verify"}))
Env = dict[str, Value]


@dataclass(frozen=True)
class Step:
    """One statement on the way from a method's body to a use. suite: the list of statements it stands in."""

    suite: list[ast.stmt]
    statement: ast.stmt
    spec_names: tuple[str, ...]
    under_verify_test: bool


Place = tuple[str, tuple[Step, ...]]


@dataclass(frozen=True)
class Class:
    """The class that is run. attributes: sources of the attributes of self; definitions: (method, attribute) where
    one is set to the server setting; widths: names of the verify step's own width."""

    name: str
    methods: Mapping[str, ast.FunctionDef]
    attributes: Mapping[str, frozenset[Source]]
    definitions: tuple[tuple[str, ast.expr], ...]
    widths: frozenset[str]

    @classmethod
    def read(cls, tree: syntax.Tree, name: str, widths: frozenset[str] = VERIFY_ATTRIBUTES) -> Class:
        """Raises Unreadable when the class is not there once."""
        methods = syntax.methods(syntax.only_class(tree.module, name))
        sources: dict[str, frozenset[Source]] = dict.fromkeys(SETTING_ATTRIBUTES, SERVER.sources)
        definitions: list[tuple[str, ast.expr]] = []
        for owner, method in methods.items():
            for node in walk(method):
                if not isinstance(node, ast.Assign):
                    continue
                found, defines = _plain_source(node.value, widths)
                for target in node.targets:
                    attribute = self_attribute(target)
                    if attribute is not None and found:
                        sources[attribute] = sources.get(attribute, frozenset()) | found
                        definitions += [(owner, target)] if defines else []
        return cls(name, methods, sources, tuple(definitions), widths)

    @property
    def mentions_verify(self) -> bool:
        if any("target_verify" in name for name in self.methods):
            return True
        names = (word for method in self.methods.values() for word in words(method))
        return any(name in ("is_target_verify", "TARGET_VERIFY") for name in names)


def _plain_source(value: ast.expr, widths: frozenset[str]) -> tuple[frozenset[Source], bool]:
    """The source of what is stored in an attribute, and whether it is the server setting itself."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "int" and value.args:
        return _plain_source(value.args[0], widths)
    if isinstance(value, ast.Attribute) and value.attr == SETTING:
        return SERVER.sources, True
    if isinstance(value, ast.Call) and last_name(value.func) in SETTING_CALLS:
        return SERVER.sources, False
    if isinstance(value, ast.Attribute) and value.attr in widths and not is_self(value.value):
        return VERIFY.sources, False
    return frozenset(), False


def either(left: Value, right: Value) -> Value:
    """Known to be one of the two."""
    if left == right:
        return left
    return Value(
        left.sources | right.sources,
        left.assigned | right.assigned,
        left.truth if left.truth == right.truth else None,
        left.is_spec or right.is_spec,
        left.carries | right.carries,
        left.alias or right.alias,
    )


def _join(left: Env | None, right: Env | None) -> Env | None:
    if left is None or right is None:
        return right if left is None else left
    return {name: either(left.get(name, NOTHING), right.get(name, NOTHING)) for name in {**left, **right}}


def _parameters(method: ast.FunctionDef) -> Env:
    """The parameters that are the verify input, by name or by annotation."""
    env: Env = {}
    for param in syntax.parameters(method):
        annotation = [] if param.annotation is None else list(walk(param.annotation))
        named = [part.id for part in annotation if isinstance(part, ast.Name)]
        named += [str(part.value) for part in annotation if isinstance(part, ast.Constant)]
        if "spec_info" in param.arg or any(re.search("Spec(Input|Info)", word) for word in named):
            env[param.arg] = Value(is_spec=True)
    return env


def _names_verify_mode(node: ast.AST) -> bool:
    return any("target_verify" in word.lower() for word in words(node))


def _is_mode(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and last_name(node.value) == "ForwardMode"


@dataclass
class Frame:
    """A method that is being run."""

    method: str
    path: list[Step]
    returns: Value | None = None


class Run:
    """One run of all methods, with the forward mode taken as TARGET_VERIFY (`verify`) or as any other.

    reached: ids of the statements it came to; places: where a value was assigned. What is looked for in the
    expressions on the way is up to the subclass, in `look`.
    """

    def __init__(self, over: Class, *, verify: bool, elsewhere: frozenset[int] = frozenset()) -> None:
        self.over = over
        self.methods = over.methods
        self.verify = verify
        self.elsewhere = elsewhere
        self.reached: set[int] = set()
        self.frames: list[Frame] = []
        self.known: dict[object, Value] = {}
        self.places: dict[int, Place] = {}

    def everything(self) -> None:
        called = {
            name
            for method in self.methods.values()
            for node in walk(method)
            if isinstance(node, ast.Call) and (name := self_attribute(node.func)) and name != method.name
        }
        for name in self.methods:
            if name not in called:
                self.call(name, {})

    # --- for subclasses

    def look(self, node: ast.expr, env: Env, targets: Sequence[ast.expr] = ()) -> None:
        """An expression that is evaluated here, and what it is assigned to."""

    def full(self, node: ast.expr, env: Env) -> Value:
        """All that is known of an expression that is kept: assigned, returned or given to a method."""
        return self.value(node, env)

    def here(self) -> Place:
        frame = self.frames[-1]
        return frame.method, tuple(frame.path)

    def about_verify(self, path: Sequence[Step]) -> bool:
        return path[-1].under_verify_test or self.only_here(path)

    def only_here(self, path: Sequence[Step]) -> bool:
        return any(id(step.statement) not in self.elsewhere for step in path)

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
            self.frames.append(Frame(name, []))
            self.suite(method.body, {**_parameters(method), **bound}, tested or "target_verify" in name)
            self.known[key] = self.frames.pop().returns or NOTHING
        return self.known[key]

    # --- statements: each returns the locals after it, or None when control never gets past it

    def suite(self, body: list[ast.stmt], env: Env, tested: bool) -> Env | None:
        after: Env | None = env
        path = self.frames[-1].path
        for statement in body:
            if after is None:
                break
            self.reached.add(id(statement))
            specs = tuple(name for name, value in after.items() if value.is_spec)
            path.append(Step(body, statement, specs, tested))
            after = self.statement(statement, after, tested)
            path.pop()
        return after

    def statement(self, node: ast.stmt, env: Env, tested: bool) -> Env | None:
        if isinstance(node, ast.If):
            return self.branch(node, env, tested)
        if isinstance(node, ast.With):
            for item in node.items:
                self.look(item.context_expr, env)
            return self.suite(node.body, env, tested)
        if isinstance(node, ast.FunctionDef):  # a closure: it sees the locals, and may or may not run
            before = self.frames[-1].returns
            self.suite(node.body, dict(env), tested)
            self.frames[-1].returns = before
            return env
        if isinstance(node, ast.For | ast.While):
            once = self.suite(node.body, dict(env), tested)
            return self.suite(node.orelse, _join(env, once) or env, tested)
        if isinstance(node, ast.Try | ast.TryStar):
            return self.attempt(node, env, tested)
        if isinstance(node, ast.Match):
            after: Env | None = env
            for case in node.cases:
                after = _join(after, self.suite(case.body, dict(env), tested))
            return after
        return self.simple(node, env)

    def branch(self, node: ast.If, env: Env, tested: bool) -> Env | None:
        truth = self.value(node.test, env).truth
        about_verify = tested or (truth is not False and _names_verify_mode(node.test))
        taken = self.suite(node.body, dict(env), about_verify) if truth is not False else None
        if truth is True:
            return taken
        inner = node.orelse[0] if syntax.is_elif(node) else None
        if isinstance(inner, ast.If):
            self.reached.add(id(inner))
            return _join(taken, self.branch(inner, dict(env), tested))
        return _join(taken, self.suite(node.orelse, dict(env), tested))

    def attempt(self, node: ast.Try | ast.TryStar, env: Env, tested: bool) -> Env | None:
        after = self.suite(node.body, dict(env), tested)
        if after is not None:
            after = self.suite(node.orelse, after, tested)
        for handler in node.handlers:
            after = _join(after, self.suite(handler.body, dict(env), tested))
        if not node.finalbody:
            return after
        final = self.suite(node.finalbody, dict(after or env), tested)
        return None if after is None else final

    def simple(self, node: ast.stmt, env: Env) -> Env | None:
        if isinstance(node, ast.Assign):
            self.look(node.value, env, node.targets)
            for target in node.targets:
                self.assign(target, node.value, env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.look(node.value, env, [node.target])
            self.assign(node.target, node.value, env)
        elif isinstance(node, ast.AugAssign):
            self.look(node.value, env, [node.target])
            self.add_to(node.target, node.value, env)
        elif isinstance(node, ast.Return):
            value = NOTHING
            if node.value is not None:
                self.look(node.value, env)
                value = replace(self.full(node.value, env), assigned=frozenset())
            frame = self.frames[-1]
            frame.returns = value if frame.returns is None else either(frame.returns, value)
            return None
        elif isinstance(node, ast.Raise | ast.Continue | ast.Break):
            return None
        elif isinstance(node, ast.Expr):
            self.look(node.value, env)
        return env

    def assign(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        if isinstance(target, ast.Name):
            known = self.full(value, env)
            env[target.id] = replace(known, assigned=frozenset({value} if known.sources else ()))
            self.places.setdefault(id(value), self.here())
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for index, element in enumerate(target.elts):
                if len(values) == len(target.elts):
                    self.assign(element, values[index], env)
                elif isinstance(element, ast.Name):
                    env[element.id] = Value(carries=self.full(value, env).carries)
        elif isinstance(target, ast.Subscript):
            self.add_to(target.value, value, env)

    def add_to(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        """`x += value`, `x[...] = value`."""
        if isinstance(target, ast.Name) and target.id in env:
            known = env[target.id]
            env[target.id] = replace(known, carries=known.carries | self.full(value, env).carries)

    # --- expressions

    def value(self, node: ast.expr, env: Env) -> Value:
        """What an expression is, when it is a width, a condition or the verify input as a whole."""
        if isinstance(node, ast.Name):
            return env.get(node.id, NOTHING)
        if isinstance(node, ast.Constant):
            return Value(truth=node.value) if isinstance(node.value, bool) else NOTHING
        if isinstance(node, ast.Attribute):
            return self.attribute(node.value, node.attr)
        if isinstance(node, ast.Call):
            return self.called(node, env)
        if isinstance(node, ast.IfExp):
            truth = self.value(node.test, env).truth
            if truth is not None:
                return self.value(node.body if truth else node.orelse, env)
            return either(self.value(node.body, env), self.value(node.orelse, env))
        if isinstance(node, ast.BoolOp):
            return self.boolean(node, env)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self.value(node.operand, env).truth
            return Value(truth=None if truth is None else not truth)
        if isinstance(node, ast.Compare):
            return Value(truth=self.compared(node))
        if isinstance(node, ast.NamedExpr):
            self.assign(node.target, node.value, env)
            return self.value(node.value, env)
        if isinstance(node, ast.BinOp) and _is_rows_each(node):
            return VERIFY
        return NOTHING

    def attribute(self, base: ast.expr, name: str) -> Value:
        if is_self(base):
            return Value(self.over.attributes.get(name, frozenset()))
        if name == SETTING:
            return SERVER
        if name in self.over.widths:
            return VERIFY
        return Value(is_spec=name == "spec_info")

    def called(self, node: ast.Call, env: Env) -> Value:
        function = last_name(node.func)
        if isinstance(node.func, ast.Name) and function == "int" and len(node.args) == 1:
            return self.value(node.args[0], env)
        if isinstance(node.func, ast.Name) and function == "getattr" and len(node.args) >= 2:
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            found = self.attribute(node.args[0], name) if isinstance(name, str) else NOTHING
            fallback = self.value(node.args[2], env) if len(node.args) > 2 else NOTHING
            return either(found, fallback)
        if isinstance(node.func, ast.Attribute):
            if function is not None and function in self.methods and is_self(node.func.value):
                return self.call(function, self.bound(self.methods[function], node, env))
            if function in SETTING_CALLS:
                return SERVER
            if function is not None and function.startswith("is_"):
                return Value(truth=self.mode_test(function, node.func.value))
        return NOTHING

    def bound(self, method: ast.FunctionDef, node: ast.Call, env: Env) -> Env:
        names = [param.arg for param in method.args.args][1:]
        given: Env = {}
        for index, argument in enumerate(node.args):
            if not isinstance(argument, ast.Starred) and index < len(names):
                given[names[index]] = replace(self.full(argument, env), assigned=frozenset())
        for keyword in node.keywords:
            if keyword.arg is not None:
                given[keyword.arg] = replace(self.full(keyword.value, env), assigned=frozenset())
        return {name: value for name, value in given.items() if value != NOTHING}

    def boolean(self, node: ast.BoolOp, env: Env) -> Value:
        values = [self.value(each, env) for each in node.values]
        deciding = isinstance(node.op, ast.Or)
        truths = [value.truth for value in values]
        truth = deciding if deciding in truths else (None if None in truths else not deciding)
        sources = frozenset(source for value in values for source in value.sources)
        return Value(sources, truth=truth, is_spec=any(value.is_spec for value in values))

    def mode_test(self, name: str, base: ast.expr) -> bool | None:
        """`forward_mode.is_...()` in this run, or None when it can be either."""
        if name == "is_target_verify":
            return self.verify
        about_mode = "mode" in (last_name(base) or "")
        if not self.verify or not about_mode or _UNDECIDED_MODE_TEST.search(name):
            return None
        return False

    def compared(self, node: ast.Compare) -> bool | None:
        """`forward_mode == ForwardMode.TARGET_VERIFY`, also with `is`, `!=`, `in (...)`."""
        if len(node.ops) != 1:
            return None
        operator, right = node.ops[0], node.comparators[0]
        parts = (part for side in (node.left, right) for part in walk(side))
        modes = [part.attr for part in parts if isinstance(part, ast.Attribute) and _is_mode(part)]
        if not modes or not (self.verify or "TARGET_VERIFY" in modes):
            return None
        alone = len(modes) == 1
        if isinstance(operator, ast.Eq | ast.Is | ast.In):
            return ("TARGET_VERIFY" in modes) if self.verify else (False if alone else None)
        if isinstance(operator, ast.NotEq | ast.IsNot | ast.NotIn):
            return ("TARGET_VERIFY" not in modes) if self.verify else (True if alone else None)
        return None


def _is_rows_each(node: ast.BinOp) -> bool:
    """`input_ids.shape[0] // bs`: the rows that the batch brings, by request."""
    return isinstance(node.op, ast.FloorDiv) and any("input_ids" in word for word in words(node.left))


def both_runs(over: Class, kind: Callable[..., Run]) -> tuple[Run, frozenset[int]]:
    """(a run of `kind` in verify mode, ids of the statements that other modes reach)."""
    other = kind(over, verify=False)  # it must look, too: what is called within an expression is reached
    other.everything()
    elsewhere = frozenset(other.reached)
    verify = kind(over, verify=True, elsewhere=elsewhere)
    verify.everything()
    return verify, elsewhere


def arguments(node: ast.Call) -> Iterator[tuple[str | None, ast.expr]]:
    """(keyword or None, expression) of each argument."""
    for argument in node.args:
        yield None, argument.value if isinstance(argument, ast.Starred) else argument
    for keyword in node.keywords:
        yield keyword.arg, keyword.value
