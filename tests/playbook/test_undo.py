"""What a run changes it gives back: at its end, on a failure, on Ctrl-C, when it is resumed; and what is kept stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.errors import LinkLost
from diag.playbook import course as courses
from diag.playbook.steps import fixes, servers
from tests.playbook import toys
from tests.playbook.conftest import Told
from tests.playbook.toys import Toy

pytestmark = pytest.mark.wheel

Playbook = Callable[..., Told]
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
HEAD = "schema: 1\nkind: playbook\nname: mine\n"


def written(toy: Toy, steps: str, head: str = "") -> str:
    path = toy.root / "mine.yaml"
    path.write_text(f"{HEAD}{head}steps:\n{steps}")
    return str(path)


def steps_of(told: Told, host: str = "toy") -> dict[str, Any]:
    return {step["id"]: step for step in told.document["hosts"][host]["steps"]}


def changes_of(told: Told, host: str = "toy") -> list[tuple[str, str]]:
    return [(change["state"], change["by"]) for change in told.document["hosts"][host]["changes"]]


def valid(told: Told, schema: str) -> None:
    jsonschema.validate(told.document, json.loads((SCHEMAS / f"{schema}.json").read_text()))


MEND = "  - {id: mend, fix.apply: mask-indptr}\n"
SERVE = "  - {id: up, server.start: {plan: ddtree-garble, end: good}}\n"
FALSE = "  - {id: never, assert: mend.changed == false}\n"


def test_at_the_end_in_reverse_order(toy: Toy, playbook: Playbook) -> None:
    told = playbook("run", written(toy, MEND + SERVE), "toy", "--json")
    assert told.code == 0, told.err
    assert changes_of(told) == [("given back", "run: end"), ("given back", "run: end")]
    back = [one["change"] for one in toys.entries(toy.runs()[0]) if one["kind"] == "undone"]
    assert back == ["c2", "c1"]
    assert toy.is_pristine()
    valid(told, "playbook-run")


def test_on_a_failure_and_what_comes_last_sees_the_host_as_it_is_left(toy: Toy, playbook: Playbook) -> None:
    book = written(toy, MEND + FALSE + "  - {id: rest, note: never said}\nfinally:\n  - {id: last, probe.source: {}}\n")
    told = playbook("run", book, "toy", "--json")
    assert (told.code, told.document["verdict"]) == (1, "failed")
    assert "mend.changed == false" in told.document["why"]
    steps = steps_of(told)
    assert [steps[name]["state"] for name in ("mend", "never", "rest", "last")] == [
        "done",
        "failed",
        "not begun",
        "done",
    ]
    assert steps["last"]["result"]["values"]["pristine"] is True
    assert changes_of(told) == [("given back", "run: failure")]


@pytest.mark.parametrize(("on_failure", "state"), [("stop", "kept"), ("undo", "given back")])
def test_what_is_kept_stays_unless_the_failure_says_undo(
    toy: Toy, playbook: Playbook, on_failure: str, state: str
) -> None:
    step = f"  - {{id: never, assert: mend.changed == false, on_failure: {on_failure}}}\n"
    told = playbook("run", written(toy, MEND + step, "keep: [mend]\n"), "toy", "--json")
    assert told.code == 1
    assert [change for change, _ in changes_of(told)] == [state]
    assert toy.is_pristine() is (state == "given back")
    again = playbook("resume", told.document["run"], "--undo", "--json")
    valid(again, "playbook-undo")
    assert (again.code, len(again.document["changes"])) == (0, int(state == "kept"))
    assert toy.is_pristine()


def test_a_second_run_has_nothing_to_change_and_says_so(toy: Toy, playbook: Playbook) -> None:
    book = written(toy, MEND, "keep: [mend]\n")
    first, second = playbook("run", book, "toy"), playbook("run", book, "toy")
    assert (first.code, second.code) == (0, 0)
    assert "Kept: mask-indptr in" in first.out
    assert "Nothing had to be changed." in second.out
    assert "nothing to do" in second.out
    ahead = playbook("run", book, "toy", "--dry-run", "--json")
    assert [step["foreseen"] for step in ahead.document["hosts"]["toy"]] == ["no change"]


def test_a_fix_that_somebody_else_applied_is_not_taken_away(toy: Toy, playbook: Playbook) -> None:
    playbook("run", written(toy, MEND, "keep: [mend]\n"), "toy")
    mended = toy.file.read_bytes()
    told = playbook("run", written(toy, MEND + FALSE.replace("false", "true")), "toy", "--json")
    assert (told.code, changes_of(told)) == (1, [])
    assert toy.file.read_bytes() == mended
    told = playbook("run", written(toy, "  - {id: back, fix.revert: mask-indptr}\n"), "toy", "--json")
    assert changes_of(told) == [("given back", "run: end")]
    assert toy.file.read_bytes() == mended, "the run reverted it, and gave it back"


def test_a_step_that_is_passed_over_counts(toy: Toy, playbook: Playbook) -> None:
    steps = MEND + FALSE.replace("}", ", on_failure: continue}") + "  - {id: rest, note: said, when: mend.changed}\n"
    told = playbook("run", written(toy, steps), "toy", "--json")
    assert (told.code, told.document["verdict"]) == (1, "found")
    assert steps_of(told)["rest"]["state"] == "done"


def test_what_cannot_be_told_is_left_out_or_inconclusive(toy: Toy, playbook: Playbook) -> None:
    steps = "  - {id: out, note: never, when: 1 > 2}\n  - {id: src, probe.source: {}, when: 1 > 2}\n"
    steps += "  - {id: after, note: never, when: src.pristine}\n  - {id: known, assert: src.pristine}\n"
    told = playbook("run", written(toy, steps), "toy", "--json")
    assert (told.code, told.document["verdict"]) == (3, "failed")
    states = [step["state"] for step in steps_of(told).values()]
    assert states == ["skipped", "skipped", "skipped", "failed"]


def interrupt(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The next probe.source ends so, once."""
    from diag.source import inspection

    real, left = inspection.inspect, [error]

    def inspect(*words: Any, **more: Any) -> Any:
        if left:
            raise left.pop()
        return real(*words, **more)

    monkeypatch.setattr(inspection, "inspect", inspect)


