"""What people do to a file without changing what it computes. Each is a function of a class's tree and of chance.

`mutated(text, cls, seed)` draws some of them; a detector must give the answer that it gives for the file as it was.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence

Mutation = Callable[[ast.ClassDef, random.Random], None]


def only_class(text: str, name: str = "TritonAttnBackend") -> tuple[str, str, str]:
    """Before, inside and after the class."""
    node = next(each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name)
    rows = text.splitlines(keepends=True)
    start, end = node.lineno - 1, node.end_lineno or 0
    return "".join(rows[:start]), "".join(rows[start:end]), "".join(rows[end:])


def changed(text: str, name: str, *mutations: Mutation, seed: int = 0) -> str:
    """The file with the class changed and laid out anew: its comments are gone, its lines are others."""
    before, inside, after = only_class(text, name)
    node = ast.parse(inside).body[0]
    assert isinstance(node, ast.ClassDef)
    for mutation in mutations:
        mutation(node, random.Random(seed))
    return before + ast.unparse(ast.fix_missing_locations(node)) + "\n" + after


def mutated(text: str, name: str, seed: int) -> str:
    """Two to four mutations, then perhaps comments, other line ends, a byte order mark."""
    chance = random.Random(seed)
    chosen = chance.sample(MUTATIONS, chance.randint(2, 4))
    new = changed(text, name, *chosen, seed=seed)
    if chance.random() < 0.5:
        new = commented(new, seed, name)
    if chance.random() < 0.2:
        new = "\ufeff" + new.replace("\n", "\r\n")
    return new


# --- mutations ----------------------------------------------------------------------------------------------------


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def renamed(node: ast.ClassDef, chance: random.Random) -> None:
    """Other names for all locals of every method; parameters keep theirs."""
    for method in methods(node):
        inner = [each for each in ast.walk(method) if isinstance(each, ast.FunctionDef | ast.Lambda)]
        arguments = {arg.arg for each in inner for arg in ast.walk(each.args) if isinstance(arg, ast.arg)}
        stored = {
            each.id for each in ast.walk(method) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        outside = {each for each in ast.walk(method) if isinstance(each, ast.Global | ast.Nonlocal)}
        taken = arguments | {name for each in outside for name in each.names}
        letter = chance.choice("vxyz")
        new = {name: f"{letter}{index}_" for index, name in enumerate(sorted(stored - taken))}
        for each in ast.walk(method):
            if isinstance(each, ast.Name):
                each.id = new.get(each.id, each.id)


def branched(node: ast.ClassDef, chance: random.Random) -> None:
    """A further branch before the one of target verify, with offsets of its own kind."""
    test = chance.choice(["is_block_diffusion()", "is_dllm_extend()", "is_split_prefill()"])

    class Brancher(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            self.generic_visit(node)
            if "is_target_verify()" not in ast.unparse(node.test):
                return node
            body = (
                f"if {ast.unparse(node.test).replace('is_target_verify()', test)}:\n"
                "    qo_indptr = torch.arange(0, (1 + bs) * self.block_size, step=self.block_size)\n"
                "    kv_indptr = kv_indices = custom_mask = mask_indptr = None\n"
                "    max_extend_len = self.block_size\n"
                "    num_kv_splits = attn_logits = attn_lse = None\n"
            )
            added = ast.parse(body).body[0]
            assert isinstance(added, ast.If)
            added.orelse = [node]
            return added

    for method in methods(node):
        if "is_target_verify()" in ast.unparse(method):
            Brancher().generic_visit(method)


def noisy(node: ast.ClassDef, chance: random.Random) -> None:
    """Log lines and checks between the statements."""
    lines = ["logger.debug('here')", "assert bs is not None", "_unused = 7", "torch.cuda.nvtx.mark('x')"]

    class Noise(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            body = getattr(node, "body", None)
            if isinstance(body, list) and isinstance(node, ast.If | ast.FunctionDef | ast.With | ast.For):
                index = chance.randint(1, len(body)) if len(body) > 1 else 1
                if chance.random() < 0.4:
                    body.insert(min(index, len(body)), ast.parse(chance.choice(lines)).body[0])
            return node

    Noise().visit(node)


def annotated(node: ast.ClassDef, chance: random.Random) -> None:
    """Some locals get a type."""

    class Annotate(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and chance.random() < 0.5:
                return ast.AnnAssign(node.targets[0], ast.Name("Any", ast.Load()), node.value, 1)
            return node

    Annotate().visit(node)


def shuffled(node: ast.ClassDef, chance: random.Random) -> None:
    """The methods in another order."""
    rest = [each for each in node.body if not isinstance(each, ast.FunctionDef)]
    moved = list(methods(node))
    chance.shuffle(moved)
    node.body = [*rest, *moved]


def wrapped(node: ast.ClassDef, chance: random.Random) -> None:
    """The bodies of some methods inside `with` or `try`."""
    for method in methods(node):
        if chance.random() < 0.5:
            frame = chance.choice(["with torch.no_grad():\n    pass", "try:\n    pass\nfinally:\n    self.done = True"])
            added = ast.parse(frame).body[0]
            assert isinstance(added, ast.With | ast.Try)
            added.body = method.body
            method.body = [added]


def aliased(node: ast.ClassDef, chance: random.Random) -> None:
    """The server setting as a local at the top of each method that uses it."""
    for method in methods(node):
        found = [
            each
            for each in ast.walk(method)
            if isinstance(each, ast.Attribute)
            and each.attr in ("num_draft_tokens", "speculative_num_draft_tokens")
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        ]
        if not found or any(isinstance(each.ctx, ast.Store) for each in found):
            continue
        name, setting = "setting_of_the_server", ast.unparse(found[0])

        class Replace(ast.NodeTransformer):
            def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
                self.generic_visit(node)
                return ast.Name(name, ast.Load()) if ast.unparse(node) == setting else node  # noqa: B023

        Replace().generic_visit(method)
        method.body.insert(0, ast.parse(f"{name} = {setting}").body[0])


def helped(node: ast.ClassDef, chance: random.Random) -> None:
    """The server setting behind a method."""
    for setting in ("self.num_draft_tokens", "self.speculative_num_draft_tokens"):

        class Call(ast.NodeTransformer):
            def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
                self.generic_visit(node)
                if isinstance(node.ctx, ast.Load) and ast.unparse(node) == setting:  # noqa: B023
                    return ast.parse("self._width_of_it()", mode="eval").body
                return node

        if any(ast.unparse(each) == setting for each in ast.walk(node) if isinstance(each, ast.Attribute)):
            for method in methods(node):
                if method.name != "__init__":
                    Call().generic_visit(method)
            node.body.append(ast.parse(f"def _width_of_it(self):\n    return {setting}").body[0])


MUTATIONS: Sequence[Mutation] = (renamed, branched, noisy, annotated, shuffled, wrapped, aliased, helped)


def commented(text: str, seed: int, name: str = "TritonAttnBackend") -> str:
    """Comments between the lines of the class, at random places where a line may begin anew."""
    before, inside, after = only_class(text, name)
    chance = random.Random(seed)
    rows: list[str] = []
    for row in inside.splitlines(keepends=True):
        starts_statement = re.match(r"\s*(if|for|return|self\.|[a-z_]+ = )", row) is not None
        if starts_statement and chance.random() < 0.3:
            indent = re.match(r"\s*", row)
            lead = indent.group() if indent else ""
            rows.append(f"{lead}# num_draft_tokens = spec_info.draft_token_num, says someone\n")
        rows.append(row)
    new = before + "".join(rows) + after
    try:
        ast.parse(new)
    except SyntaxError:
        return text
    return new
