"""A run told from its journal: as a document, on a terminal, as an issue, for a CI; whole, cut off, or an older one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest
from jsonschema import Draft202012Validator

from diag.cli import run as command_line
from diag.records import runs
from diag.report import junit, markdown, run, run_page
from tests.lab_fixture import Ran
from tests.records.journals import START, finished, journal, line
from tests.records.journals import trial as plain_trial
from tests.report import stories

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "state"


def told(name: str) -> dict[str, Any]:
    made = run.document(runs.whole(name), runs.whole)
    schema = json.loads((ROOT / "docs/schemas/report.json").read_text())
    assert [e.message for e in Draft202012Validator(schema).iter_errors(json.loads(json.dumps(made)))] == []
    return made


def lines(made: dict[str, Any]) -> list[str]:
    return [line for _, line in run_page.page(made)]


def test_the_answer_is_the_first_three_lines_as_it_was_given(state: Path) -> None:
    stories.bisection(state)
    made = told(stories.BISECTION)
    page = lines(made)
    assert page[0].startswith("CULPRIT   the verify step")
    assert [part.strip() for part in page[:3]] == made["answer"]
    assert page[3] == ""
    assert made["exit_code"] == 1
    assert page.index("# budget  topk  mismatch  alone  at once  verdict  start s  total s") > page.index(
        "sufficient    the good configuration fails with it alone (trial 4)"
    )
    assert made["not_recorded"] == []


def test_what_is_in_it_is_from_the_journal(state: Path) -> None:
    stories.bisection(state)
    made = told(stories.BISECTION)
    assert made["counts"] == {"trials": 6, "pass": 3, "fail": 3, "skip": 0, "infra": 0, "starts": 6}
    assert [(r["what"], r["garbled"], r["tried"]) for r in made["rates"]] == [
        ("with the culprit", 3, 3),
        ("without it", 0, 3),
    ]
    assert 0.29 < made["rates"][0]["low"] < 0.30
    assert [point["after"] for point in made["posterior"]] == [2, 3, 4]
    (pair,) = made["texts"]
    assert (pair["trial"], pair["asked"], pair["common"], pair["diverges_at"]) == (2, "Write a poem", 6, 1)
    assert pair["text"][: pair["common"]] == pair["healthy"][: pair["common"]] == "A poem"
    assert pair["gaps_nats"][1] == 24.9
    assert [made["commands"][end]["trial"] for end in ("failing", "good")] == [4, 1]
    assert [trial["shows"] for trial in made["trials"]][3] == ["sufficient", "clears topk"]
    assert made["in_force"] == {
        "trial": 2,
        "telling": {"attention_backend": "triton", "speculative_ddtree_budget": 16},
        "differs": [["speculative_ddtree_budget", 7, 16]],
    }
    totals = {total["kind"]: total["seconds"] for total in made["time"]["totals"]}
    assert totals["start"] == 120.0
    assert totals["away"] == 65.0
    assert sum(totals.values()) == pytest.approx(made["elapsed_s"], abs=2.0)


def test_a_run_that_was_cut_off_is_told_as_far_as_it_came(state: Path) -> None:
    path = stories.bisection(state)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
    made = told(stories.BISECTION)
    assert made["answer"][0] == "CUT OFF   there is no verdict yet"
    assert "budget=16 (60%)" in made["answer"][1]
    assert made["exit_code"] == 3
    assert len(made["trials"]) == 3


def test_a_journal_of_an_older_diag_says_what_it_does_not_hold(state: Path) -> None:
    path = finished(state)
    made = told(path.parent.name)
    assert made["answer"][0] == "CULPRIT   budget=16"
    assert "the reasons as they were given" in made["not_recorded"]
    assert "what the hosts say of themselves" in made["not_recorded"]
    assert any(line.startswith("not recorded: ") for line in lines(made))
    assert [factor["name"] for factor in made["factors"]] == ["budget"]


def test_a_command_is_told_with_its_factors(state: Path) -> None:
    details = {"command": "test $DIAG_BUDGET -lt 9", "exit_code": 1}
    trials = (plain_trial(1, details=details), plain_trial(2, "fail", details=details))
    journal(state, "20261129-120000-dddddd", line("start", **START), *trials)
    failing = told("20261129-120000-dddddd")["commands"]["failing"]
    assert failing["argv"] == ["sh", "-c", "test $DIAG_BUDGET -lt 9"]
    assert failing["env"] == {"DIAG_BUDGET": "16"}


def test_a_run_without_a_trial(state: Path) -> None:
    journal(state, "20261129-120000-bbbbbb", line("start", **START))
    made = told("20261129-120000-bbbbbb")
    assert made["trials"] == []
    assert made["rates"] == []
    assert lines(made)


def test_of_very_many_trials_the_telling_ones_are_listed(state: Path) -> None:
    many = [plain_trial(n, "fail" if n % 2 else "pass") for n in range(1, 1001)]
    document = {
        "answer": ["CULPRIT   x"],
        "reasons": [],
        "sufficient": [501],
        "necessary": [500],
        "cleared": {"b": 502},
    }
    ends = line("verdict", verdict="culprit", culprit="x"), line("report", document=document)
    outlooks = [line("outlook", after=n, standing=[["x", 0.5]], rest=1) for n in range(2, 1001)]
    journal(state, "20261129-120000-cccccc", line("start", **START), *many, *outlooks, *ends)
    made = told("20261129-120000-cccccc")
    assert (len(made["trials"]), made["trials_left_out"]) == (123, 877)
    assert {500, 501, 502, 1, 1000} <= {trial["number"] for trial in made["trials"]}
    assert made["counts"]["trials"] == 1000
    assert len(made["posterior"]) <= run.MAX_POINTS + 1
    assert made["posterior"][-1]["after"] == 1000
    assert any("960 more" in line for line in lines(made))


def test_a_playbook_is_told_with_the_runs_it_began(state: Path) -> None:
    stories.playbook(state)
    made = told(stories.PLAYBOOK)
    assert [(step["id"], step["state"]) for step in made["steps"]] == [
        *(("look", "done"), ("find", "done"), ("mend", "done"), ("again", "failed"), ("later", "skipped")),
    ]
    assert made["steps"][0]["summary"] == "look: as expected"
    assert made["changes"][0]["undone"] is True
    assert [host["host"] for host in made["facts"]] == ["gpu1"]
    assert [part["run"] for part in made["parts"]] == [stories.BISECTION]
    page = lines(made)
    assert page[0] == "FAILED   again: it cannot be told"
    assert any("CULPRIT" in line for line in page)


# --- an issue ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("project", "headings"),
    [
        ("sglang", ["### Checklist", "### Describe the bug", "### Reproduction", "### Environment"]),
        ("vllm", ["### Your current environment", "### 🐛 Describe the bug", "### Before submitting a new issue..."]),
        ("generic", ["## What happens", "## How to reproduce it", "## Environment"]),
    ],
)
def test_an_issue_has_what_the_project_asks_for(state: Path, project: Any, headings: list[str]) -> None:
    stories.playbook(state)
    for name in (stories.BISECTION, stories.PLAYBOOK):
        issue = markdown.issue(told(name), project)
        places = [issue.index(f"{heading}\n") for heading in headings]
        assert places == sorted(places)
        assert "--budget 16" in issue
        assert "--budget 7" in issue
        assert '"prompt": "Write a poem"' in issue
        assert "8 × NVIDIA H200" in issue
        assert "3 of 3 starts fail (95 %: 29% to 100%)" in issue
        assert "topk=4: passed with it (trial 3)" in issue
        assert "   364 |     mask = a < b" in issue


def test_nothing_a_host_wrote_is_read_as_markup(state: Path) -> None:
    """All of it stands in code: outside of code there is no mention, no tag and no fence of a host's."""
    hostile = "```\n@someone <img src=x> ~~~ `x` | y\n```` \u202e"
    stories.playbook(state, hostile, hostile)
    issue = markdown.issue(told(stories.PLAYBOOK), "sglang")
    outside, fence = [], ""
    for each in issue.splitlines():
        if fence:
            fence = "" if each == fence else fence
        elif (opened := re.match(r"(`{3,})\w*$", each)) is not None:
            fence = opened[1]
        else:
            outside.append(re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", each))
    assert fence == ""
    assert not any("@someone" in each or "<img" in each for each in outside)
    assert "\u202e" not in issue


# --- for a CI ------------------------------------------------------------------------------------------------------


def test_a_gate_fails_where_a_fault_was_found(state: Path) -> None:
    stories.playbook(state)
    root = xml.fromstring(junit.suite(told(stories.BISECTION)))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "1", "failures": "1", "errors": "0", "skipped": "0"}
    (case,) = suite.findall("testcase")
    assert "CULPRIT" in str(case.find("failure").get("message"))  # type: ignore[union-attr]
    assert "budget" in str(case.findtext("system-out"))


