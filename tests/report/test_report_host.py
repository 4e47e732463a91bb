"""The page and the document of `diag probe host`, from a report that is made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diag.probe import HostReport, InstalledFault, ServerHealth
from diag.report import host as report
from diag.source.detect import Detection, Site, State
from diag.verdict.compare import TextVerdict
from diag.verdict.findings import findings

FACTS: dict[str, Any] = {
    "hostname": "box",
    "os": "Debian",
    "kernel": "6.1",
    "machine": "x86_64",
    "cpu": {"count": 2, "model": None},
    "memory_bytes": 8 << 30,
    "memory_available_bytes": None,
    "disk": [{"path": "/", "free_bytes": 1 << 30, "total_bytes": 2 << 30}],
    "gpus": [{"index": 0, "name": "H200", "memory_total_mib": 143771, "memory_used_mib": 0}],
    "driver": "570.1",
    "cuda": "12.8",
}
SOURCE = "class TritonAttnBackend:\n    def f(self):\n        x = 1\n"


def made(state: State = "present", *texts: TextVerdict, argv: str = "serve") -> HostReport:
    site = Site("TritonAttnBackend.f", 3, "        x = 1", "qo_indptr", "server")
    fault = InstalledFault(
        "mask-indptr", "title", "sglang", None, "/sp", "b.py", "pristine", 1.0, Detection(state, (site,), "why"), SOURCE
    )
    facts = {"engine": "sglang", "port": 30000, "pid": 7, "argv": [argv], "started_at_unix": 0.0, "site_packages": "/x"}
    server = ServerHealth(facts, {"speculative_eagle_topk": 4, "unrelated": 1}, texts)
    environment = {"python": "/py", "kind": "venv", "python_version": "3.11", "packages": {"torch": "2.9"}}
    document = {"facts": FACTS, "environments": [environment], "sources": [], "servers": [facts], "unknown": []}
    return HostReport("box", document, (fault,), (server,), "quick")


def lines(told: HostReport) -> list[str]:
    return [line for _, line in report.page(told, findings(told))]


@pytest.mark.parametrize(
    ("state", "first"),
    [
        ("present", "box: 1 fault found"),
        ("fixed", "box: healthy"),
        ("not_applicable", "box: healthy"),
        ("unknown", "box: no fault seen, but not everything could be told"),
    ],
)
def test_the_first_line_is_the_answer(state: State, first: str) -> None:
    assert lines(made(state))[0] == first


def test_the_faulty_line_is_shown_with_its_number() -> None:
    page = lines(made())
    assert "  TritonAttnBackend.f" in page
    assert "    > 3 |         x = 1" in page
    assert not any("x = 1" in line for line in lines(made("not_applicable")))


def test_what_is_in_force_and_what_was_answered() -> None:
    garbled = TextVerdict("poem", "alone", "garbled", "a\x1b[31m\nb", None, "far off", worst_gap_nats=9.0)
    page = lines(made("fixed", garbled))
    assert page[0] == "box: 1 fault found"
    assert "  in force: speculative_eagle_topk=4" in page
    assert "            a\\x1b[31m\\nb" in page
    assert any("1970-01-01 00:00:00 UTC" in line for line in page)
    assert any("? available" in line for line in page)


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        ((), "healthy"),
        ((TextVerdict("a", "alone", "plausible", "", None, ""),), "healthy"),
        ((TextVerdict("a", "alone", "wrong", "", None, ""),), "garbled"),
    ],
)
def test_the_document_is_json(texts: tuple[TextVerdict, ...], verdict: str) -> None:
    told = made("present", *texts)
    document = report.document(told, findings(told))
    assert json.loads(json.dumps(document)) == document
    assert document["servers"][0]["verdict"] == verdict
    assert document["faults"][0]["sites"][0]["line"] == 3
    assert document["schema"] == 1
