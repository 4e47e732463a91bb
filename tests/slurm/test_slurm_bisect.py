"""`diag bisect --executor slurm` on a real Slurm, with a toy engine beside a real SGLang file as the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probes._proc import Process
from tests.conftest import Sshd
from tests.lab_fixture import TWO_PROMPTS, command
from tests.playbook import toys
from tests.playbook.toys import Toy
from tests.slurm.cluster import Cluster, Job

pytestmark = pytest.mark.timeout(180)

PLAN = """\
command: >-
  sh -c 'sleep {nap}; exec "$@"' sh {python} -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port}
prompts: ./two.yaml
max_trials: 24
factors:
  budget: {flag: --speculative-ddtree-budget, good: 7, bad: 16, sweep: false}
  block_size: {flag: --speculative-num-draft-tokens, good: 8, bad: 8, levels: [8, 17], sweep: false}
derived:
  mismatch: {title: the verify step is not as wide as the fixed count, when: budget + 1 != block_size}
"""


@dataclass
class Site:
    """A toy host that is the login node of a real cluster."""

    toy: Toy
    cluster: Cluster

    def argv(self, *more: str) -> list[str]:
        options = ["--executor", "slurm", "--partition", "gpu", "--gpus", "1"]
        return [*command(), "bisect", "toy", *options, *more]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.toy.env}

    def diag(self, *argv: str) -> tuple[int, str, str]:
        ran = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=170)
        return ran.returncode, ran.stdout, ran.stderr

    def planned(self, nap_s: float) -> list[str]:
        """nap_s: what a server takes to start, so that there is time for something to happen to it."""
        return ["--plan", str(self.toy.root / "plan.yaml"), "--set", f"nap={nap_s:g}"]

    def bisect(self, *more: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self.diag(*self.argv(*self.planned(0), "--json", *more))
        assert out, err
        return code, json.loads(out)

    def start(self, *more: str, nap_s: float = 3) -> subprocess.Popen[str]:
        argv = self.argv(*self.planned(nap_s), *more)
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def over_ssh(self, server: Sshd) -> None:
        """The login node is reached by SSH from now on."""
        host = server.host
        keys = {"address": host.address, "port": host.port, "user": host.user}
        keys |= {"identity_file": str(host.identity_file), "known_hosts": str(host.known_hosts)}
        path = self.toy.root / "config" / "hosts.toml"
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
        path.write_text(path.read_text().replace('address = "local"', lines))

    def journal(self) -> list[dict[str, Any]]:
        found = sorted((self.toy.root / "state" / "runs").glob("*/journal.jsonl"))
        return [json.loads(line) for line in found[-1].read_text().splitlines()] if found else []

    def trials(self, outcome: str | None = None) -> list[dict[str, Any]]:
        told = [one for one in self.journal() if one["kind"] == "trial"]
        return [one for one in told if outcome is None or one["outcome"] == outcome]

    def until(self, what: Callable[[], bool]) -> None:
        for _ in range(600):
            if what():
                return
            time.sleep(0.1)
        pytest.fail(f"it did not come to that; {[one['reason'] for one in self.trials()]}")

    def serving(self) -> Job:
        """A job of ours that runs, once there is one and its server is being started."""
        self.until(lambda: bool(self.toy.servers()) and bool(self.running()))
        return self.running()[0]

    def kill_launcher(self, node: str) -> None:
        """The programs of ours that Slurm has started there, the guard too: the job's last step has the rest to end."""
        self.until(lambda: len(self._ours(node)) == 2)
        parents = {each.ppid for each in self.cluster.on_nodes()[node]}
        for one in sorted(self._ours(node), key=lambda one: one.pid in parents):  # the guard first
            os.kill(one.pid, signal.SIGKILL)

    def _ours(self, node: str) -> list[Process]:
        found = self.cluster.on_nodes()[node]
        return [one for one in found if "python" in one.argv[0] and any("zlib.decompress" in word for word in one.argv)]

    def running(self) -> list[Job]:
        return [job for job in self.cluster.jobs("RUNNING") if job.name.startswith("diag-")]

    def nothing_is_left(self) -> None:
        self.until(lambda: not self.toy.servers())
        self.until(lambda: not self.running())
        folder = self.toy.root / "host" / "diag" / "jobs"
        assert not folder.exists() or not list(folder.iterdir())


@pytest.fixture
def site(tmp_path: Path, slurm: Cluster) -> Iterator[Site]:
    toy = toys.build(tmp_path)
    inventory = tmp_path / "config" / "hosts.toml"
    conf = f"[hosts.toy.env]\nSLURM_CONF = {json.dumps(str(slurm.configuration))}\n"
    inventory.write_text(inventory.read_text().replace("[hosts.toy.env]\n", conf))
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "two.yaml").write_text(TWO_PROMPTS)
    made = Site(toy, slurm)
    yield made
    made.nothing_is_left()


def the_rule(told: dict[str, Any]) -> bool:
    return told["verdict"] == "culprit" and told["culprit"]["name"] == "budget + 1 != block_size"


def test_the_rule_is_named_by_jobs_on_two_nodes(site: Site) -> None:
    code, told = site.bisect()
    assert (code, the_rule(told)) == (1, True)
    assert {trial["host"] for trial in site.trials()} == {"node1", "node2"}
    assert len({trial["details"]["slurm"]["serial"] for trial in site.trials()}) == len(site.trials())


