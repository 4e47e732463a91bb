"""What travels: small, the same program, and a command that no login shell can misread."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag import bundle
from diag.hosts import payload

MODULES = sorted(
    f"{top}.{path.stem}"
    for top in ("probes", "kernels")
    for path in bundle.folder(top).glob("*.py")
    if path.stem != "__init__"
)
EMPTY: dict[str, object] = {"args": {}, "env": {}, "limit_s": 1.0}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("probes.")])
def test_every_probe_is_small(module: str) -> None:
    # 16 kB is about what a fresh connection carries without waiting. A fix may cost one wait more.
    # A job's is a file in a queue: nobody waits for its round trips.
    limit = {"probes.fixtx": 21, "probes.fixread": 21, "probes.job": 26}.get(module, 16)
    assert len(payload.payload(module, EMPTY)) <= limit * 1024


@pytest.mark.parametrize("module", MODULES)
def test_slim_source_is_the_same_program_on_the_same_lines(module: str) -> None:
    text = bundle.folder(module.split(".")[0]).joinpath(module.split(".")[1] + ".py").read_text()
    slim = payload.slim(text)
    assert slim.count("\n") == text.count("\n")
    assert _code(slim) == _code(text)


def _code(text: str) -> list[str]:
    """Each statement with its line, docstrings left out."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text_or_stub(body[0]):
            body.pop(0)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return [f"{node.lineno}: {ast.dump(node)}" for node in nodes]


def _is_text_or_stub(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and (isinstance(node.value.value, str) or node.value.value == 0)
    )


def test_slim_leaves_strings_with_hashes_and_odd_docstrings_alone() -> None:
    text = 'def f():\n    "é#"; return "# no comment"  # but this is\nclass A:\n    """Only é."""\n'
    slim = payload.slim(text)
    assert slim == 'def f():\n    "é#"; return "# no comment"\nclass A:\n    0\n'


@pytest.mark.parametrize("module", MODULES)
def test_host_side_code_is_python_3_8_and_imports_no_diag(module: str) -> None:
    top, name = module.split(".")
    tree = ast.parse(bundle.folder(top).joinpath(name + ".py").read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        assert not [found for found in names if found.split(".")[0] == "diag"]


def test_only_the_modules_needed_are_sent() -> None:
    assert set(payload.sources("probes._wire")) == {
        "_diag_host.__init__",
        "_diag_host.probes.__init__",
        "_diag_host.probes._wire",
    }


def test_payload_states_its_length() -> None:
    line, body = payload.payload("probes._wire", EMPTY).split(b"\n", 1)
    assert int(line) == len(body)
    zlib.decompress(body)


def test_boot_and_script_hold_nothing_that_a_login_shell_treats_specially_inside_quotes() -> None:
    # csh ends a quoted string at a newline and expands ! in it; a single quote would end the quoting.
    for argument in shlex.split(payload.command(payload.CANDIDATES)):
        assert not set("\n!'") & set(argument)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_a_candidate_is_one_argument_whatever_it_contains(names: list[str]) -> None:
    command = payload.command(tuple(names))
    assert shlex.split(command)[4:] == names


@pytest.mark.parametrize(
    "name", ["$(touch canary)", "`touch canary`", "x; touch canary", "' ; touch canary; '", "-c", '"']
)
def test_no_candidate_is_ever_executed_as_shell(name: str, tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", "-c", payload.command((name,))], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == payload.NO_PYTHON_STATUS
    assert payload.NO_PYTHON_MARK.encode() in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("link", "starts"),
    [("python3.6", "asked run"), ("python3.8", "run"), ("/usr/bin/python3.12", "run"), ("elsewhere", "asked run")],
)
def test_an_interpreter_whose_name_tells_its_version_is_not_asked(link: str, starts: str, tmp_path: Path) -> None:
    real = tmp_path / link.rpartition("/")[2]
    real.write_text(
        f'#!/bin/sh\ncase "$*" in *version_info*) echo asked;; *) echo run;; esac >>"{tmp_path}/log"\n'
        f'exec {sys.executable} "$@"\n'
    )
    real.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(real if link.startswith("/") else f"../{link}")
    done = subprocess.run(
        ["/bin/sh", "-c", payload.command(("python3",))],
        input=payload.payload("probes._wire", EMPTY),
        capture_output=True,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        check=False,
    )
    assert b"\x1eend " in done.stdout, done.stderr
    assert (tmp_path / "log").read_text().split() == starts.split()


def test_a_folder_we_stand_in_does_not_shadow_the_standard_library(tmp_path: Path) -> None:
    for name in ("zlib", "json", "hashlib", "importlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    for isolated in (True, False):
        done = subprocess.run(
            ["/bin/sh", "-c", payload.command((sys.executable,), isolated=isolated)],
            input=payload.payload("probes._wire", EMPTY),
            capture_output=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert b"\x1eend " in done.stdout
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".py"] * 4


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5))
@settings(max_examples=40, deadline=None)
def test_arguments_cross_as_values_not_as_code(value: object) -> None:
    body = payload.payload("probes._wire", {"args": {"value": value}, "env": {}}).split(b"\n", 1)[1]
    request = zlib.decompress(body).decode().split("\0")[-1]
    assert json.loads(request)["args"]["value"] == value


def test_many_threads_may_pack_at_once() -> None:
    # Each parses the sources anew; two at once upset CPython 3.11 now and then.
    def pack(_: int) -> int:
        payload.sources.cache_clear()
        payload._program.cache_clear()
        return len(payload.payload("probes.host", EMPTY))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(pack, range(16)))) == 1
