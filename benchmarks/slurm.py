"""Bisections as jobs of a real Slurm of two nodes (tests/slurm/cluster.py): how long they take, and what comes of one
that is struck: a node killed in the middle of a trial, the controller restarted, a job cancelled, a job preempted.

    python benchmarks/slurm.py [--lab] [--wide] [--repeat 3] [--strikes 5] [--only node ...] [--start-s 4]

The engine is the tests' toy beside a real SGLang file, which takes --start-s seconds to start; with --lab it is the
lab's real server, on one core, for a node has its own. Root, slurmctld, slurmd and munge are needed. Prints two tables
with what was aimed at; asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab_fixture import TWO_PROMPTS, command, environment
from tests.playbook import toys
from tests.slurm.cluster import Cluster, ClusterError, cluster, missing

ROOT = Path(__file__).resolve().parents[1]
CULPRIT = "budget + 1 != block_size"
TARGET_RATIO = 0.6
LIMIT_S = 1200
INNOCENT = """\
factors:
  radix_cache: {switch_off: --disable-radix-cache, good: false, bad: true}
  overlap: {switch_off: --disable-overlap-schedule, good: false, bad: true}
  chunk: {flag: --chunked-prefill-size, good: 8192, bad: 4096}
  running: {flag: --max-running-requests, good: 8, bad: 16}
"""
"""More suspects than the story has, for --wide."""
GONE_S = 5.0
"""So long after its end a run's last job may take to leave its node."""


@dataclass(frozen=True)
class Site:
    """A login node named `host`, its cluster, and a plan whose culprit is known."""

    cluster: Cluster
    folder: Path
    host: str

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    def bisect(self, jobs: int) -> subprocess.Popen[str]:
        options = ("--executor", "slurm", "--gpus", "1", "--jobs", str(jobs), "--job-dir", str(self.jobs))
        argv = command("bisect", self.host, "--plan", str(self.folder / "plan.yaml"), "--json", *options)
        # A run of its own knows nothing of earlier ones.
        env = {**os.environ, "DIAG_STATE_DIR": tempfile.mkdtemp(dir=self.folder)}
        return subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def toy_site(folder: Path, cluster: Cluster, start_s: float) -> Site:
    toy = toys.build(folder)
    launcher = toy.site / "sglang" / "launch_server.py"
    wait = f'GIVEN = parsed()\n__import__("time").sleep({start_s})\n'
    launcher.write_text(launcher.read_text().replace("GIVEN = parsed()\n", wait))
    _tell_slurm(folder / "config" / "hosts.toml", "toy", cluster)
    return Site(cluster, folder, "toy")


def lab_site(folder: Path, cluster: Cluster) -> Site:
    from diag.lab.layout import Lab

    lab = Lab(folder / "state" / "lab")
    _tell_slurm(lab.inventory_file, lab.inventory_file.stem, cluster)
    return Site(cluster, folder, "lab")


def _tell_slurm(inventory: Path, host: str, cluster: Cluster) -> None:
    section, line = f"[hosts.{host}.env]\n", f"SLURM_CONF = {json.dumps(str(cluster.configuration))}\n"
    text = inventory.read_text()
    inventory.write_text(text.replace(section, section + line) if section in text else f"{text}\n{section}{line}")


@contextlib.contextmanager
def site(folder: Path, lab: bool, wide: bool, start_s: float) -> Iterator[Site]:
    """Everything set up, and gone at the end."""
    plan = (ROOT / "playbooks" / "plans" / "ddtree-garble.yaml").read_text()
    plan = plan.replace("prompts: garble", "prompts: ./two.yaml")
    plan = plan.replace("factors:\n", INNOCENT) if wide else plan
    (folder / "two.yaml").write_text(TWO_PROMPTS)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(cluster(folder / "slurm"))
        stack.enter_context(environment(DIAG_CONFIG_DIR=str(folder / "config"), DIAG_STATE_DIR=str(folder / "state")))
        if lab:
            stack.enter_context(_lab(folder))
            plan += '\nenv: {OMP_NUM_THREADS: "1", MKL_NUM_THREADS: "1"}\n'
        made = lab_site(folder, one) if lab else toy_site(folder, one, start_s)
        (folder / "plan.yaml").write_text(plan)
        yield made