STORY = MEND + SERVE + "  - {id: src, probe.source: {}}\n  - {id: asked, probe.prompts: {server: up}}\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LinkLost("gone")], ids=["ctrl-c", "lost"])
def test_ctrl_c_and_a_lost_link_give_back_and_it_can_be_gone_on_with(
    toy: Toy, playbook: Playbook, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    interrupt(monkeypatch, error)
    told = playbook("run", written(toy, STORY, "answer: src\n"), "toy", "--json")
    assert told.code == (130 if isinstance(error, KeyboardInterrupt) else 4)
    (journal,) = toy.runs()
    assert journal.parent.name in told.document["error"]["next"]
    assert toys.outstanding(journal) == []
    assert toy.is_pristine()
    assert toy.servers() == []
    again = playbook("resume", journal.parent.name, "--json")
    assert again.code == 0, again.err
    assert {step["state"] for step in steps_of(again).values()} == {"done"}
    assert steps_of(again)["asked"]["result"]["values"]["answers"] == 6, "it was started again to be asked"
    assert toy.is_pristine()
    assert toys.outstanding(journal) == []
    once_more = playbook("resume", journal.parent.name, "--json")
    assert (once_more.code, once_more.document) == (0, again.document)


def test_what_cannot_be_given_back_is_said_and_the_rest_is(
    toy: Toy, playbook: Playbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody edits the mended file while the run is at it: what they wrote is not overwritten."""
    interrupt(monkeypatch, KeyboardInterrupt())
    real = courses.Course._interrupted

    def edited(course: Any) -> None:
        with toy.file.open("a") as file:
            file.write("# somebody's\n")
        real(course)

    monkeypatch.setattr(courses.Course, "_interrupted", edited)
    told = playbook("run", written(toy, STORY), "toy", "--json")
    assert told.code == 130
    assert told.document["error"]["details"] == [f"not given back: mask-indptr in {toy.file}"]
    (journal,) = toy.runs()
    assert len(toys.outstanding(journal)) == 1
    assert toy.servers() == []
    undone = playbook("resume", journal.parent.name, "--undo", "--json")
    assert (undone.code, undone.document["changes"][0]["given_back"]) == (5, False)
    assert toy.file.read_bytes().endswith(b"# somebody's\n")


def test_a_changed_playbook_is_refused_with_the_difference_but_a_comment_is_not(
    toy: Toy, playbook: Playbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, KeyboardInterrupt())
    book = Path(written(toy, STORY, "answer: src\n"))
    playbook("run", str(book), "toy", "--json")
    run = toy.runs()[0].parent.name
    text = book.read_text()
    book.write_text(text.replace("server: up", "server: up, suite: quick"))
    told = playbook("resume", run)
    assert told.code == 5
    assert "+  - {id: asked, probe.prompts: {server: up, suite: quick}}" in told.err
    assert playbook("resume", run, "--undo").code == 0
    book.write_text(f"# a comment\n{text}")
    assert playbook("resume", run, "--json").code == 0


def test_a_server_that_does_not_start_is_an_error_of_its_step(toy: Toy, playbook: Playbook) -> None:
    (toy.site / "sglang" / "launch_server.py").write_text("raise SystemExit('ImportError: no such thing')\n")
    told = playbook("run", written(toy, MEND + SERVE), "toy", "--json")
    assert (told.code, told.document["verdict"]) == (5, "failed")
    assert any("no such thing" in line for line in steps_of(told)["up"]["result"]["said"])
    assert toy.is_pristine()


def test_a_dry_run_says_what_would_change_and_does_nothing(toy: Toy, playbook: Playbook) -> None:
    steps = "  - {id: src, probe.source: {}}\n" + MEND + "  - {id: back, fix.revert: mask-indptr}\n" + SERVE
    steps += "  - {id: maybe, fix.apply: mask-indptr, when: src.faults}\n  - {id: no, note: x, when: 1 > 2}\n"
    told = playbook("run", written(toy, steps), "toy", "--dry-run", "--json")
    valid(told, "playbook-dry-run")
    foreseen = [step["foreseen"] for step in told.document["hosts"]["toy"]]
    assert foreseen == ["no change", "change", "change", "change", "cannot tell until run", "no change"]
    assert (told.code, toy.runs(), toy.is_pristine()) == (0, [], True)
    page = playbook("run", written(toy, steps), "toy", "--dry-run")
    assert "cannot tell until run  maybe" in page.out


def test_every_undo_of_the_journal_is_known() -> None:
    from diag.playbook.undo import UNDO

    assert set(UNDO) == {fixes.REVERT, fixes.APPLY, servers.STOP}
