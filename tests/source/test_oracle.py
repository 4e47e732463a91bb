"""The oracle from the laptop: asking on a host and here, what is no answer, and disagreement with the detector."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.errors import PackageNotInstalled, PreconditionFailed
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect
from diag.source import oracle, wheels
from diag.source.detect import Detection, State
from diag.source.oracle import OracleAnswer, Subject, Verdict, agree
from tests.kernels import toy_engine
from tests.source.facts import Release, misplaced, releases
from tests.source.releases import PATH

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the lab extra is not installed")


# --- reading and running


def said(verdict: Verdict) -> OracleAnswer:
    return OracleAnswer(verdict, "why", "eager path from bs=2 on: mask_indptr")


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("present", "wrong"),
        ("fixed", "right"),
        ("not_applicable", "cannot_tell"),
        ("present", "cannot_tell"),
        ("fixed", "cannot_tell"),
        ("unknown", "right"),
        ("unknown", "wrong"),
        ("unknown", "cannot_tell"),
    ],
)
def test_agreement(state: State, verdict: Verdict) -> None:
    assert agree(Detection(state, (), "seen"), said(verdict)) is None


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("present", "right"), ("fixed", "wrong"), ("not_applicable", "wrong"), ("not_applicable", "right")],
)
def test_disagreement_is_a_sentence(state: State, verdict: Verdict) -> None:
    sentence = agree(Detection(state, (), "seen"), said(verdict))
    assert sentence is not None
    assert f"says {state.replace('_', ' ')} (seen)" in sentence
    assert f"says {verdict} (eager path from bs=2 on: mask_indptr)" in sentence


# --- answers


@pytest.mark.parametrize("document", [{}, {"schema": 2, "verdict": "right"}, {"schema": 1, "verdict": "perhaps"}])
def test_an_answer_of_unknown_form_is_no_answer(document: dict[str, Any]) -> None:
    assert oracle.answer(document) == OracleAnswer("cannot_tell", *["The answer has an unknown form."] * 2)


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = oracle.ask_local(toy_engine.install(tmp_path / "site"))
    assert found.verdict == "cannot_tell"
    assert "pip install 'diag[lab]'" in found.why


# --- here


def wheel_of(folder: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
        archive.writestr("sglang/srt/large.py", "x" * 1000)
        archive.writestr("../sglang-1.0.dist-info/METADATA", "")
    return file


@needs_torch
def test_a_folder_a_checkout_a_wheel_and_another_text(tmp_path: Path) -> None:
    wrong = toy_engine.install(tmp_path / "wrong", "width = mask_width = longest = S")
    checkout = toy_engine.install(tmp_path / "checkout" / "python").parent
    text = (checkout / "python" / PATH).read_text(encoding="utf-8")
    wheel = wheel_of(wrong, tmp_path / "sglang-9.9-py3-none-any.whl")
    subjects = [Subject(wrong), Subject(checkout), Subject(wheel), Subject(wheel, text), Subject(wrong, text)]
    found = oracle.ask_local_all(subjects)
    assert [each.verdict for each in found] == ["wrong", "right", "wrong", "right", "right"]
    assert {each.package_version for each in found} == {"9.9"}
    assert (wrong / PATH).read_text(encoding="utf-8") != text


def test_only_what_is_executed_is_unpacked(tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site")
    target = oracle._unpacked(Subject(wheel_of(folder, tmp_path / "a.whl")), tmp_path / "target")
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert files == [PATH, "sglang-9.9.dist-info/METADATA"] or files == ["sglang-9.9.dist-info/METADATA", PATH]
    assert not (tmp_path / "sglang-1.0.dist-info").exists()


@needs_torch
def test_neither_a_wheel_nor_a_folder_with_the_engine(tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_text("no archive", encoding="utf-8")
    for where in (broken, tmp_path / "missing.whl"):
        with pytest.raises(PreconditionFailed, match="neither a folder nor a readable wheel"):
            oracle.ask_local(where)
    with pytest.raises(PackageNotInstalled, match="no sglang"):
        oracle.ask_local(tmp_path)


# --- on a host


@pytest.fixture
def transport() -> Iterator[Transport]:
    with connect(Host(name="here", address="local")) as opened:
        yield opened


@needs_torch
def test_on_a_host(transport: Transport, tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site", "width = longest = D; mask_width = S")
    found = oracle.ask(transport, str(folder), sys.executable)
    assert (found.verdict, found.summary) == ("wrong", "eager and graph path from bs=2 on: mask_indptr")
    assert found.package_version == "9.9"
    assert found.document["path_results"]


def test_a_host_where_torch_cannot_be_imported(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    shadow = tmp_path / "path" / "torch.py"
    shadow.parent.mkdir()
    shadow.write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n", encoding="utf-8")
    found = oracle.ask(transport, str(toy_engine.install(tmp_path / "site")), sys.executable, real=False)
    assert found.verdict == "cannot_tell"
    assert "torch cannot be imported" in found.why
    assert "libcudart.so.12" in found.why


def test_a_host_without_the_file_or_the_interpreter(transport: Transport, tmp_path: Path) -> None:
    found = oracle.ask(transport, str(tmp_path), sys.executable)
    assert (found.verdict, found.package_version) == ("cannot_tell", None)
    assert "is not in" in found.why
    found = oracle.ask(transport, str(tmp_path), str(tmp_path / "no-python"))
    assert found.verdict == "cannot_tell"
    assert "No usable Python" in found.why


@needs_torch
def test_a_file_that_takes_the_process_with_it(transport: Transport, tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site", top="import os; os._exit(7)")
    found = oracle.ask(transport, str(folder), sys.executable, real=False)
    assert found.verdict == "cannot_tell"
    assert "exit status 7" in found.why


@needs_torch
def test_a_file_that_does_not_end(transport: Transport, tmp_path: Path) -> None:
    folder = toy_engine.install(tmp_path / "site", top="import time; time.sleep(600)")
    found = oracle.ask(transport, str(folder), sys.executable, real=False, timeout_s=3)
    assert found.verdict == "cannot_tell"
    assert "not done within 3 s" in found.why
    slow, quick = oracle.ask_local_all(
        [Subject(folder), Subject(toy_engine.install(tmp_path / "other"))], each_timeout_s=3
    )
    assert (slow.verdict, quick.verdict) == ("cannot_tell", "right")
    assert "still running after 3 s" in slow.why


# --- what is known of releases


def test_the_table_of_releases() -> None:
    known = releases()
    assert len(known) >= 40
    for release in known.values():
        assert release.oracle == {"present": "wrong", "fixed": "right", "not_applicable": "cannot_tell"}[release.state]
        assert bool(release.lines["qo_indptr"]) == (release.state != "not_applicable")


def test_a_line_that_is_missing_or_too_many_is_named() -> None:
    release = Release("1", "A1", "present", "wrong", {"qo_indptr": ((10, 11), (20, 25))})
    assert misplaced(release, Detection("present", (), "")) == [
        "qo_indptr: line 10 was not found",
        "qo_indptr: line 20 was not found",
    ]


# --- a text in place of the installed file, which is what a fix asks before it changes anything


@pytest.mark.wheel
@needs_torch
def test_a_mended_text_is_right_before_it_is_installed(tmp_path: Path) -> None:
    from diag.fixes.mask_indptr import rewrite

    wheel = wheels.fetch("sglang", "0.5.12")
    for name in ("sglang/srt/layers/attention/utils.py", PATH):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(wheels.read(wheel, name))
    installed = (tmp_path / PATH).read_bytes()
    text = installed.decode()
    with connect(Host(name="here", address="local")) as transport:

        def ask(what: str, fault: str = "mask-indptr") -> OracleAnswer | None:
            return oracle.ask_text(transport, fault, str(tmp_path), sys.executable, what)

        right, wrong, broken = ask(rewrite(text)), ask(text), ask(text + "\ndef (")
        assert right is not None
        assert right.verdict == "right", right.why
        assert wrong is not None
        assert wrong.verdict == "wrong"
        assert broken is not None
        assert broken.verdict == "cannot_tell"
        assert "SyntaxError" in broken.why
        assert ask(text, "mask-indptr-wave") is None
    assert (tmp_path / PATH).read_bytes() == installed