@contextlib.contextmanager
def _lab(folder: Path) -> Iterator[None]:
    from diag.lab import control
    from diag.lab.layout import Lab

    where = Lab(folder / "state" / "lab")
    try:
        control.up(where, lambda line: None)
        yield
    finally:
        control.down(where, lambda line: None)


# What a run came to


@dataclass(frozen=True)
class Run:
    """counted: trials that are evidence; infra: those that are none; double: pieces of evidence told twice; left: what
    still ran on the nodes, or waited, or lay in the jobs' folder, after its end."""

    seconds: float
    right: bool
    counted: int
    infra: int
    double: int
    left: tuple[str, ...]
    said: str = ""

    @property
    def good(self) -> bool:
        return self.right and not self.double and not self.left


def finished(site: Site, running: subprocess.Popen[str], began: float) -> Run:
    try:
        out, err = running.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        running.kill()
        out, err = running.communicate()
    seconds = time.monotonic() - began
    told: Mapping[str, Any] = json.loads(out) if out.strip().startswith("{") else {}
    trials = told.get("trials", [])
    evidence = [trial for trial in trials if trial["outcome"] != "infra"]
    # A job brings at most one trial of each configuration: its own, and the control of its nodes.
    pieces = Counter((trial["details"]["slurm"]["serial"], json.dumps(trial["config"])) for trial in evidence)
    double = sum(count - 1 for count in pieces.values())
    named = (told.get("culprit") or {}).get("predicate") == CULPRIT and running.returncode == 1
    said = "" if named else f"exit code {running.returncode}: {(err.strip() or out).splitlines()[-4:]}"
    run = Run(seconds, named, len(evidence), len(trials) - len(evidence), double, left(site), said)
    shutil.rmtree(site.jobs, ignore_errors=True)  # what one leaves is not the next one's
    return run


