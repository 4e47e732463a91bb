"""What travels to the host: the command that finds a Python there, and one compressed program for its stdin."""

from __future__ import annotations

import ast
import json
import shlex
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from diag import bundle

PACKAGE = "_diag_host"
NO_PYTHON_STATUS = 86
NO_PYTHON_MARK = "diag: no python"
NO_SUDO_STATUS = 87
NO_SUDO_MARK = "diag: no sudo"
# CPython 3.11 loses count of its recursion when two threads parse at once ("AST constructor recursion depth mismatch").
_ONE_AT_A_TIME = threading.Lock()

# The system's own first: a `python3` on PATH may be a shim, a shell script that takes longer than all the rest.
CANDIDATES = (
    "/usr/bin/python3",
    "python3",
    *(f"python3.{minor}" for minor in range(15, 7, -1)),
    "python",
    "/usr/local/bin/python3",
    "/opt/homebrew/bin/python3",
    "/usr/libexec/platform-python",
    "/opt/conda/bin/python3",
    "~/miniconda3/bin/python3",
)

# Read one line with a length, then that many bytes: unbuffered, because what follows belongs to the probe.
# One line without ' or ! so that it survives every login shell, csh and fish included. A folder we stand in
# must not shadow the standard library.
BOOT = (
    r'exec("import os,sys\nsys.path[:]=[p for p in sys.path if p]\nimport zlib\nl=b=bytes()\n'
    r"while not l.endswith(bytes([10])):l+=os.read(0,1) or os._exit(3)\nn=int(l)\n"
    r"while len(b)<n:b+=os.read(0,n-len(b)) or os._exit(3)\n"
    r'parts=zlib.decompress(b).decode().split(chr(0))\nexec(parts[0])")'
)

_FIND = (
    'for p in "$@"; do '
    'case "$p" in "~/"*) p="$HOME/${p#"~/"}";; esac; '
    'q=$(command -v "$p" 2>/dev/null) || continue; '
    # Its name says what it is where a distribution put it; else it is asked, which takes as long as a short program.
    'case $(readlink "$q" 2>/dev/null) in *python3.[89]|*python3.[1-9][0-9]) ;; '
    '*) "$p" -S -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1;; esac && '
    "RUN; "
    'echo "diag: not usable: $p ($("$p" -V 2>&1 </dev/null))" >&2; '
    f'done; echo "{NO_PYTHON_MARK}: tried $*" >&2; exit {NO_PYTHON_STATUS}'
)
_RUN = 'exec "$p" FLAGS -c "$0"'
# By its whole path: sudo looks for a bare name in folders of its own. Never a password: -n, and nothing to type it at.
_RUN_SUDO = (
    '{ p=$(command -v "$p"); sudo -n -- "$p" -c "" </dev/null >/dev/null && exec sudo -n -- "$p" FLAGS -c "$0"; '
    f'echo "{NO_SUDO_MARK}: sudo -n $p" >&2; exit {NO_SUDO_STATUS}; }}'
)


def command(candidates: tuple[str, ...], *, isolated: bool = True, sudo: bool = False) -> str:
    """The line for the login shell. isolated: without PYTHON* variables (-I), site-packages and what their .pth files
    run (-S): the standard library is all that our programs need.

    Not isolated is for the engine's own interpreter, which may need them to import the engine.
    sudo: the interpreter runs as root by `sudo -n`; where that is refused, the status is NO_SUDO_STATUS.
    """
    script = _FIND.replace("RUN", _RUN_SUDO if sudo else _RUN).replace("FLAGS", "-I -S -B" if isolated else "-B")
    return shlex.join(["/bin/sh", "-c", script, BOOT, *candidates])


