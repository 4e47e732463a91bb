"""From what a host report holds to findings and an exit code."""

from __future__ import annotations

from typing import Any

import pytest

from diag.probe import HostReport, InstalledFault, ServerHealth
from diag.source.detect import Detection, State
from diag.verdict.compare import Kind, TextVerdict
from diag.verdict.findings import exit_code, findings, verify_width

SITE_PACKAGES = "/opt/venv/lib/python3.11/site-packages"


def document(**more: Any) -> dict[str, Any]:
    return {"facts": {}, "environments": [], "sources": [], "servers": [], "unknown": [], **more}


def fault(state: State, *, integrity: str = "pristine", modified: float | None = 100.0) -> InstalledFault:
    return InstalledFault(
        fault="mask-indptr",
        title="the verify step reads the tree mask at wrong offsets",
        package="sglang",
        version="0.5.12",
        site_packages=SITE_PACKAGES,
        file="sglang/srt/layers/attention/triton_backend.py",
        integrity=integrity,
        modified_at_unix=modified,
        detection=Detection(state, (), "why it is so"),
        text="",
    )


def text(kind: Kind, gap: float | None = None) -> TextVerdict:
    return TextVerdict("poem", "alone", kind, "text", None, f"why {kind}", worst_gap_nats=gap)


def server(*texts: TextVerdict, unknown: str = "", started: float | None = 200.0, **effective: Any) -> ServerHealth:
    facts = {"port": 30000, "pid": 7, "site_packages": SITE_PACKAGES, "started_at_unix": started}
    return ServerHealth(facts, effective, tuple(texts), unknown)


def report(*faults: InstalledFault, servers: tuple[ServerHealth, ...] = (), **more: Any) -> HostReport:
    return HostReport("box", document(**more), faults, servers, "quick")


def ids(made: HostReport) -> list[tuple[str, str]]:
    return [(finding.severity, finding.id) for finding in findings(made)]


@pytest.mark.parametrize(
    ("made", "expected", "code"),
    [
        (report(fault("fixed")), [], 0),
        (report(fault("not_applicable")), [], 0),
        (report(fault("present")), [("fault", "mask-indptr")], 1),
        (report(fault("unknown")), [("unknown", "mask-indptr")], 3),
        (report(fault("fixed", integrity="edited")), [("notice", "file-edited")], 0),
        (report(), [("notice", "no-engine")], 0),
        (report(fault("fixed"), servers=(server(text("plausible"), text("identical"), text("near_tie")),)), [], 0),
        (report(fault("fixed"), servers=(server(text("garbled", 9.0)),)), [("fault", "server-garbled")], 1),
        (report(fault("fixed"), servers=(server(text("wrong")),)), [("fault", "server-garbled")], 1),
        (report(fault("fixed"), servers=(server(text("no_answer")),)), [("fault", "server-not-answering")], 1),
        (report(fault("fixed"), servers=(server(unknown="it does not answer"),)), [("unknown", "server-not-asked")], 3),
        (report(fault("fixed"), servers=(server(started=50.0),)), [("notice", "server-stale")], 0),
        (report(fault("fixed"), servers=(server(started=None),)), [], 0),
        (report(fault("fixed", modified=None), servers=(server(),)), [], 0),
        (report(fault("fixed"), unknown=[{"what": "the GPUs", "why": "no nvidia-smi"}]), [("notice", "not-seen")], 0),
        (
            report(
                fault("unknown"),
                fault("present", integrity="edited"),
                servers=(server(text("garbled", 9.0), unknown="", started=50.0),),
            ),
            [
                ("fault", "mask-indptr"),
                ("fault", "server-garbled"),
                ("unknown", "mask-indptr"),
                ("notice", "file-edited"),
                ("notice", "server-stale"),
            ],
            1,
        ),
    ],
)
def test_what_a_report_amounts_to(made: HostReport, expected: list[tuple[str, str]], code: int) -> None:
    assert ids(made) == expected
    assert exit_code(findings(made)) == code


def test_every_finding_names_the_thing_and_what_to_do() -> None:
    made = report(fault("present"), servers=(server(text("garbled", 2.0), text("garbled", 9.5), text("plausible")),))
    source, running = findings(made)
    assert SITE_PACKAGES in source.what
    assert "0.5.12" in source.what
    assert source.next == "diag fix apply box mask-indptr --diff"
    assert "port 30000 (pid 7) garbles 2 of 3 answers" in running.what
    assert "box" in running.next
    assert running.to_json() == {"id": running.id, "severity": "fault", "what": running.what, "next": running.next}


def test_of_several_garbled_answers_the_worst_is_shown() -> None:
    mild, worst = (
        text("garbled", 2.0),
        TextVerdict("list", "together", "garbled", "", None, "far off", worst_gap_nats=9),
    )
    (found,) = findings(report(fault("fixed"), servers=(server(text("wrong"), mild, worst),)))
    assert "'list' together: far off" in found.what


def test_a_package_that_differs_from_its_wheel_is_said_with_some_of_its_files() -> None:
    checked = {"files": 9, "edited": [f"sglang/{i}.py" for i in range(7)], "missing": ["sglang/gone.py"]}
    source = {"package": "sglang", "version": "0.5.12", "files": [], "record_checked": checked}
    (found,) = findings(report(fault("fixed"), sources=[source]))
    assert (found.severity, found.id) == ("notice", "package-changed")
    assert "sglang 0.5.12 is not what its wheel holds: 7 edited, 1 missing" in found.what
    assert "sglang/0.py" in found.what
    assert findings(report(fault("fixed"), sources=[{**source, "record_checked": None}])) == []


@pytest.mark.parametrize(
    ("effective", "width", "noticed"),
    [
        ({}, None, False),
        ({"speculative_num_draft_tokens": 8}, None, False),
        ({"speculative_ddtree_budget": 7, "speculative_num_draft_tokens": 8}, 8, False),
        ({"speculative_ddtree_budget": 16, "speculative_num_draft_tokens": 8}, 17, True),
        ({"speculative_ddtree_budget": 16, "draft_token_num": 8, "speculative_num_draft_tokens": 8}, 8, False),
        ({"speculative_ddtree_budget": 16, "speculative_num_draft_tokens": None}, 17, False),
        ({"speculative_ddtree_budget": "16"}, None, False),
    ],
)
def test_the_two_numbers_whose_difference_matters(effective: dict[str, Any], width: int | None, noticed: bool) -> None:
    assert verify_width(effective) == width
    found = ids(report(fault("present"), servers=(server(**effective),)))
    assert (("notice", "verify-width-mismatch") in found) is noticed
    mended = ids(report(fault("fixed"), servers=(server(**effective),)))
    assert ("notice", "verify-width-mismatch") not in mended


def test_a_server_that_went_away_is_not_said_to_garble() -> None:
    found = ids(report(fault("fixed"), servers=(server(*[text("no_answer")] * 8),)))
    assert found == [("fault", "server-not-answering")]
    both = ids(report(fault("fixed"), servers=(server(text("no_answer"), text("garbled", 9.0)),)))
    assert both == [("fault", "server-not-answering"), ("fault", "server-garbled")]
