"""The schemas in docs/schemas are schemas, and what the report functions make is valid by them.

Real documents, of a running host, are checked in the end-to-end tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from diag import bundle, errors
from diag.bisect import plan
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import BothEnds, Next, Search, VerdictKind
from diag.bisect.run import Result
from diag.bisect.trial import Outcome, Trial
from diag.cli import fix as fix_command
from diag.cli import run
from diag.fixes import catalogue
from diag.fixes.transaction import Installed, Process, Standing
from diag.lab import control
from diag.lab.layout import Lab
from diag.probe import HostReport, InstalledFault, ServerHealth
from diag.report import bisect as bisect_report
from diag.report import host as host_report
from diag.source.detect import Detection, Site
from diag.verdict.compare import Kind, TextVerdict
from diag.verdict.findings import findings

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def problems(name: str, document: Mapping[str, Any]) -> list[str]:
    """What is wrong with the document as a program reads it, after JSON and back."""
    whole = json.loads(json.dumps(document))
    return [f"{error.json_path}: {error.message[:300]}" for error in validator(name).iter_errors(whole)]


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_is_one_and_closed_at_the_top(path: Path) -> None:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"] == {"const": 1}
    assert schema["additionalProperties"] is False
    assert "schema" in schema["required"]


def test_one_schema_for_each_kind_of_document() -> None:
    """Each is named on the page of documents, and no other."""
    page = (SCHEMAS.parent / "json.md").read_text()
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(re.findall(r"\(schemas/([\w-]+)\.json\)", page))


# --- probe host ------------------------------------------------------------------------------------------------

TEXT = TextVerdict("poem", "alone", "garbled", "poemowners", None, "token 1 is 9.0 nats below", None, 9.0, 1, 1.5)
DETECTION = Detection("present", (Site("TritonAttnBackend.m", 7, "    x", "seq_mask_len", "server"),), "line 7")


def _looked() -> dict[str, Any]:
    """What the program on the host answers here and now."""
    document: dict[str, Any] = bundle.load("probes.host").run({"files": [], "packages": []})
    return document


def _report(document: dict[str, Any], servers: tuple[ServerHealth, ...]) -> HostReport:
    fault = InstalledFault(
        "mask-indptr", "t", "sglang", None, "/site", catalogue.FIXES[0].file, "edited", 1.5, DETECTION, "a\n" * 9
    )
    return HostReport("gpu1", document, (fault,), servers, "quick")


def test_a_host_report_is_valid() -> None:
    document = _looked()
    facts = {"pid": 1, "argv": ["x"], "engine": "sglang", "python": None, "site_packages": None, "cwd": None}
    facts |= {"port": 30000, "host": None, "listening": [], "started_at_unix": None, "started_at_utc": None}
    facts |= {"user": None, "run_id": None, "env": {}, "orphan": False, "other_mounts": False}
    effective = {"speculative_num_draft_tokens": 8, "speculative_ddtree_budget": 16, "anything": [None]}
    servers = (ServerHealth(facts, effective, (TEXT,)), ServerHealth(facts, unknown="not asked"))
    report = _report(document, servers)
    made = host_report.document(report, findings(report))
    assert problems("probe-host", made) == []
    assert {finding["id"] for finding in made["findings"]} >= {"mask-indptr", "server-garbled", "file-edited"}


def test_sources_as_the_host_tells_them_are_valid(tmp_path: Path) -> None:
    """An installation in small: a file as in its wheel, one edited, one missing, one that is not listed."""
    info = tmp_path / "sglang-0.5.12.dist-info"
    info.mkdir()
    (tmp_path / "sglang").mkdir()
    (info / "RECORD").write_text(
        "sglang/empty.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
        "sglang/edited.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
        "sglang/gone.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
    )
    (tmp_path / "sglang/empty.py").touch()
    (tmp_path / "sglang/edited.py").write_text("x = 1\n")
    (tmp_path / "sglang/more.py").touch()
    names = [f"sglang/{name}.py" for name in ("empty", "edited", "gone", "more")]
    inspect = bundle.load("probes.integrity").inspect
    source = inspect(str(tmp_path), [str(tmp_path)], "sglang", names, True)
    source.pop("unknown")
    for file in source["files"]:
        file.pop("content_b64")
    report = HostReport("gpu1", {**_looked(), "sources": [source]}, (), (), "quick")
    made = host_report.document(report, findings(report))
    assert problems("probe-host", made) == []
    assert {finding["id"] for finding in made["findings"]} >= {"no-engine", "package-changed"}


# --- bisect ----------------------------------------------------------------------------------------------------


def _simulated(fails, search: Search | None = None, max_trials: int = 32) -> tuple[Result, plan.Plan]:
    """A run of the shipped plan against a server that fails where `fails(effective)` is true."""
    shipped = plan.load("ddtree-garble")
    decide = search or BayesianSearch(shipped.space, deterministic=True, max_trials=max_trials)
    trials: list[Trial] = []
    while isinstance(step := decide.next(trials), Next):
        effective = shipped.space.effective(step.config, {"padded_rows": 3})
        outcome = fails({**effective, "number": len(trials) + 1})
        trials.append(_trial(len(trials) + 1, step, effective, outcome))
    return Result("run-1", step, tuple(trials), 1.25, "/state/journal.jsonl"), shipped


def _trial(number: int, step: Next, effective: Mapping[str, Any], outcome: Outcome | bool) -> Trial:
    if isinstance(outcome, bool):
        outcome = Outcome.FAIL if outcome else Outcome.PASS
    details = {"log": ["bad"]} if outcome is Outcome.SKIP else {"argv": ["x"], "env": {}, "stopped": {"left": []}}
    texts = (TEXT,) if outcome is Outcome.FAIL else ()
    return Trial(number, step.purpose, step.config, effective, outcome, texts, "because", ("w",), 1.0, 2.0, details)


def _runs() -> Iterator[tuple[str, Result, plan.Plan]]:
    space = plan.load("ddtree-garble").space
    yield "culprit", *_simulated(lambda v: v["mismatch"])
    yield "culprit", *_simulated(lambda v: v["topk"] == 4 or v["budget"] == 16)
    yield "not_reproduced", *_simulated(lambda v: False)
    yield "environmental", *_simulated(lambda v: True)
    yield "narrowed", *_simulated(lambda v: v["mismatch"], max_trials=3)
    yield "unexplained", *_simulated(lambda v: v["number"] == 3)
    yield "clean", *_simulated(lambda v: False, BothEnds(space))
    yield "fails", *_simulated(lambda v: v["number"] == 2, BothEnds(space))


@pytest.mark.parametrize(
    ("kind", "result", "used"), list(_runs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_verdict_is_valid(kind: str, result: Result, used: plan.Plan) -> None:
    source = bisect_report.FaultySource(
        "mask-indptr", "t", "present", "/f", "sglang 0.5.12", "0" * 64, ((7, "m", "x"),)
    )
    for given in (None, source):
        made = bisect_report.document(result, used.space, "gpu1", used.spec.name, given)
        assert made["verdict"] == kind
        assert problems("bisect", made) == []


def test_no_verdict_is_left_out() -> None:
    assert {kind for kind, _, _ in _runs()} == set(get_args(VerdictKind))
    schema = json.loads((SCHEMAS / "bisect.json").read_text())
    assert set(schema["properties"]["verdict"]["enum"]) == set(get_args(VerdictKind))
    assert set(schema["$defs"]["text"]["properties"]["kind"]["enum"]) == set(get_args(Kind))


# --- fix -------------------------------------------------------------------------------------------------------


def _installed(state: str, outstanding: str | None, holder: Mapping[str, Any] | None) -> Installed:
    stale = Process(7, ("python", "-m", "sglang.launch_server"), 30000, 1.5, "stale")
    unknown = Process(8, (), None, None, "unknown")
    gap = {"what": "server 8", "why": "it belongs to another user"}
    standing = Standing(state, outstanding, "/j", 2.5, holder, (stale, unknown), (gap,))  # type: ignore[arg-type]
    return Installed("/site", None, None, "/site/f.py", b"x", "0" * 64, "edited", ("/other",), standing)


@pytest.mark.parametrize(
    ("command", "state", "outstanding", "holder", "more"),
    [
        ("status", "not_applied", None, None, {}),
        ("status", "outstanding", "apply", {"pid": 1}, {}),
        ("apply --diff", "not_applied", None, None, {"diff": "--- a\n"}),
        ("apply", "applied", None, None, {"changed": True, "recovered": "undone"}),
        ("revert", "modified", "revert", None, {"changed": False, "recovered": None}),
    ],
)
def test_a_document_of_a_fix_is_valid(command, state, outstanding, holder, more) -> None:
    installed = _installed(state, outstanding, holder)
    fix = catalogue.FIXES[0]
    made = fix_command._document(command, "gpu1", fix, installed, DETECTION, installed.standing)
    assert problems("fix", {**made, **more}) == []


# --- lab, errors -----------------------------------------------------------------------------------------------


def test_the_status_of_a_lab_is_valid(tmp_path: Path) -> None:
    assert problems("lab-status", control.status(Lab(tmp_path / "none")).to_json()) == []


def _classes(cls: type[errors.DiagError]) -> Iterator[type[errors.DiagError]]:
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _classes(child)


def test_every_error_is_valid() -> None:
    for cls in _classes(errors.DiagError):
        more = {"problems": ["f:1:1: x"]} if cls is errors.PlanError else {}
        assert problems("error", {"schema": 1, "error": cls("It failed.", next="Do this.", **more).to_json()}) == []


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("explain", ["explain", "mask-indptr"]),
        ("explain-list", ["explain"]),
        ("fix-list", ["fix", "list"]),
        ("fix-show", ["fix", "show", "mask-indptr"]),
        ("plan-new", ["plan", "new", "--command", "vllm serve /m --dtype float16"]),
        ("init", ["init", "--host", "10.0.0.5", "--no-connect"]),
        ("lab-down", ["lab", "down", "--dir", "no-lab"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_document_of_a_command_is_valid(
    schema: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "--json"]) == 0
    assert problems(schema, json.loads(capsys.readouterr().out)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "nothing-like-it"],
        ["explain", "--no-such-option"],
        ["no-such-command"],
        ["host", "show", "no-such-host"],
        ["bisect", "no-such-host"],
        ["fix", "show", "no-such-fix"],
    ],
    ids=" ".join,
)
def test_a_failed_command_prints_a_valid_error(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "--json"]) == 2
    assert problems("error", json.loads(capsys.readouterr().out)) == []
