"""A real Slurm of several nodes on one machine: munged, one controller and a slurmd for each node, all in one folder.

A node is a process namespace with a host name of its own: its jobs see their node's processes alone, and when its first
process is killed nothing of that node is left, as when a machine loses its power. Network, files and account (root) are
this machine's. By hand, see docs/slurm-lab.md:

    python -m tests.slurm.cluster up FOLDER [NODES]
    python -m tests.slurm.cluster down FOLDER
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes import _proc
from probes._proc import Process

SBIN = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "hostname")
NODE = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child", "sh", "-c")
# The shell is the node's first process: it takes in those whose parents end, as an init does.
BOOT = 'hostname "$0" && slurmd -D -N "$0" & wait'
# In the environment of every daemon; jobs do not get it.
MARK = "DIAG_TEST_CLUSTER"
START_S = 60.0
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE")

# cred_expire: how long a requeued job waits before it starts again; 5 s is the least that Slurm takes.
CONFIGURATION = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdTimeout={node_timeout_s}
MessageTimeout=3
BatchStartTimeout=3
KillWait=2
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
NODE_LINE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000 Gres=gpu:{gpus}"
)


class ClusterError(Exception):
    """A daemon did not start, or did not do its part in time; the text has the end of its log."""


@dataclass(frozen=True)
class Job:
    """One line of squeue. node: "" while it waits; restarts: how often Slurm has requeued it."""

    id: int
    name: str
    state: str
    node: str
    reason: str
    restarts: int


def missing() -> str | None:
    """Why there can be no cluster here; None when there can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SBIN) is None]
    if absent:
        return f"{', '.join(absent)}: not installed (Debian: apt install slurm-wlm munge)"
    if os.getuid() != 0:
        return "a Slurm of several nodes on one machine takes root"
    tried = subprocess.run([*NODE, 'hostname "$0"', "node"], capture_output=True, text=True, check=False)
    return f"process namespaces are refused here: {tried.stderr.strip()}" if tried.returncode else None


