"""The oracle on releases, on mended and half-mended copies of them, and on backends that do what no release does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diag import bundle
from diag.fixes.mask_indptr import rewrite
from diag.source import oracle, wheels
from diag.source.oracle import OracleAnswer, Subject
from tests.kernels import toy_engine
from tests.source.facts import releases
from tests.source.releases import PATH

ROOT = Path(__file__).resolve().parent.parent.parent

if importlib.util.find_spec("torch") is None:
    pytest.skip("the lab extra is not installed", allow_module_level=True)

metadata = bundle.load("kernels.metadata")

WRONG = ("0.4.3", "0.4.8", "0.5.9", "0.5.12", "0.5.13", "0.5.16")
RIGHT = ("0.5.17", "0.5.21", "0.5.23")
BEFORE = "0.4.2.post4"


def source(version: str) -> str:
    return wheels.read(wheels.fetch("sglang", version), PATH).decode("utf-8")


def swapped(text: str, *expressions: str) -> str:
    """The setting replaced by the step's own width in these expressions alone; each must be there."""
    for expression in expressions:
        assert expression in text
        text = text.replace(expression, expression.replace("self.num_draft_tokens", "spec_info.draft_token_num"))
    return text


ROWS = ("(1 + bs) * self.num_draft_tokens,", "step=self.num_draft_tokens,")
LONGEST = {"0.5.12": "max_extend_len = self.num_draft_tokens", "0.5.13": "max_extend_len=self.num_draft_tokens,"}
MASK = "seq_mask_len = self.num_draft_tokens * (seq_lens + self.num_draft_tokens)"
EAGER_MASK = "seq_mask_len = self.num_draft_tokens * (\n"
EAGER_MASK_END = "forward_batch.seq_lens + self.num_draft_tokens\n"


def only_mask_wrong(version: str) -> str:
    """A fork that mended qo_indptr alone."""
    text = swapped(source(version), *ROWS, LONGEST[version])
    return text.replace("max_extend_len = self.num_draft_tokens", "max_extend_len = spec_info.draft_token_num")


def only_mask_right(version: str) -> str:
    return swapped(source(version), MASK, EAGER_MASK, EAGER_MASK_END)


@cache
def answers() -> dict[str, OracleAnswer]:
    """Each release as it is and mended, and the half-mended ones: one start, a process for each."""
    subjects: dict[str, Subject] = {}
    for version in (*WRONG, *RIGHT, BEFORE):
        subjects[version] = Subject(wheels.fetch("sglang", version))
    for version in WRONG:
        subjects[f"{version} mended"] = Subject(wheels.fetch("sglang", version), rewrite(source(version)))
    for version in LONGEST:
        wheel = wheels.fetch("sglang", version)
        subjects[f"{version} only mask wrong"] = Subject(wheel, only_mask_wrong(version))
        subjects[f"{version} only mask right"] = Subject(wheel, only_mask_right(version))
    return dict(zip(subjects, oracle.ask_local_all(list(subjects.values())), strict=True))


def wrong_cases(answer: OracleAnswer) -> set[tuple[str, int, str]]:
    """(path, batch size, field) of all that is wrong."""
    return {
        (case["path"], case["bs"], name)
        for case in answer.document["path_results"]
        for name, each in case["fields"].items()
        if not each["ok"]
    }


# --- releases


@pytest.mark.wheel
@pytest.mark.parametrize("version", WRONG)
def test_wrong_releases(version: str) -> None:
    found = answers()[version]
    assert found.verdict == "wrong" == releases()[version].oracle, found.why
    assert (found.package_version, found.uses_triton, found.real_import) == (version, True, False)
    assert (
        found.summary == "eager and graph path from bs=1 on: max_extend_len, qo_indptr; from bs=2 on also: mask_indptr"
    )
    assert not any("error" in case for case in found.document["path_results"])
    assert {field for _, _, field in wrong_cases(found)} == {"max_extend_len", "qo_indptr", "mask_indptr"}


@pytest.mark.wheel
@pytest.mark.parametrize("version", [*RIGHT, *(f"{version} mended" for version in WRONG)])
def test_right_releases_and_mended_ones(version: str) -> None:
    found = answers()[version]
    assert found.verdict == "right", found.why
    assert wrong_cases(found) == set()
    assert {(case["path"], case["bs"]) for case in found.document["path_results"]} == {
        (path, size) for path in ("eager", "graph") for size in (1, 2, 3, 4)
    }