def test_a_node_that_garbles_everything_is_found_out_and_named(site: Site) -> None:
    """What the toy reads at its start says on which node it is to garble, whatever it is asked for."""
    plan = site.toy.root / "plan.yaml"
    broken = """sh -c 'test "$(hostname)" = node2 && set -- "$@" --speculative-num-draft-tokens 99; exec "$@"' sh"""
    plan.write_text(PLAN.replace("""sh -c 'sleep {nap}; exec "$@"' sh""", broken))
    code, out, err = site.diag(*site.argv("--plan", str(plan), "--json"))
    told = json.loads(out)
    assert (code, the_rule(told)) == (1, True), err
    assert list(told["left_out"]) == ["node2"]
    good = [t for t in site.trials() if t["config"] == {"budget": 7, "block_size": 8} and t["host"] == "node2"]
    assert [t["outcome"] for t in good] == ["fail"]


@pytest.mark.sshd
def test_cut_off_then_killed_in_the_middle_and_gone_on_with(site: Site, sshd: Sshd) -> None:
    """Over SSH, one connection for all of it: cut once, it is made anew; the jobs know nothing of either."""
    site.over_ssh(sshd)
    before_it = sshd.log.read_text().count("Accepted publickey")
    running = site.start()
    site.serving()
    for pid in sshd.session_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    site.until(lambda: len(site.trials()) >= 1)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = len(site.trials())
    run = next((site.toy.root / "state" / "runs").iterdir()).name
    site.until(lambda: not site.toy.servers())  # the jobs went on, and came to an end
    code, out, err = site.diag(*command(), "bisect", "--resume", run, "--json")
    told = json.loads(out)
    assert (code, the_rule(told)) == (1, True), err
    assert len(site.trials()) > before
    assert sshd.log.read_text().count("Accepted publickey") - before_it == 3
    assert site.trials("infra") == []
    serials = [t["details"]["slurm"]["serial"] for t in site.trials()]
    assert len(serials) == len(set(serials))


def test_interrupted_it_leaves_no_job(site: Site) -> None:
    running = site.start()
    site.serving()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in err


def test_whatever_happens_to_jobs_is_no_evidence(site: Site) -> None:
    """Somebody cancels one, a launcher is killed, the controller goes away, a better job takes a node, a node dies."""
    running = site.start("--json", nap_s=6)
    site.until(lambda: len(site.running()) == 2)
    first, second = (job.id for job in site.running())
    site.cluster.cancel(first)
    site.cluster.preempt(site.cluster.job(second).node)
    site.until(lambda: len(site.trials("infra")) == 2 and len(site.running()) == 2)
    first, second = (job.id for job in site.running())
    site.kill_launcher(site.cluster.job(first).node)
    site.cluster.restart_controller()
    site.cluster.kill_node(site.cluster.job(second).node, noticed=True)
    out, err = running.communicate(timeout=170)
    assert the_rule(json.loads(out)), err
    said = [one["reason"] for one in site.trials("infra")]
    wanted = ("somebody cancelled it", "took its place", "its launcher ended without a result", "its node failed")
    assert [sum(each in one for one in said) for each in wanted] == [1] * 4, said


RANK = """\
import os, socket, sys, time
rank, nodes, head, port, *argv = sys.argv[1:]
if rank == "0":
    gathering = socket.create_server((head, int(port)))
    others = [gathering.accept()[0] for _ in range(int(nodes) - 1)]
    for one in others:
        one.set_inheritable(True)  # open for as long as this one lives
    os.execvp(argv[0], argv)
while True:
    try:
        with socket.create_connection((head, int(port))) as there:
            there.recv(1)
            sys.exit("rank 0 is gone")
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


def test_a_trial_on_two_nodes_has_a_rank_on_each(site: Site) -> None:
    (site.toy.root / "rank.py").write_text(RANK)
    plan = site.toy.root / "plan.yaml"
    words = "sh -c 'sleep {nap}; exec \"$@\"' sh"
    ranks = f"{{python}} {site.toy.root}/rank.py {{rank}} {{nnodes}} {{head}} {{head_port}}"
    plan.write_text(PLAN.replace(words, ranks))
    code, out, err = site.diag(*site.argv("--plan", str(plan), "--json", "--check", "--nodes", "2", "--jobs", "1"))
    told = json.loads(out)
    assert (code, told.get("verdict")) == (1, "fails"), err
    assert {trial["host"] for trial in site.trials()} == {"node[1-2]"}, site.trials("infra")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--partition", "gpv"], 5, "There is no partition gpv on this cluster"),
        (["--gpus", "64"], 5, "Slurm has no place for job"),
        (["--slurm", "nodes=3"], 2, "--slurm nodes=… is what diag sets itself"),
        (["--slurm", "account"], 2, "OPTION=VALUE is expected"),
        (["--over", "versions", "--good", "0.5.11", "--bad", "0.5.12"], 2, "--over runs on a host, not as jobs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_cannot_be_is_said_and_nothing_is_left(site: Site, words: list[str], code: int, said: str) -> None:
    got, _, err = site.diag(*site.argv(*site.planned(0), *words))
    assert (got, said in err) == (code, True), err
    assert "Traceback" not in err