def test_each_step_is_a_case(state: Path) -> None:
    hostile = "\x00\x1b[31m\ufffe]]> & <x>"
    stories.playbook(state, said=hostile)
    (suite,) = xml.fromstring(junit.suite(told(stories.PLAYBOOK)))
    cases = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    assert cases == {
        "look on gpu1": ["system-out"],
        "find on gpu1": ["system-out"],
        "mend on gpu1": ["system-out"],
        "again on gpu1": ["failure", "system-out"],
        "later on gpu1": ["skipped", "system-out"],
        "verdict": ["error", "system-out"],
    }
    assert suite.get("timestamp") == "1970-01-01T00:16:40"


# --- the command ---------------------------------------------------------------------------------------------------

Diag = Callable[..., Ran]


@pytest.fixture
def diag(capsys: pytest.CaptureFixture[str]) -> Diag:
    """The command line in this process."""

    def call(*arguments: str) -> Ran:
        code = command_line(list(arguments))
        return Ran(code, *capsys.readouterr())

    return call


def test_the_command_writes_all_forms_and_tells_no_names(diag: Diag, state: Path, tmp_path: Path) -> None:
    stories.playbook(state)
    made = diag("report", "--html", str(tmp_path / "r.html"), "--junit", str(tmp_path / "r.xml"), "--share")
    assert (made.code, made.out.splitlines()[0]) == (3, "FAILED   again: it cannot be told")
    assert "replaced: " in made.err
    for file in ("r.html", "r.xml"):
        content = (tmp_path / file).read_text()
        assert not re.search("alice|secret-box", content), file
    page = (tmp_path / "r.html").read_text()
    assert "Replaced before this was written: " in page
    assert len(set(re.findall(r"user-[0-9a-f]{6}", page))) == 1
    issue = diag("report", stories.BISECTION, "--markdown", "--share")
    assert issue.code == 1
    assert "### Checklist" in issue.out  # of the engine that it is about
    assert "alice" not in issue.out
    assert json.loads(diag("report", stories.BISECTION, "--json").out)["verdict"] == "culprit"