@pytest.mark.wheel
def test_before_target_verify_there_is_nothing_to_run() -> None:
    found = answers()[BEFORE]
    assert found.verdict == "cannot_tell"
    assert "no target-verify step" in found.why
    assert found.package_version == BEFORE


@pytest.mark.wheel
@pytest.mark.parametrize("version", LONGEST)
def test_only_the_mask_offsets_wrong_shows_from_the_second_request_on(version: str) -> None:
    found = answers()[f"{version} only mask wrong"]
    assert found.verdict == "wrong"
    assert found.summary == "eager and graph path from bs=2 on: mask_indptr"
    assert {size for _, size, _ in wrong_cases(found)} == {2, 3, 4}


@pytest.mark.wheel
@pytest.mark.parametrize("version", LONGEST)
def test_only_the_mask_offsets_right_shows_at_once(version: str) -> None:
    found = answers()[f"{version} only mask right"]
    assert found.verdict == "wrong"
    assert found.summary == "eager and graph path from bs=1 on: max_extend_len, qo_indptr"


@pytest.mark.wheel
def test_a_mask_buffer_that_is_too_small_is_a_note() -> None:
    assert any("mask buffer" in note and "S=8, D=8" in note for note in answers()["0.4.3"].notes)
    assert not any("mask buffer" in note for note in answers()["0.5.12"].notes)
    assert any("mask buffer" in note and "S=8, D=17" in note for note in answers()["0.5.23"].notes)
    assert not any("S=17, D=8" in note for note in answers()["0.5.23"].notes)


@pytest.mark.wheel
def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_NO_TRITON", "1")
    with_triton = answers()["0.5.12"]
    found = oracle.ask_local(wheels.fetch("sglang", "0.5.12"))
    assert found.uses_triton is False
    assert (found.verdict, found.summary) == (with_triton.verdict, with_triton.summary)
    assert found.document["path_results"] == with_triton.document["path_results"]
    assert any("plain torch" in note for note in found.notes)


# --- the arithmetic, by hand


def test_what_is_wanted() -> None:
    builder = bundle.load("kernels.builder")
    wanted = builder.wanted(builder.Batch([3, 1], [2, 0], 2))
    assert wanted.pop("kv_indices") == [builder.slot(2, 0), builder.slot(2, 1), builder.slot(2, 2), builder.slot(0, 0)]
    assert wanted == {
        "qo_indptr": [0, 2, 4],
        "kv_indptr": [0, 3, 4],
        "mask_indptr": [0, 2 * (3 + 2)],
        "max_extend_len": 2,
    }


# --- the verdict


def case(path: str, bs: int, S: int, D: int, *wrong: str, error: str = "") -> dict[str, Any]:
    names = ("qo_indptr", "mask_indptr")
    fields = {} if error else {name: {"ok": name not in wrong, "got": 0, "want": 1} for name in names}
    return {"path": path, "bs": bs, "S": S, "D": D, "fields": fields, **({"error": error} if error else {})}


EQUAL = [case("eager", 1, 8, 8), case("graph", 1, 8, 8)]
UNEQUAL = [case("eager", 1, 8, 17), case("graph", 1, 8, 17)]


def test_right() -> None:
    assert metadata.judge([*EQUAL, *UNEQUAL])["verdict"] == "right"


def test_wrong_on_one_path_is_wrong() -> None:
    found = metadata.judge([*EQUAL, UNEQUAL[0], case("graph", 3, 8, 17, "mask_indptr")])
    assert (found["verdict"], found["summary"]) == ("wrong", "graph path from bs=3 on: mask_indptr")


def test_wrong_where_widths_are_equal_means_that_the_release_is_not_understood() -> None:
    found = metadata.judge([case("eager", 1, 8, 8, "qo_indptr"), EQUAL[1], case("eager", 1, 8, 17, "qo_indptr")])
    assert found["verdict"] == "cannot_tell"
    assert "eager path" in found["why"]
    assert "bs=1 S=8 D=8" in found["why"]
    assert "qo_indptr not as expected" in found["why"]


def test_a_path_that_is_not_understood_does_not_hide_a_fault_on_the_other() -> None:
    cases = [EQUAL[0], case("eager", 2, 8, 17, "mask_indptr"), case("graph", 1, 8, 8, error="KeyError: 1")]
    found = metadata.judge(cases)
    assert found["verdict"] == "wrong"
    assert "KeyError: 1" in found["summary"]