@lru_cache(maxsize=64)
def sources(module: str) -> Mapping[str, str]:
    """Full name to slim source text of `module` ("probes.host") and all that it imports relatively, plus the wire."""
    found: dict[str, str] = {f"{PACKAGE}.__init__": ""}
    waiting = ["probes._wire", module]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        key = f"{PACKAGE}.{name}" + (".__init__" if path.name == "__init__.py" else "")
        if key in found:
            continue
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        found[key] = _slimmed(text, nodes)
        waiting += _relative_imports(name, path, nodes)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
    return {key: found[key] for key in sorted(found)}


def _path(name: str) -> Path:
    top, _, rest = name.partition(".")
    base = bundle.folder(top).joinpath(*rest.split(".")) if rest else bundle.folder(top)
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _exists(name: str) -> bool:
    return _path(name).is_file()


def _relative_imports(name: str, path: Path, nodes: Sequence[ast.AST]) -> list[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        parts = package.split(".")
        parts = parts[: len(parts) - (node.level - 1)]
        base = ".".join([*parts, node.module] if node.module else parts)
        # `from .x import y`: y is a module of package x, or a name inside module x.
        inner = [f"{base}.{alias.name}" for alias in node.names]
        found += [candidate for candidate in inner if _exists(candidate)]
        if _exists(base):
            found.append(base)
    return found


@dataclass(frozen=True)
class _Program:
    """All of it but the request. begun: its bytes so far, compressed; packer: where the rest goes into a copy of."""

    begun: bytes
    packer: zlib._Compress


@lru_cache(maxsize=64)
def _program(module: str) -> _Program:
    loader = slim((bundle.folder("probes") / "_loader.py").read_text(encoding="utf-8"))
    needed = sources(module)
    packer = zlib.compressobj(9)
    parts = [f"{loader}\nstart(parts)\n", json.dumps(list(needed)), *needed.values(), ""]
    return _Program(packer.compress("\0".join(parts).encode()), packer)


def slim(text: str) -> str:
    """The module without comments and docstrings; every line keeps its number, so tracebacks stay right."""
    return _slimmed(text, list(ast.walk(ast.parse(text))))


def _slimmed(text: str, nodes: Sequence[ast.AST]) -> str:
    lines = _without_comments(text.split("\n"), nodes)
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node, lines)
    return "\n".join(lines)


def _without_comments(lines: Sequence[str], nodes: Sequence[ast.AST]) -> list[str]:
    """A comment begins at the first # that is in no string. (tokenize says the same, and takes ten times as long; what
    stands between two strings that are one literal is left.)"""
    strings = [
        ((node.lineno - 1, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0))
        for node in nodes
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
    ]
    kept = list(lines)
    for row, line in enumerate(lines):
        # ast counts columns in bytes.
        data, at = line.encode(), -1
        while (at := data.find(b"#", at + 1)) >= 0:
            if not any(begin <= (row, at) and (row + 1, at) < end for begin, end in strings):
                kept[row] = data[:at].decode().rstrip()
                break
    return kept


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> None:
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return
    start, end = first.lineno - 1, (first.end_lineno or first.lineno) - 1
    # Code after the docstring, on its last line, is rare: leave that one alone.
    before = lines[start].encode()[: first.col_offset].decode()
    after = lines[end].encode()[first.end_col_offset :].strip()
    if isinstance(first.value.value, str) and not before.strip() and not after:
        # In a function or class something must stay where the docstring was all there is.
        lines[start] = before + ("" if isinstance(node, ast.Module) else "0")
        lines[start + 1 : end + 1] = [""] * (end - start)


def payload(module: str, request: Mapping[str, object]) -> bytes:
    """The length line and the program, which serves `request` (JSON-able; its "module" is filled in).

    The program is parts separated by NUL: the loader, the names of the sources, each source, the request.
    """
    with _ONE_AT_A_TIME:
        program = _program(module)
    rest = program.packer.copy()
    body = program.begun + rest.compress(json.dumps({**request, "module": module}).encode()) + rest.flush()
    return b"%d\n" % len(body) + body