def left(site: Site) -> tuple[str, ...]:
    """Looked for again and again for a moment: a job's last step may be about to end."""
    deadline = time.monotonic() + GONE_S
    while (found := _left(site)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _left(site: Site) -> tuple[str, ...]:
    nodes = [f"{node}: {' '.join(one.argv)}" for node, some in site.cluster.on_nodes().items() for one in some]
    waiting = [f"job {job.id} {job.state}" for job in site.cluster.jobs("PENDING", "RUNNING", "SUSPENDED")]
    files = [f"{path}" for path in site.jobs.glob("*")]
    return (*nodes, *waiting, *files)


# What strikes it


def kill_node(site: Site, node: str, number: int) -> None:
    """Told to Slurm, or found out by it; it comes back, or stays away until the run is over."""
    site.cluster.kill_node(node, noticed=number % 2 == 0)
    if number % 3 == 0:
        site.cluster.revive_node(node)


def restart_controller(site: Site, node: str, number: int) -> None:
    site.cluster.restart_controller(pause_s=2.0 * number)


def cancel_job(site: Site, node: str, number: int) -> None:
    site.cluster.cancel(*(job.id for job in site.cluster.jobs("RUNNING") if job.node == node))


def preempt(site: Site, node: str, number: int) -> None:
    site.cluster.preempt(node)


STRIKES: Mapping[str, tuple[str, Callable[[Site, str, int], None]]] = {
    "node": ("a node killed in mid-trial", kill_node),
    "controller": ("the controller restarted", restart_controller),
    "cancelled": ("a job cancelled by somebody else", cancel_job),
    "preempted": ("a job preempted", preempt),
}


def struck(site: Site, strike: Callable[[Site, str, int], None], number: int) -> Run:
    """The number also says when: after so many servers have been seen."""
    began, running = time.monotonic(), site.bisect(2)
    over: list[Run] = []
    waiter = threading.Thread(target=lambda: over.append(finished(site, running, began)))
    waiter.start()
    wrong = ""
    try:
        node = _moment(site, running, number)
        if node is None:
            wrong = "it ended before it was struck"
        else:
            strike(site, node, number)
    except ClusterError as error:
        wrong = str(error).splitlines()[0]
    finally:
        if sys.exc_info()[0] is not None:
            running.terminate()
        waiter.join()
    site.cluster.tidy()
    return replace(over[0], right=over[0].right and not wrong, said=f"{wrong} {over[0].said}".strip())


def _moment(site: Site, running: subprocess.Popen[str], number: int) -> str | None:
    """A node whose server is the number-th that was seen, or a later one; None where the run ends before."""
    seen: set[tuple[int, str]] = set()
    while running.poll() is None:
        for node, some in site.cluster.on_nodes().items():
            servers = {process.key for process in some if "sglang.launch_server" in process.argv}
            if servers - seen and len(seen | servers) > number:
                time.sleep(1.0)  # into its start
                return node
            seen |= servers
        time.sleep(0.1)
    return None


# Tables


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(*cells: str) -> None:
    row(*cells)
    print("|" + "---|" * len(cells))


def each(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def times(site: Site, repeat: int) -> None:
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(repeat):
        for jobs, some in runs.items():
            began = time.monotonic()
            some.append(finished(site, site.bisect(jobs), began))
            site.cluster.tidy()
            print(f"  {jobs} at once: {some[-1]}", file=sys.stderr, flush=True)
    head(
        "nodes at work", "runs", "right, nothing left", "trials", "wall time, s", "median", "of one node's", "aimed at"
    )
    alone = statistics.median(run.seconds for run in runs[1])
    for jobs, some in runs.items():
        middle = statistics.median(run.seconds for run in some)
        aim = "" if jobs == 1 else f"at most {TARGET_RATIO}"
        took, trials = each(run.seconds for run in some), each(run.counted for run in some)
        row(jobs, repeat, sum(run.good for run in some), trials, took, f"{middle:.1f}", f"{middle / alone:.2f}", aim)


def strikes(site: Site, count: int, only: list[str]) -> None:
    head("struck by", "runs", "right verdict", "told twice", "left behind", "counted", "INFRA", "wall time, s")
    for name in only:
        title, strike = STRIKES[name]
        runs = []
        for number in range(count):
            runs.append(struck(site, strike, number))
            print(f"  {name} {number}: {runs[-1]}", file=sys.stderr, flush=True)
        right, double, behind = (sum(bool(getattr(run, what)) for run in runs) for what in ("right", "double", "left"))
        counted, infra = each(run.counted for run in runs), each(run.infra for run in runs)
        row(title, count, right, double, behind, counted, infra, each(run.seconds for run in runs))
    total = count * len(only)
    print(f"aimed at: the right verdict in {total} of {total}, nothing told twice, nothing left behind")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lab", action="store_true", help="the lab's real server instead of the toy")
    parser.add_argument("--wide", action="store_true", help="four more suspects, all innocent")
    parser.add_argument("--repeat", type=int, default=3, help="runs with one node and with two, for the times")
    parser.add_argument("--strikes", type=int, default=5, help="runs that are struck, of each kind")
    parser.add_argument("--only", nargs="*", choices=list(STRIKES), default=list(STRIKES))
    parser.add_argument("--start-s", type=float, default=4.0, help="that the toy takes to start")
    given = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing may be left then either
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        site(Path(folder), given.lab, given.wide, given.start_s) as made,
    ):
        if given.repeat:
            times(made, given.repeat)
            print()
        if given.strikes:
            strikes(made, given.strikes, given.only)


if __name__ == "__main__":
    main()