def test_a_case_that_raises_is_no_proof() -> None:
    found = metadata.judge([*EQUAL, UNEQUAL[0], case("graph", 2, 8, 17, error="RuntimeError: sizes")])
    assert found["verdict"] == "cannot_tell"
    assert "graph path: bs=2 S=8 D=17 raises RuntimeError: sizes" in found["why"]


def test_no_case_is_no_verdict() -> None:
    assert metadata.judge([])["verdict"] == "cannot_tell"


# --- backends that do what no release does

TOYS: dict[str, tuple[dict[str, str], str, str]] = {
    "right": ({}, "right", ""),
    "setting": ({"body": "width = mask_width = longest = S"}, "wrong", ""),
    "graph alone": (
        {"body": "width = mask_width = longest = D if path == 'eager' else S"},
        "wrong",
        "graph path from bs=1 on: max_extend_len, qo_indptr; from bs=2 on also: mask_indptr",
    ),
    "from three on": (
        {"body": "width = longest = D; mask_width = S if bs > 2 else D"},
        "wrong",
        "eager and graph path from bs=3 on: mask_indptr",
    ),
    "the longer of the two": (
        {"body": "width = mask_width = longest = max(S, D)"},
        "wrong",
        "eager and graph path from bs=1 on: max_extend_len, qo_indptr; from bs=2 on also: mask_indptr",
    ),
    "never right": ({"body": "width = mask_width = longest = 3"}, "cannot_tell", "this release is not understood"),
    "raises": ({"body": "raise ValueError('no\\nway')"}, "cannot_tell", "ValueError: no"),
    "raises for trees": (
        {"body": "width = mask_width = longest = D\n        if S < D: raise ValueError('too wide')"},
        "cannot_tell",
        "bs=1 S=8 D=17 raises ValueError: too wide",
    ),
    "syntax": ({"top": "def broken(:"}, "cannot_tell", "SyntaxError"),
    "import": ({"top": "import a_package_that_is_not_there"}, "cannot_tell", "ModuleNotFoundError"),
    "exits": ({"top": "raise SystemExit(3)"}, "cannot_tell", "SystemExit"),
    "dies": ({"top": "import os; os._exit(3)"}, "cannot_tell", "ended by status"),
    "prints": ({"top": "import os; print('noise'); os.write(1, b'noise')"}, "right", ""),
    "small buffer": ({"cells": "16"}, "right", ""),
    "asks the engine": (
        {"top": "from sglang.srt.x import is_y, Z\nassert not is_y()\n@Z\nclass A(Z):\n    a = Z.B.C"},
        "right",
        "",
    ),
}


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OracleAnswer]:
    root = tmp_path_factory.mktemp("toys")
    folders = [toy_engine.install(root / name.replace(" ", "-"), **given) for name, (given, _, _) in TOYS.items()]
    return dict(zip(TOYS, oracle.ask_local_all([Subject(folder) for folder in folders]), strict=True))


@pytest.mark.parametrize("name", TOYS)
def test_toys(toys: dict[str, OracleAnswer], name: str) -> None:
    _, verdict, summary = TOYS[name]
    found = toys[name]
    assert found.verdict == verdict, found.why
    assert summary in found.summary
    assert found.package_version == (None if name == "dies" else "9.9")


