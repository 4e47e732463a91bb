"""The flags that a release of an engine knows, read from its source by its syntax alone. Pure.

SGLang: `add_argument` calls of server_args.py, and from 0.5.14 on the fields of its classes, which flags are made from.
vLLM: `add_argument` calls of arg_utils.py; every `--x` that is true or false has a `--no-x` too, and the fields of
CompilationConfig are flags below `--compilation-config`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

SOURCES: Mapping[str, tuple[str, ...]] = {
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/"),
    "vllm": ("vllm/engine/arg_utils.py", "vllm/config/compilation.py", "vllm/config.py"),
}
"""Files in the wheel that flags stand in; one that ends in `/` is a folder."""


def sources(engine: str, members: Iterable[str]) -> list[str]:
    """Those of a wheel's members that have to be read."""
    wanted = SOURCES[engine]
    return [name for name in members if name.endswith(".py") and name.startswith(wanted)]


def known_flags(engine: str, texts: Iterable[str]) -> set[str]:
    """Every flag, as `--name`, in whichever of the files it stands."""
    found: set[str] = set()
    for text in texts:
        tree = ast.parse(text)
        found.update(_added(tree))
        found.update(_fields(tree, "CompilationConfig", "--compilation-config.") if engine == "vllm" else ())
        found.update(_made_of_fields(tree) if engine == "sglang" else ())
    return found


def knows(flags: set[str], flag: str) -> bool:
    """flag: with `*` at its end, any that begins so."""
    if flag.endswith("*"):
        return any(known.startswith(flag[:-1]) for known in flags)
    return flag in flags or (flag.startswith("--no-") and f"--{flag[5:]}" in flags)


def unknown(flags: set[str], wanted: Iterable[str], *, any_will_do: bool) -> list[str]:
    """Those of `wanted` that it does not know; none of them counts where any_will_do and it knows one."""
    missing = [flag for flag in wanted if not knows(flags, flag)]
    return [] if any_will_do and len(missing) < len(list(wanted)) else missing


def _added(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                    yield str(argument.value)


def _fields(tree: ast.AST, wanted: str, prefix: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield prefix + each.target.id


def _made_of_fields(tree: ast.AST) -> Iterator[str]:
    """Fields of every class, with `-` for `_`, and aliases, which are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield "--" + node.target.id.replace("_", "-")
        elif isinstance(node, ast.Constant) and re.fullmatch(r"--[a-z][a-z0-9-]+", str(node.value)):
            yield str(node.value)