def test_wrong_input(diag: Diag, state: Path, tmp_path: Path) -> None:
    assert "no run to report" in diag("report").err
    stories.bisection(state)
    assert diag("report", "20261129-120000-aaaaaa.finx").code == 2
    refused = diag("report", stories.BISECTION, "--html", str(tmp_path / "none" / "x.html"))
    assert (refused.code, "cannot be written" in refused.err) == (5, True)
    assert diag("report", stories.BISECTION, "--markdown", "--json").code == 2
    journal(state, "20261129-130000-dddddd", line("start", **START), b"broken\n")
    assert diag("report", "20261129-130000-dddddd").code == 5


def test_runs_are_compared_exported_and_taken_in(
    diag: Diag, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.playbook(state)
    stories.bisection(state, "20261130-120000-eeeeee", answer=["CLEAN   it is"], verdict="clean", culprit=None)
    ran = diag("runs", "diff", stories.BISECTION, "20261130-120000-eeeeee", "--json")
    told = json.loads(ran.out)
    schema = json.loads((ROOT / "docs/schemas/runs-diff.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(told)) == []
    assert {"group": "run", "what": "culprit", "before": "budget=16", "after": "(absent)"} in told["changes"]
    assert "culprit: budget=16 -> (absent)" in diag("runs", "diff", stories.BISECTION, "20261130-120000-eeeeee").out
    assert diag("runs", "diff", stories.BISECTION, stories.BISECTION).out == "nothing that is recorded differs\n"
    file = tmp_path / "run.tar.gz"
    assert "2 runs" in diag("runs", "export", stories.PLAYBOOK, str(file), "--share").out
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "other"))
    taken = json.loads(diag("runs", "import", str(file), "--json").out)
    schema = json.loads((ROOT / "docs/schemas/runs-moved.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(taken)) == []
    assert taken["runs"] == [stories.PLAYBOOK, stories.BISECTION]
    told = json.loads(diag("report", "--json").out)
    assert told["parts"][0]["verdict"] == "culprit"
    assert "alice" not in json.dumps(told)
    assert json.loads(diag("runs", "rm", stories.PLAYBOOK, "--json").out)["runs"] == [stories.PLAYBOOK]
    assert [run.run for run in runs.listed()] == [stories.BISECTION]
