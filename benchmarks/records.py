"""How long lists and reports take of a record with many trials: prints a table, asserts nothing.

    python benchmarks/records.py [--trials 10000] [--texts 8] [--repeats 5]

Two states: one run with all trials, and as many runs of twenty trials as they fill. Each command is a process of its
own, its start included, as a person waits for it; the first line of each state is with no record yet.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EACH = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--texts", type=int, default=8, help="texts of a trial")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    print(f"{'state':32} {'command':34} {'median s':>9} {'worst s':>9} {'cpu s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in (("one run", 1), (f"{asked.trials // EACH} runs", max(1, asked.trials // EACH))):
            state = Path(folder) / name.replace(" ", "-")
            latest = _state(state, runs, asked.trials // runs, asked.texts)
            size = sum(path.stat().st_size for path in state.rglob("*.jsonl"))
            label = f"{name}, {asked.trials} trials, {size / 1e6:.0f} MB"
            page = state / "r.html"
            commands = {
                "runs list (no record yet)": (["runs", "list"], 1),
                "runs list": (["runs", "list"], asked.repeats),
                "runs list --json": (["runs", "list", "--json"], asked.repeats),
                "report": (["report", latest], asked.repeats),
                "report --html": (["report", latest, "--html", str(page)], asked.repeats),
                "report --markdown": (["report", latest, "--markdown"], asked.repeats),
            }
            for what, (words, times) in commands.items():
                spent = [_seconds(state, words) for _ in range(times)]
                seconds, worked = ([one[at] for one in spent] for at in (0, 1))
                told = f"{statistics.median(seconds):9.2f} {max(seconds):9.2f} {statistics.median(worked):7.2f}"
                print(f"{label:32} {what:34} {told}", flush=True)
            record = sum(path.stat().st_size for path in state.glob("records.sqlite3*"))
            print(f"{label:32} {f'record {record / 1e6:.1f} MB, HTML {page.stat().st_size / 1e6:.2f} MB':34}")


def _seconds(state: Path, words: list[str]) -> tuple[float, float]:
    """(seconds, of which its processor worked)"""
    command = [sys.executable, "-c", "from diag.cli import main; main()", *words]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env={**os.environ, "DIAG_STATE_DIR": str(state)}, capture_output=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, worked


def _state(state: Path, runs: int, trials: int, texts: int) -> str:
    """The name of the last run."""
    name = ""
    for number in range(runs):
        name = f"20261129-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-abcdef"
        folder = state / "runs" / name
        folder.mkdir(parents=True)
        with (folder / "journal.jsonl").open("w", encoding="utf-8") as journal:
            for entry in _entries(trials, texts):
                journal.write(json.dumps({"schema": 1, **entry}) + "\n")
    return name


def _entries(trials: int, texts: int):  # type: ignore[no-untyped-def]
    names = [f"factor_{n}" for n in range(6)]
    factors = [{"name": n, "title": "", "how": "flag", "target": f"--{n}", "good": 0, "bad": 1} for n in names]
    yield {"kind": "start", "at_unix": 0.0, "hosts": ["gpu1"], "host": "gpu1", "plan_name": "p", "factors": factors}
    for number in range(1, trials + 1):
        config = {name: (number >> at) & 1 for at, name in enumerate(names)}
        fails = config["factor_0"] == config["factor_3"] == 1
        yield {
            "kind": "trial",
            "at_unix": 60.0 * number,
            "number": number,
            "purpose": "the most information per minute",
            "config": config,
            "effective": config,
            "outcome": "fail" if fails else "pass",
            "texts": [_text(at, fails) for at in range(texts)],
            "reason": "seen",
            "warnings": [],
            "start_s": 30.0,
            "total_s": 55.0,
            "details": {"argv": ["python", "-m", "sglang.launch_server", "--port", "{port}"] * 4, "env": {}},
            "host": "gpu1",
            "signature": "garbled" if fails else "",
        }
        standing = [[f"factor_{n}=1", round(1 / (n + 2), 4)] for n in range(8)]
        yield {"kind": "outlook", "at_unix": 60.0 * number, "after": number, "standing": standing, "rest": 3}
    yield {"kind": "verdict", "at_unix": 60.0 * trials, "verdict": "culprit", "culprit": "factor_0=1 and factor_3=1"}


def _text(at: int, fails: bool) -> dict[str, object]:
    words = "c3 d4 e5 f6 a1 b2 " * 10
    return {
        "prompt": f"prompt-{at}",
        "how": "alone" if at % 2 else "together",
        "kind": "garbled" if fails else "identical",
        "healthy": not fails,
        "text": words,
        "reference": words,
        "why": "token 1 is 24.9 nats below the best one there",
        "diverges_at": 1 if fails else None,
        "worst_gap_nats": 24.9 if fails else None,
        "worst_at": 1,
        "accept_length": 2.0,
        "token_ids": list(range(1000, 1040)),
        "gaps_nats": [0.125] * 40 if fails else [],
        "pieces": [],
    }


if __name__ == "__main__":
    main()
