"""What a bisection says: JSON that is JSON, and a page that holds whatever a host put into it."""

from __future__ import annotations

import json

import pytest

from diag.bisect.decision import Verdict, VerdictKind
from diag.bisect.expr import parse
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.run import Result
from diag.bisect.space import Derived, Factor, Space
from diag.bisect.trial import Outcome, Trial
from diag.report import bisect as report
from diag.verdict.compare import TextVerdict

BUDGET = Factor("budget", "--budget", "flag", 7, 16, (7, 16), "tree budget")
GRAPH = Factor("graph", "--no-graph", "switch_off", False, True, (False, True))
RULE = Derived("mismatch", parse("budget + 1 != 8"), "does not fit")
SPACE = Space((BUDGET, GRAPH), (RULE,))

WILD = "\x1b[31m\u202e\n\ud800"


def trial(number: int, outcome: Outcome, budget: int, *texts: TextVerdict, reason: str = "") -> Trial:
    config = {"budget": budget, "graph": number % 2 == 0}
    return Trial(number, "why", config, SPACE.effective(config, {"graph": False}), outcome, texts, reason)


def result(kind: VerdictKind, culprit: Hypothesis | None = None, *trials: Trial) -> Result:
    verdict = Verdict(kind, "because", culprit, 0.75, sufficient=(2,), necessary=(1,), cleared={"graph": 2})
    return Result("a-run", verdict, trials, 61.0, "a-journal")


GARBLED = TextVerdict("poem", "together", "garbled", WILD, WILD, WILD, 1, 9.0, 1)
TRIALS = (
    trial(1, Outcome.PASS, 7, TextVerdict("poem", "alone", "plausible", "ok", None, "fine")),
    trial(2, Outcome.FAIL, 16, GARBLED, TextVerdict("poem", "alone", "no_answer", "", "ok", "HTTP 500")),
    trial(3, Outcome.SKIP, 16, reason=WILD),
)


@pytest.mark.parametrize("kind", list(report.HEADLINE))
def test_every_verdict_has_a_document_a_page_and_an_exit_code(kind: VerdictKind) -> None:
    culprit = Hypothesis("single", (BUDGET,)) if kind == "culprit" else None
    made = result(kind, culprit, *TRIALS)
    document = report.document(made, SPACE, "box", "a-plan", None)
    assert json.loads(json.dumps(document)) == document
    assert (document["schema"], document["verdict"], document["elapsed_s"]) == (1, kind, 61.0)
    lines = [line for _, line in report.page(made, SPACE, "box", None)]
    assert lines[0].startswith(report.HEADLINE[kind])
    assert any(line.startswith("next: ") for line in lines) == (kind in report.ADVICE)
    assert lines[-1].endswith("a-journal")
    assert report.EXIT[kind] == {"clean": 0, "culprit": 1, "fails": 1}.get(kind, 3)


@pytest.mark.parametrize(
    ("culprit", "factors", "relation", "predicate"),
    [
        (Hypothesis("single", (BUDGET,)), {"budget": 16}, "and", None),
        (Hypothesis("pair", (BUDGET, GRAPH)), {"budget": 16, "graph": True}, "and", None),
        (Hypothesis("either", (BUDGET, GRAPH)), {"budget": 16, "graph": True}, "or", None),
        (Hypothesis("derived", (RULE,)), {}, "and", "budget + 1 != 8"),
    ],
)
def test_the_culprit_for_a_program(
    culprit: Hypothesis, factors: dict[str, object], relation: str, predicate: str | None
) -> None:
    told = report.document(result("culprit", culprit, *TRIALS), SPACE, "box", "a-plan", None)["culprit"]
    assert (told["factors"], told["relation"], told["predicate"]) == (factors, relation, predicate)
    assert (told["name"], told["confidence"]) == (culprit.name, 0.75)


def test_the_table_has_a_line_for_each_trial_and_says_what_was_in_force() -> None:
    header, *rows = [line for _, line in report.table(TRIALS, SPACE)]
    assert header.split()[:4] == ["#", "budget", "graph", "mismatch"]
    assert [row.split()[:4] for row in rows] == [
        ["1", "7", "off", "off"],
        ["2", "16", "off", "on"],
        ["3", "16", "off", "on"],
    ]
    assert "0/1" in rows[0]
    assert rows[1].split()[4:7] == ["1/1", "1/1", "GARBLED"]
    assert "did not start" in rows[2]
    assert [line for _, line in report.table((), SPACE)]


def test_a_knob_without_effect_is_named_from_the_trials_that_ran() -> None:
    assert report.document(result("narrowed", None, *TRIALS), SPACE, "box", "p", None)["no_effect"] == ["graph"]
    assert report.document(result("narrowed", None, *TRIALS[:1]), SPACE, "box", "p", None)["no_effect"] == []


def test_a_text_from_the_host_stays_on_its_line() -> None:
    lines = [line for _, line in report.page(result("narrowed", None, *TRIALS), SPACE, "box", None)]
    (garbled,) = [line for line in lines if line.startswith("  garbled")]
    assert garbled == "  garbled  \\x1b[31m\\u202e\\n\\ud800"
    assert "\n" not in report.trial_line(TRIALS[2], SPACE.bad)
    assert "\x1b" not in report.trial_line(TRIALS[2], SPACE.bad)


def test_the_faulty_lines_are_shown_with_their_numbers_and_lead_to_the_fix() -> None:
    source = report.FaultySource(
        "mask-indptr", "t", "present", "x.py", "sglang 0.5.12", "0" * 64, ((9, "f", "a = b"), (12, "f", "c"))
    )
    made = result("culprit", Hypothesis("derived", (RULE,)), *TRIALS)
    lines = [line for _, line in report.page(made, SPACE, "box", source)]
    assert "       9 | a = b" in lines
    assert any("diag fix apply box mask-indptr --diff" in line for line in lines)
    assert report.document(made, SPACE, "box", "p", source)["source"]["sites"][1] == {
        "line": 12,
        "symbol": "f",
        "text": "c",
    }