def test_nothing_is_left_in_the_installation(tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site")
    before = sorted(folder.rglob("*"))
    assert oracle.ask_local(folder).verdict == "right"
    assert sorted(folder.rglob("*")) == before


def run_directly(program: str, **more: str) -> dict[str, Any]:
    """The last line that a process of its own prints, where `metadata` is at hand."""
    head = "from diag import bundle; import json, sys; sys.dont_write_bytecode = True\n"
    head += "metadata = bundle.load('kernels.metadata')\n"
    environment = {**os.environ, **more}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", head + program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


@pytest.mark.wheel
def test_where_triton_was_imported_too_early_it_is_not_used(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    folder = oracle._unpacked(Subject(wheels.fetch("sglang", "0.5.12"), source("0.5.12")), tmp_path / "site")
    found = run_directly(f"import triton; print(json.dumps(metadata.run({{'site_packages': {str(folder)!r}}})))")
    assert (found["verdict"], found["uses_triton"], found["real_import"]) == ("wrong", False, False)
    notes = [note["text"] for note in found["notes"]]
    assert any("imported before it could interpret" in note for note in notes)
    assert any("triton was imported before TRITON_INTERPRET=1" in note for note in notes)


# --- the engine itself

STUB = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return {value}
"""
STUBS = {
    "sglang.srt.utils": "(lambda *args, **kwargs: 0)",
    "sglang.srt.layers.dp_attention": "(lambda: 1 / 0)",  # no server runs, so nothing may ask for its group
    "sglang.srt.layers.radix_attention": "object",
    "sglang.srt.speculative.spec_utils": "print",
    "sglang.srt.layers.attention.triton_ops.decode_attention": "print",
    "sglang.srt.layers.attention.triton_ops.extend_attention": "print",
}


def importable(folder: Path, version: str) -> Path:
    """A release's own attention files, in an engine that imports without its hundred dependencies."""
    oracle._unpacked(Subject(wheels.fetch("sglang", version), source(version)), folder)
    for name, value in STUBS.items():
        path = folder.joinpath(*name.split("."), "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB.format(value=value), encoding="utf-8")
    mode = folder / "sglang/srt/model_executor/forward_batch_info/__init__.py"
    mode.parent.mkdir(parents=True)
    mode.write_text(
        "import enum\n\nclass ForwardMode(enum.Enum):\n    TARGET_VERIFY = 6\n\n"
        "    def __getattr__(self, name):\n        if not name.startswith('is_'):\n"
        "            raise AttributeError(name)\n        return lambda: name == 'is_target_verify'\n\n"
        "class ForwardBatch:\n    pass\n",
        encoding="utf-8",
    )
    (folder / "sglang/srt/utils/common").mkdir()
    (folder / "sglang/srt/utils/common/__init__.py").write_text(STUB.format(value="print"), encoding="utf-8")
    return folder


@pytest.mark.wheel
def test_the_engine_itself_where_it_can_be_imported(tmp_path: Path) -> None:
    folder = importable(tmp_path / "site", "0.5.9")
    found = oracle.ask_local(folder, real=True)
    assert found.verdict == "wrong", found.why
    assert found.real_import is True
    assert found.document["path_results"] == answers()["0.5.9"].document["path_results"]


@pytest.mark.parametrize("real", ["auto", True])
def test_an_engine_that_cannot_be_imported(tmp_path: Path, real: oracle.Real) -> None:
    found = oracle.ask_local(toy_engine.install(tmp_path / "site"), real=real)
    assert found.real_import is False
    assert found.verdict == ("right" if real == "auto" else "cannot_tell")
    assert any("ModuleNotFoundError" in text for text in (*found.notes, found.why))


def test_another_copy_of_the_engine_is_not_taken_for_this_one(tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site")
    other = toy_engine.install(tmp_path / "other", "width = mask_width = longest = S")
    program = f"import pathlib, types, sys; sys.path.insert(0, {str(other)!r}); "
    found = run_directly(program + f"print(json.dumps(metadata.run({{'site_packages': {str(folder)!r}}})))")
    assert found["verdict"] == "right"


def test_interpreter_that_does_not_work_here_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton 3.6 beside NumPy 2.5 fails at every loop: the index kernel's twin in plain torch does its work."""
    from kernels import installed, metadata

    runs = []

    def all_cases(module: object, notes: list[object]) -> list[dict[str, object]]:
        runs.append(os.environ.get("DIAG_NO_TRITON"))
        each = [{"path": path, "bs": 1, "S": 8, "D": 8, "fields": {}} for path in metadata.PATHS]
        return [{**case, "error": "InterpreterError: TypeError('...')"} for case in each] if len(runs) == 1 else each

    monkeypatch.delenv("DIAG_NO_TRITON", raising=False)
    monkeypatch.setattr(metadata, "_all_cases", all_cases)
    monkeypatch.setattr(metadata, "_load", lambda *args: (object(), False))
    monkeypatch.setattr(installed, "uses_triton", lambda: not os.environ.get("DIAG_NO_TRITON"))
    file = tmp_path / installed.BACKEND_FILE
    file.parent.mkdir(parents=True)
    file.write_text("# is_target_verify", encoding="utf-8")
    answer = metadata.answer(tmp_path, "auto")
    assert runs == [None, "1"]
    assert answer["verdict"] == "right"
    assert answer["notes"][0]["note"] == "no_interpreter"
    monkeypatch.delenv("DIAG_NO_TRITON", raising=False)
