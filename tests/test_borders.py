"""The laws of the house that a reader of one file cannot see: who imports whom, and what never stands in a file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import errors

ROOT = Path(__file__).resolve().parent.parent

HOST_SIDE = sorted([*(ROOT / "probes").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])
LAPTOP_SIDE = sorted((ROOT / "diag").rglob("*.py"))
LAB = ROOT / "diag" / "lab"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of modules that a file imports anywhere in it; those of its own package start with a dot."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def top(module: str) -> str:
    return module.split(".")[0]


def test_there_is_something_to_look_at() -> None:
    assert len(HOST_SIDE) > 8
    assert len(LAPTOP_SIDE) > 30


@pytest.mark.parametrize("path", HOST_SIDE, ids=name)
def test_host_side_code_does_not_know_the_laptop_side(path: Path) -> None:
    assert [m for m in imported(path) if top(m) in ("diag", "probes", "kernels")] == []


@pytest.mark.parametrize("path", [p for p in HOST_SIDE if "probes" in p.parts], ids=name)
def test_probes_need_nothing_but_the_standard_library(path: Path) -> None:
    foreign = [m for m in imported(path) if not m.startswith(".") and top(m) not in sys.stdlib_module_names]
    assert foreign == []


@pytest.mark.parametrize("path", [p for p in HOST_SIDE if "probes" in p.parts], ids=name)
def test_probes_are_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", [p for p in HOST_SIDE if "kernels" in p.parts], ids=name)
def test_kernels_need_torch_and_triton_at_most(path: Path) -> None:
    foreign = [m for m in imported(path) if not m.startswith(".") and top(m) not in sys.stdlib_module_names]
    assert {top(m) for m in foreign} <= {"torch", "triton"}


@pytest.mark.parametrize("path", [p for p in LAPTOP_SIDE if LAB not in p.parents], ids=name)
def test_what_only_the_lab_has_is_imported_by_the_lab_only(path: Path) -> None:
    heavy = {"torch", "triton", "transformers", "asyncssh", "accelerate", "gguf", "starlette", "uvicorn", "safetensors"}
    assert [m for m in imported(path) if top(m) in heavy] == []


@pytest.mark.parametrize("path", LAPTOP_SIDE, ids=name)
def test_the_laptop_side_imports_no_host_side_code_by_its_bare_name(path: Path) -> None:
    assert [m for m in imported(path) if top(m) in ("probes", "kernels")] == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["bisect", "--help"], ["lab", "--help"]])
def test_help_is_quick_because_it_imports_little(arguments: list[str]) -> None:
    heavy = ("paramiko", "numpy", "scipy", "libcst", "pydantic", "torch", "httpx", "git", "ruamel", "asyncssh")
    program = (
        "import sys; from diag.cli import run; status = run(sys.argv[1:]); "
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == "[]\n"


def all_errors(base: type[errors.DiagError] = errors.DiagError) -> Iterator[type[errors.DiagError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__.startswith("diag"):
            yield from all_errors(child)


def test_every_error_has_a_kind_of_its_own_and_a_documented_exit_code() -> None:
    classes = list(all_errors())
    kinds = [error.kind for error in classes]
    assert len(set(kinds)) == len(kinds), sorted(kinds)
    assert all("kind" in vars(error) for error in classes)
    assert {error.exit_code for error in classes} <= {2, 4, 5, 130}
    for error in classes:
        for parent in error.__mro__:
            if parent in (errors.UsageError, errors.HostError, errors.PreconditionFailed):
                assert error.exit_code == parent.exit_code


def test_an_error_says_what_and_what_next_to_a_person_and_to_a_program() -> None:
    error = errors.HostKeyChanged("The key of box changed.", next="Look at line 3.", details=["known_hosts:3"])
    assert str(error) == "The key of box changed.\n  known_hosts:3\n→ Look at line 3."
    assert error.to_json() == {
        "kind": "host_key_changed",
        "what": "The key of box changed.",
        "next": "Look at line 3.",
        "details": ["known_hosts:3"],
        "exit_code": 4,
    }
    assert str(errors.Interrupted("Interrupted.")) == "Interrupted."


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / file for file in listed.stdout.decode().split("\0") if file]
    return [path for path in paths if path.is_file()]


# Written in pieces, so that this file does not hold what it looks for.
MACHINE = re.compile(
    r"(?<![\w.$}~*])/(?:"
    + "|".join(["ro" + "ot", "wo" + "rk", "ho" + "me/[a-z]", "Us" + "ers/[a-zA-Z]"])
    + r")(?:/|\b)"
)
REGISTRY = re.compile(
    "|".join(
        ["pypi" + r"\.org", "python" + "hosted", "arti" + "factory", "dev" + "pi", r"npm" + r"js\.", r"index" + "-url"]
    )
)
# What a host might be called or hold is not a path of this machine.
INVENTED = re.compile(r"/ho" + "me/(?:user|someone|alice|bob|me|u|x|ubuntu|dev|you|ml|NAME)\\b")


def text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_file_names_a_place_on_the_machine_it_was_written_on() -> None:
    found = []
    for path in committed():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            found += [f"{name(path)}:{number}: {line.strip()[:100]}" for _ in MACHINE.finditer(INVENTED.sub("", line))]
    assert found == []


def test_no_file_names_a_package_registry() -> None:
    found = []
    for path in committed():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            found += [f"{name(path)}:{number}: {line.strip()[:100]}" for _ in REGISTRY.finditer(line)]
    assert found == []
