"""Any command as the trial: what its exit code says, and that nothing of it stays."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from diag.bisect.command import CommandBench, environment, judge, texts_from
from diag.bisect.decision import Next
from diag.bisect.executor import Cancelled
from diag.bisect.space import Factor, Space
from diag.bisect.trial import Outcome
from diag.errors import PreconditionFailed

BATCH = Factor("batch", "batch", "trial", 1, 8, (1, 8))
GRAPH = Factor("graph", "graph", "trial", False, True, (False, True))
SPACE = Space((BATCH, GRAPH))


def tried(command: str, timeout_s: float = 30, **config: object) -> object:
    bench = CommandBench(SPACE, command, timeout_s)
    return bench.trial(1, Next({"batch": 8, "graph": True, **config}, "to see"))  # type: ignore[dict-item]


def test_levels_are_in_the_environment() -> None:
    assert environment({"batch": 8, "graph": True, "mode": "a b"}) == {
        "DIAG_BATCH": "8",
        "DIAG_GRAPH": "1",
        "DIAG_MODE": "a b",
    }
    assert tried('test "$DIAG_BATCH $DIAG_GRAPH" = "8 1"').outcome is Outcome.PASS  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, Outcome.PASS), (1, Outcome.FAIL), (124, Outcome.FAIL), (125, Outcome.SKIP), (None, Outcome.SKIP)],
)
def test_what_an_exit_code_says(code: int | None, outcome: Outcome) -> None:
    assert judge(code, "")[0] is outcome


@pytest.mark.parametrize("code", [126, 127, 128, 255, -9, -15])
def test_what_ends_the_run(code: int) -> None:
    assert judge(code, "")[0] is None


@pytest.mark.parametrize(
    ("command", "said"), [("nonesuch-command", "127"), ("kill -TERM $$", "SIGTERM"), ("exit 126", "126")]
)
def test_a_command_that_cannot_run_is_one_clear_error(command: str, said: str) -> None:
    with pytest.raises(PreconditionFailed) as ended:
        tried(f"echo something useful; {command}")
    assert said in ended.value.what
    assert "something useful" in ended.value.details


def test_counts_become_verdicts() -> None:
    trial = tried("echo noise; echo garbled=3/32; exit 1")
    assert (trial.outcome, trial.garbled, len(trial.texts)) == (Outcome.FAIL, 3, 32)  # type: ignore[attr-defined]
    assert "3 of 32" in trial.reason  # type: ignore[attr-defined]
    assert texts_from("garbled=9/4", Outcome.FAIL) == texts_from("garbled=4/4", Outcome.FAIL)
    assert texts_from("garbled=x/4", Outcome.FAIL) == ()
    assert texts_from("garbled=1/4", Outcome.SKIP) == ()


def test_its_signature_is_what_it_says() -> None:
    assert tried("echo signature=HTTP 500; exit 1").signature == "HTTP 500"  # type: ignore[attr-defined]
    assert tried("echo garbled=1/2; exit 1").signature == "fails"  # type: ignore[attr-defined]
    assert tried("echo signature=x").signature == ""  # type: ignore[attr-defined]


def test_a_host_is_in_the_environment_where_there_is_one() -> None:
    step = Next({"batch": 8, "graph": True}, "to see")
    trial = CommandBench(SPACE, 'test "$DIAG_HOST" = gpu1', 30, "gpu1").trial(1, step)
    assert (trial.outcome, trial.host) == (Outcome.PASS, "gpu1")
    assert tried('test -z "$DIAG_HOST"').outcome is Outcome.PASS  # type: ignore[attr-defined]


def test_cancelled_from_another_thread_it_ends_at_once() -> None:
    bench = CommandBench(SPACE, "sleep 60", 60)
    timer = threading.Timer(0.3, bench.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        bench.trial(1, Next({"batch": 8, "graph": True}, "to see"))
    timer.join()
    with pytest.raises(Cancelled):
        bench.trial(2, Next({"batch": 8, "graph": True}, "to see"))


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_child_that_holds_its_output_open_is_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    trial = tried(f"echo first; sleep 300 & echo $! > {pid_file}; echo garbled=1/2; exit 1")
    assert trial.outcome is Outcome.FAIL  # type: ignore[attr-defined]
    assert trial.garbled == 1  # type: ignore[attr-defined]
    assert gone(int(pid_file.read_text()))


@pytest.mark.parametrize("ending", ["exit 1", "sleep 60"])
def test_what_it_leaves_behind_ends_with_it(tmp_path: Path, ending: str) -> None:
    pid_file = tmp_path / "pid"
    trial = tried(f"sleep 300 >/dev/null 2>&1 & echo $! > {pid_file}; {ending}", timeout_s=1)
    assert trial.outcome is (Outcome.FAIL if ending == "exit 1" else Outcome.SKIP)  # type: ignore[attr-defined]
    assert gone(int(pid_file.read_text()))


def test_output_that_is_no_text_and_too_long_is_kept_in_part() -> None:
    trial = tried(r"head -c 100000 /dev/zero | tr '\0' x; printf '\377'; exit 1")
    assert len(trial.details["output"]) == 4000  # type: ignore[attr-defined]