@dataclass
class Cluster:
    """folder: all of it lies there; a short path (Unix sockets). node_timeout_s: a node silent for so long is down."""

    folder: Path
    nodes: tuple[str, ...] = ("node1", "node2")
    gpus: int = 8
    node_timeout_s: int = 6
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """What a client of it needs in its environment."""
        return {"SLURM_CONF": str(self.configuration)}

    # Start and end

    def start(self) -> None:
        """Returns when every node is idle.

        Raises:
            ClusterError: it does not come up, and nothing of it runs; or it is up already, and stays so.
        """
        if processes(MARK, str(self.folder)):
            raise ClusterError(f"a cluster runs in {self.folder}")
        if self.folder.exists() and any(self.folder.iterdir()) and not self.configuration.exists():
            raise ClusterError(f"{self.folder} holds something else: name another folder")
        self._write()
        try:
            self._munge()
            self._controller()
            for name in self.nodes:
                self._node(name)
            self._until(self._idle, "the nodes are not idle", START_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all of it with KILL, jobs too. The folder stays, for its logs."""
        while found := processes(MARK, str(self.folder)):
            for process in found:
                _kill(process)
            time.sleep(0.02)
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()

    def _write(self) -> None:
        if self.configuration.exists():
            shutil.rmtree(self.folder)  # of an earlier one, whose jobs nobody wants back
        for name in ("state", "spool", "gpu", "out", *(f"spool/{name}" for name in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(self.gpus):
            (self.folder / "gpu" / f"gpu{number}").symlink_to("/dev/null")  # it wants a device
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        ports = free_ports(1 + len(self.nodes))
        lines = (NODE_LINE.format(name=name, port=port, gpus=self.gpus) for name, port in zip(self.nodes, ports[1:]))
        self.configuration.write_text(
            CONFIGURATION.format(
                name=f"test{ports[0]}",
                port=ports[0],
                folder=self.folder,
                node_timeout_s=self.node_timeout_s,
                nodes="\n".join(lines),
            )
        )
        files = f"{self.folder}/gpu/gpu[0-{self.gpus - 1}]" if self.gpus > 1 else f"{self.folder}/gpu/gpu0"
        gres = "".join(f"NodeName={name} Name=gpu File={files}\n" for name in self.nodes)
        (self.folder / "gres.conf").write_text(gres)

    def _spawn(self, name: str, *argv: str) -> None:
        log = self.folder / f"{name}.out"
        with log.open("ab") as stream:
            self._daemons[name] = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**os.environ, **self.env, "PATH": SBIN, MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def _munge(self) -> None:
        files = {name: f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
        # Forced: it warns of folders that others may not read, and of root, and means no harm here.
        self._spawn("munged", "munged", "-F", "--force", *files.values(), f"--socket={self.folder}/munge.socket")
        self._until((self.folder / "munge.socket").is_socket, "munged has no socket", START_S)

    def _controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")

    def _node(self, name: str) -> None:
        self._spawn(name, *NODE, BOOT, name)

    # What a client does

    def run(self, *argv: str, check: bool = True) -> str:
        """Standard output of a client's command: cluster.run("squeue", "--me").

        Raises:
            ClusterError: it fails, and check is True.
        """
        done = self._try(*argv)
        if check and done.returncode:
            raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def _try(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env, "PATH": SBIN}
        return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def submit(self, script: str, *options: str) -> int:
        """Number of a new job that runs `script` in a shell; output: what it writes goes to output(number)."""
        argv = ("sbatch", "--parsable", f"--output={self.folder}/out/%j", *options, f"--wrap={script}")
        return int(self.run(*argv).split(";")[0])

    def output(self, job: int) -> str:
        path = self.folder / "out" / str(job)
        return path.read_text() if path.exists() else ""

    def jobs(self, *states: str) -> list[Job]:
        """Those in one of the states; without any: all that the controller remembers, ended ones (for 300 s) too."""
        fields = ("JobID", "Name", "State", "NodeList", "Reason", "RestartCnt")
        form = ",".join(f"{name}:|" for name in fields)
        lines = self.run("squeue", "--noheader", "--array", "--states=all", f"--Format={form}").splitlines()
        rows = (line.rstrip("|").split("|") for line in lines)
        found = [Job(int(row[0]), row[1], row[2], row[3], row[4], int(row[5])) for row in rows]
        return [job for job in found if not states or job.state in states]

    def job(self, number: int) -> Job:
        return next(job for job in self.jobs() if job.id == number)

    def states(self) -> dict[str, str]:
        """Of the nodes, in sinfo's words; {} while the controller does not answer."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=gpu", check=False).splitlines()
        return dict(line.split() for line in lines if line.count(" ") == 1)

    def wait(self, job: int, *states: str, timeout_s: float = 60.0) -> Job:
        """The job, once it is in one of the states; without any: once it has ended.

        Raises:
            ClusterError: not within timeout_s.
        """
        wanted = states or ENDED
        self._until(lambda: self.job(job).state in wanted, f"job {job} is not {' or '.join(wanted)}", timeout_s)
        return self.job(job)

    # What goes wrong

    def kill_node(self, name: str, noticed: bool = False) -> None:
        """As if it had lost its power: its slurmd and all that its jobs have started are gone at once.

        Slurm misses it after some 12 s by itself; noticed: it is told now, as a monitor of machines would tell it.
        """
        daemon = self._daemons.pop(name)
        all_of_it = below(daemon.pid)
        for process in all_of_it:
            if process.ppid == daemon.pid:  # the first of its namespace: the kernel ends the others
                _kill(process)
        daemon.wait()
        self._until(lambda: not still_there(all_of_it), f"{name} does not die", START_S)
        if noticed:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=power")

    def revive_node(self, name: str) -> None:
        """Its power is back, and Slurm has noticed that it was away; returns when Slurm would run jobs on it."""
        self._until(lambda: self.states().get(name, "").startswith("down"), f"{name} is not missed", START_S)
        self._node(name)
        self._until(lambda: self.states().get(name) in ("idle", "mixed", "allocated"), f"{name} is not back", START_S)

    def restart_controller(self, pause_s: float = 0.0) -> None:
        """As an administrator does it; for pause_s and a moment every client's command fails or waits."""
        daemon = self._daemons["slurmctld"]
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(START_S)
        time.sleep(pause_s)
        self._controller()
        self._until(lambda: bool(self.states()), "the controller is not back", START_S)

    def cancel(self, *jobs: int) -> None:
        """As somebody else would; without any: all that have not ended."""
        chosen = jobs or [job.id for job in self.jobs() if job.state not in ENDED]
        if chosen:
            self.run("scancel", *map(str, chosen))

    def preempt(self, node: str) -> int:
        """Takes all GPUs of a node for a moment: Slurm requeues the jobs of partition gpu there. Number of that job."""
        job = self.submit("true", "--partition=urgent", f"--nodelist={node}", f"--gres=gpu:{self.gpus}")
        self.wait(job)
        return job

    # What is left

    def on_nodes(self) -> dict[str, list[Process]]:
        """All that runs on each node and is not Slurm's own, whatever it has left: parents, group, environment."""
        there = {name: below(self._daemons[name].pid) for name in self.nodes if name in self._daemons}
        return {name: [one for one in found if not is_slurms(one)] for name, found in there.items()}

    def sweep(self) -> list[Process]:
        """Ends what on_nodes() finds, and returns it."""
        found = [one for some in self.on_nodes().values() for one in some]
        for process in found:
            _kill(process)
        self._until(lambda: not still_there(found), "processes on a node do not die", START_S)
        return found

    def tidy(self) -> None:
        """No job, every node idle, nothing on any.

        Raises:
            ClusterError: something ran on a node that no job owns any more; now it does not.
        """
        self.cancel()
        for name in self.nodes:
            if name not in self._daemons:
                self.revive_node(name)
        self._until(self._idle, "the nodes are not idle", START_S)
        if left := self.sweep():
            raise ClusterError(f"left on a node: {[' '.join(process.argv) for process in left]}")

    def _idle(self) -> bool:
        return self.states() == dict.fromkeys(self.nodes, "idle")

    # Waiting, and what to say when it was in vain

    def _until(self, done: Callable[[], bool], complaint: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise ClusterError(f"{', '.join(ended) + ' ended' if ended else complaint}\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        paths = sorted(self.folder.glob("*.out"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1000:]}" for path in paths)


def free_ports(count: int) -> list[int]:
    """Below those that a system gives to connections on their way out: a node that comes back finds its port free."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 16_000), 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterError("no free ports between 10000 and 16000")


def processes(name: str, value: str) -> list[Process]:
    """All of this machine, its nodes included, that were started with this variable in their environment."""
    running = _proc.processes()
    return [one for one in running if one.state != "Z" and _proc.environment(one.pid).get(name) == value]


def below(pid: int) -> list[Process]:
    """What a process has started, and what those have; in a node's namespace that is everything."""
    running, known = [one for one in _proc.processes() if one.state != "Z"], {pid}
    while more := {one.pid for one in running if one.ppid in known} - known:
        known |= more
    return [one for one in running if one.pid in known - {pid}]


def still_there(some: Sequence[Process]) -> set[tuple[int, str]]:
    return {one.key for one in some} & {one.key for one in _proc.processes(with_argv=False)}


def is_slurms(process: Process) -> bool:
    """Whether it is a node's own: its first process, slurmd, or what slurmd starts to look after a job."""
    return BOOT in process.argv or " ".join(process.argv).startswith(("slurmd", "slurmstepd", "/usr/sbin/slurmstepd"))


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def start(folder: Path, nodes: int = 2, **settings: Any) -> Cluster:
    """A running cluster; settings are those of Cluster. Another program may take a port between our look at it and the
    daemon's: so there are three attempts.

    Raises:
        ClusterError: what is wrong, with the daemons' last words.
    """
    one = Cluster(folder, tuple(f"node{number}" for number in range(1, nodes + 1)), **settings)
    for _ in range(2):
        with contextlib.suppress(ClusterError):
            one.start()
            return one
    one.start()
    return one


@contextlib.contextmanager
def cluster(folder: Path, nodes: int = 2, **settings: Any) -> Iterator[Cluster]:
    """A running cluster, gone at the end."""
    one = start(folder, nodes, **settings)
    try:
        yield one
    finally:
        one.close()


def main(action: str = "", folder: str = "", nodes: str = "2") -> int:
    """By hand: up prints what clients need in their environment."""
    if action not in ("up", "down") or not folder or not nodes.isdecimal():
        print("usage: python -m tests.slurm.cluster up FOLDER [NODES] | down FOLDER", file=sys.stderr)
        return 2
    where = Path(folder).resolve()
    if action == "down":
        Cluster(where).close()
        return 0
    try:
        if reason := missing():
            raise ClusterError(reason)
        print(f"export SLURM_CONF={start(where, int(nodes)).configuration}")
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
