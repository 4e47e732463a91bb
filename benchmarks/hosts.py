"""Hosts and connections: round trips, dead links, Ctrl-C, servers and what is left of them. A table beside targets.

    python benchmarks/hosts.py [--rivals FOLDER] [--only WORD ...]

A real sshd in a network namespace of its own, behind a link with a delay that can be cut (tests/hosts/bridge.py): root,
`ip`, `nsenter`, sshd and ssh are needed. --rivals: a virtual environment with pyinfra and ansible-core in it; without,
their lines are left out. Times are the best of several, for other work on the machine only adds. Asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diag.errors import DiagError
from diag.hosts import reaping, ssh
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from diag.serving import server as serving
from probes import _proc
from tests import conftest
from tests.hosts.bridge import Bridge

ROOT = Path(__file__).resolve().parents[1]
NAME = f"sglang::bench-{os.getpid()}"  # of workers: nobody else's on this machine
FAKE = ROOT / "tests" / "probes" / "fake_server.py"
DIAG = [sys.executable, "-c", "from diag.cli import main; main()"]
DELAYS_S = (0.0, 0.040, 0.200)  # round trips


@dataclass(frozen=True)
class Row:
    measure: str
    target: str
    measured: str
    met: bool | None = None  # None: no target

    def __str__(self) -> str:
        mark = {True: "yes", False: "NO", None: ""}[self.met]
        return f"| {self.measure} | {self.target} | {self.measured} | {mark} |"


@dataclass
class World:
    """bridge: the link; sshd: behind it; folder: everything of this run; rivals: their virtual environment."""

    bridge: Bridge
    sshd: conftest.Sshd
    host: Host
    folder: Path
    rivals: Path | None
    stops: int
    kills: int

    def far(self, round_trip_s: float) -> None:
        self.bridge.delay(round_trip_s / 2)

    def env(self) -> dict[str, str]:
        return {**os.environ, "DIAG_CONFIG_DIR": str(self.folder), "DIAG_STATE_DIR": str(self.folder / "state")}

    def begin(self, argv: Sequence[str | Path], **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.bridge.inside(argv, client=True), cwd=self.folder, env=self.env(), **more)

    def timed(self, argv: Sequence[str | Path], times: int = 5) -> float:
        """Seconds, the best of `times`; one run before is not counted. Raises if it fails."""
        found = []
        for _ in range(times + 1):
            begun = time.monotonic()
            done = subprocess.run(
                self.bridge.inside(argv, client=True), cwd=self.folder, env=self.env(), capture_output=True, check=False
            )
            found.append(time.monotonic() - begun)
            if done.returncode not in (0, 1, 3):  # what is found on this machine is not the question
                raise RuntimeError(
                    f"{argv}: {done.returncode}: {done.stderr.decode()[-2000:]}{done.stdout.decode()[-500:]}"
                )
        return min(found[1:], default=found[0])

    def here(self, work: Callable[[], Any]) -> Any:
        return self.bridge.run(work)


ALONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
"""A host that sees no processes but its own: servers of other work on this machine are not read and judged with it."""


@contextlib.contextmanager
def world(rivals: Path | None, stops: int, kills: int, *, alone: bool) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="hosts-") as name, Bridge(addresses=64) as bridge:
        folder = Path(name)
        (folder / "sshd").mkdir()
        prefix = [*bridge.inside([]), *(ALONE if alone else [])]
        sshd = conftest._start(conftest._sshd_binary(), folder / "sshd", "", "0.0.0.0", prefix)
        try:
            if not conftest._ready(sshd):
                raise SystemExit(sshd.log.read_text())
            lines = [f"[{a}]:{sshd.port} {sshd.host_key_line()}\n" for a in (bridge.address, *bridge.more)]
            sshd.known_hosts.write_text("".join(lines))
            host = sshd.host_with(address=bridge.address)
            _inventory(folder, host, bridge.more)
            yield World(bridge, sshd, host, folder, rivals, stops, kills)
        finally:
            for pid in sshd.session_pids():
                conftest._kill(pid)
            sshd.process.kill()
            sshd.process.wait()


def _inventory(folder: Path, host: Host, more: Sequence[str]) -> None:
    def entry(name: str, address: str, extra: str = "") -> str:
        return (
            f'[hosts.{name}]\naddress = "{address}"\nport = {host.port}\nuser = "{host.user}"\n'
            f'identity_file = "{host.identity_file}"\nknown_hosts = "{host.known_hosts}"\n{extra}'
        )

    many = [f"h{at}" for at in range(len(more))]
    slow = f'env = {{ PATH = "{folder}/slow:{os.environ["PATH"]}" }}\n'
    (folder / "slow").mkdir()
    (folder / "slow" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "slow" / "nvidia-smi").chmod(0o755)
    text = ["schema = 1", f"[groups]\nmany = {json.dumps(many)}\nmost = {json.dumps([*many, 'dead'])}"]
    text += [entry("box", host.address), entry("slow", host.address, slow)]
    text += [entry(name, address) for name, address in zip(many, more, strict=True)]
    text += [entry("dead", "10.77.200.1", "connect_timeout_s = 3\n")]
    (folder / "hosts.toml").write_text("\n".join(text))


# --- how long ----------------------------------------------------------------------------------------------


def startup(w: World) -> Iterator[Row]:
    seconds = w.timed([*DIAG, "--help"], 15)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    w.timed([*DIAG, "--help"], 9)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 10
    said = f"{seconds:.3f} s ({cpu:.3f} s of a processor, with what starts it)"
    yield Row("`diag --help`", "0.15 s", said, seconds <= 0.15)


def _ssh(w: World) -> list[str]:
    options = ["BatchMode=yes", f"UserKnownHostsFile={w.host.known_hosts}", "IdentitiesOnly=yes"]
    words = ["ssh", "-F", "none", "-p", str(w.host.port), "-i", str(w.host.identity_file)]
    return [*words, *(word for option in options for word in ("-o", option)), f"{w.host.user}@{w.host.address}", "true"]


def trips(w: World) -> Iterator[Row]:
    bare = _curve(w, _ssh(w))
    ours = _curve(w, [*DIAG, "probe", "host", "box", "--no-prompts", "--json"])
    check = _curve(w, [sys.executable, "-c", _FACTS_ONLY, str(w.folder)])
    before = w.sshd.execs()
    w.timed([*DIAG, "probe", "host", "box", "--no-prompts", "--json"], 1)
    execs = (w.sshd.execs() - before) / 2
    yield Row("`ssh host true`, cold; round trip 0, 40, 200 ms", "", _seconds(bare))
    ratio = ours[1] / bare[1]
    yield Row("`diag probe host` (all of it), cold, the same", "", _seconds(ours))
    theirs, mine = _turns(w, _ssh(w)), _turns(w, [*DIAG, "probe", "host", "box", "--no-prompts", "--json"])
    yield Row("round trips that it waits for, counted on the link", "14", f"{mine} (ssh: {theirs})", mine <= 14)
    yield Row("its time by ssh's, at 40 ms", "1.7", f"{ratio:.2f}", ratio <= 1.7)
    yield Row("one connection and the program of `probe host`, without the command line", "", _seconds(check))
    yield Row("its time by ssh's, at 40 ms", "1.7", f"{check[1] / bare[1]:.2f}", check[1] / bare[1] <= 1.7)
    yield Row("commands that sshd's log has for it", "1", f"{execs:g}", execs == 1)
    yield from _rivals(w, ours)


_FACTS_ONLY = """
import os, sys
os.environ["DIAG_CONFIG_DIR"] = sys.argv[1]
from diag.hosts import courier, inventory
from diag.hosts.transport import connect
with connect(inventory.load().get("box")) as transport:
    courier.call(transport, "host", {})
"""


def _curve(w: World, argv: Sequence[str]) -> list[float]:
    found = []
    for delay_s in DELAYS_S:
        w.far(delay_s)
        found.append(w.timed(argv, 1 if delay_s > 0.1 else 5))
    w.far(0)
    return found


def _turns(w: World, argv: Sequence[str]) -> int:
    """Counted at a delay so long that what belongs to one flight arrives together."""
    w.far(0.400)
    w.bridge.turns()
    w.timed(argv, 0)
    w.far(0)
    return w.bridge.turns()


def _seconds(curve: Sequence[float]) -> str:
    return ", ".join(f"{seconds:.2f}" for seconds in curve) + " s"


def _rivals(w: World, ours: Sequence[float]) -> Iterator[Row]:
    if w.rivals is None:
        return
    key, port, user, address = w.host.identity_file, w.host.port, w.host.user, w.host.address
    pyinfra = w.folder / "inventory.py"
    data = {"ssh_user": user, "ssh_port": port, "ssh_key": str(key), "ssh_known_hosts_file": str(w.host.known_hosts)}
    pyinfra.write_text(f"hosts = [({address!r}, {data!r})]\n")
    ansible = w.folder / "ansible.ini"
    arguments = f"-o UserKnownHostsFile={w.host.known_hosts} -o IdentitiesOnly=yes"
    ansible.write_text(
        f"{address} ansible_port={port} ansible_user={user} ansible_ssh_private_key_file={key} "
        f"ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='{arguments}'\n"
    )
    lines = {
        "pyinfra, one fact": [w.rivals / "bin/pyinfra", "-y", pyinfra, "fact", "server.Hostname"],
        "ansible -m setup": [w.rivals / "bin/ansible", "all", "-i", ansible, "-m", "setup"],
    }
    for name, argv in lines.items():
        try:
            curve = _curve(w, [str(word) for word in argv])
        except RuntimeError as error:
            yield Row(name, "slower than ours", f"failed: {str(error)[:150]}", None)
            continue
        faster = all(mine < theirs for mine, theirs in zip(ours, curve, strict=True))
        yield Row(f"{name}, the same", "slower than ours", _seconds(curve), faster)


def many(w: World) -> Iterator[Row]:
    w.far(0.040)
    words = _ssh(w)
    each = shlex.join(words[:-2]) + f" {w.host.user}@X true"
    bare = w.timed(["sh", "-c", f"printf '%s\\n' {' '.join(w.bridge.more)} | xargs -P 64 -I X {each}"], 2)
    yield Row("64 addresses at 40 ms: 64 of `ssh host true` at once, for comparison", "", f"{bare:.1f} s")
    seconds = w.timed([*DIAG, "host", "check", "many"], 1)
    yield Row("64 addresses at 40 ms: connect, two programs each (`host check`)", "", f"{seconds:.1f} s")
    one = w.timed([sys.executable, "-c", _MANY_FACTS, str(w.folder), "facts"], 3)
    yield Row("64 addresses at 40 ms, facts", "4 s", f"{one:.1f} s", one <= 4)
    whole = w.timed([sys.executable, "-c", _MANY_FACTS, str(w.folder), "host"], 1)
    yield Row(
        "64 addresses at 40 ms, all that `probe host` reads (64 programs on this one machine)", "", f"{whole:.1f} s"
    )
    begun = time.monotonic()
    process = w.begin([sys.executable, "-c", _MANY_FACTS, str(w.folder), "facts", "dead"], stdout=subprocess.PIPE)
    out = process.communicate()[0].decode().split()
    took = time.monotonic() - begun
    met = out == ["64", "1"] and took <= one + 3.5
    yield Row(
        "the same and a dead one with a limit of 3 s", "costs 3 s", f"{took:.1f} s, {'/'.join(out)} done/failed", met
    )
    w.far(0)


_MANY_FACTS = """
import os, sys
os.environ["DIAG_CONFIG_DIR"] = sys.argv[1]
from diag.hosts import courier, fleet, inventory
from diag.hosts.transport import connect
def one(host, outer):
    with connect(host, outer=outer) as transport:
        return courier.call(transport, sys.argv[2], {})
hosts = inventory.load().select("most" if "dead" in sys.argv else "many")
done = fleet.each(hosts, one)
print(sum(one.value is not None for one in done), sum(one.error is not None for one in done))
"""


# --- dead links --------------------------------------------------------------------------------------------


def dead(w: World) -> Iterator[Row]:
    for kind in ("paramiko", "openssh"):
        host = w.host.model_copy(update={"transport": kind})
        for name, point in _POINTS.items():
            if kind == "openssh" and name in _PARAMIKO_ONLY:
                continue
            w.far(0.040)
            begun: list[float] = []

            def cut(w: World = w, begun: list[float] = begun) -> None:
                w.bridge.cut()
                begun.append(time.monotonic())

            try:
                w.here(lambda host=host, point=point, cut=cut: point(host, cut))
                said = "an answer"
            except DiagError as error:
                said = type(error).__name__
            except OSError as error:
                said = f"UNTYPED {error!r}"
            took = time.monotonic() - begun[0]
            w.bridge.restore()
            right = (
                took <= 20
                and not said.startswith("UNTYPED")
                and ((said == "an answer") == (name == "after the exit status"))
            )
            yield Row(f"link cut {name} ({kind})", "typed, 20 s", f"{said} after {took:.1f} s", right)
            _kill_sessions(w)
    w.far(0)


Cut = Callable[[], None]


def _at(stage: str, after_s: float = 0.0) -> Callable[[Host, Cut], None]:
    def point(host: Host, cut: Cut) -> None:
        def note(passed: str) -> None:
            if passed == stage and after_s:
                threading.Timer(after_s, cut).start()
            elif passed == stage:
                cut()

        ssh.open_ssh(host, note=note).close()

    return point


def _before_connect(host: Host, cut: Cut) -> None:
    cut()
    connect(host).close()


def _at_channel(host: Host, cut: Cut) -> None:
    with connect(host) as transport:
        cut()
        transport.exec("true")


def _mid_output(host: Host, cut: Cut) -> None:
    with connect(host) as transport:
        process = transport.popen("while :; do echo x; sleep 0.05; done")
        process.read(10)
        cut()
        while process.read(60):
            pass


def _before_status(host: Host, cut: Cut) -> None:
    with connect(host) as transport:
        process = transport.popen("echo begun; sleep 2; exit 0")
        process.read(10)
        cut()
        if process.read(60) == b"" and process.exit_status(60) is not None:
            return
        raise OSError("no status")


def _after_status(host: Host, cut: Cut) -> None:
    with connect(host) as transport:
        done = transport.exec("echo all; exit 0")
        if done.exit_status != 0 or done.stdout != b"all\n":
            raise OSError("not the answer")
        cut()


_POINTS: dict[str, Callable[[Host, Cut], None]] = {
    "before connecting": _before_connect,
    "in the banner": _at("connect"),
    "in the key exchange": _at("connect", 0.07),
    "at authentication": _at("host key"),
    "at the channel's opening": _at_channel,
    "in the middle of output": _mid_output,
    "before the exit status": _before_status,
    "after the exit status": _after_status,
}
_PARAMIKO_ONLY = {"in the banner", "in the key exchange", "at authentication"}


def _kill_sessions(w: World) -> None:
    for pid in w.sshd.session_pids():
        conftest._kill(pid)


# --- Ctrl-C ------------------------------------------------------------------------------------------------


def interrupt(w: World) -> Iterator[Row]:
    process = w.begin(
        [*DIAG, "probe", "host", "slow", "--no-prompts"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    ours = _wait_for(lambda: _our_programs(w))
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    client = time.monotonic() - begun
    while any(pid in _our_programs(w) for pid in ours):
        time.sleep(0.05)
    remote = time.monotonic() - begun
    yield Row("Ctrl-C in `probe host`: the client has gone", "2 s", f"{client:.1f} s, exit code {code}", client <= 2.5)
    yield Row("Ctrl-C in `probe host`: the program on the host has gone", "15 s", f"{remote:.1f} s", remote <= 15)
    w.bridge.cut()
    process = w.begin([*DIAG, "probe", "host", "box"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(2)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    client = time.monotonic() - begun
    w.bridge.restore()
    yield Row(
        "Ctrl-C while connecting to a host that is silent", "2 s", f"{client:.1f} s, exit code {code}", client <= 2
    )


def _our_programs(w: World) -> list[int]:
    below = set(w.sshd.session_pids())
    return [p.pid for p in _proc.processes() if p.pid in below and p.state not in "ZX" and "-I" in p.argv]


def _wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError("it never came")
        time.sleep(0.02)
    return found


# --- servers -----------------------------------------------------------------------------------------------


def _launch(run_id: str, *options: str) -> serving.Launch:
    return serving.Launch(
        argv=[sys.executable, str(FAKE), "{port}", *options], run_id=run_id, ready_path="/health", ready_timeout_s=30
    )


def stops(w: World) -> Iterator[Row]:
    code = f"import runpy; runpy.run_path({str(FAKE)!r})['nasty_worker']({NAME!r})"
    bystander = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE)
    assert_line = bystander.stdout.readline() if bystander.stdout else b""
    namesake = int(assert_line.split()[1])
    bystander.wait()
    left, begun = [], time.monotonic()
    host = Host(**{**w.host.model_dump(), "env": {"XDG_STATE_HOME": str(w.folder / "host-state")}})

    def one(transport: Any, number: int) -> None:
        before = {p.key for p in _proc.processes(False)}
        with serving.start(
            transport, _launch(f"bench-{os.getpid()}-{number}", "--workers", "2", "--name", NAME)
        ) as server:
            time.sleep(0.3)
        time.sleep(0.1)
        new = [p for p in _proc.processes() if p.key not in before and p.state not in "ZX"]
        left.extend(p for p in new if p.argv[:1] == (NAME,) or str(FAKE) in p.argv)
        if not server.stopped.get("stopped") or not server.stopped.get("port_free"):
            left.append(server.stopped)

    def all_of_them() -> None:
        with connect(host) as transport:
            for number in range(w.stops):
                one(transport, number)

    serving.STOP_GRACE_S = 0.5  # they ignore TERM: what the usual 10 s would only wait for
    w.here(all_of_them)
    lives = any(p.pid == namesake and p.state not in "ZX" for p in _proc.processes(False))
    os.kill(namesake, signal.SIGKILL)
    each = (time.monotonic() - begun) / w.stops
    yield Row(
        f"server stopped, {w.stops} times, with two workers that fork twice, setsid, ignore TERM and rename themselves",
        "0 left, namesake lives",
        f"{len(left)} left, namesake {'lives' if lives else 'DEAD'}, {each:.1f} s each",
        not left and lives,
    )


def killed(w: World) -> Iterator[Row]:
    """The client is killed at even steps along a start; afterwards the server is found by list, or there is none."""
    outcomes = {"none": 0, "found": 0, "LOST": 0}
    up = 0
    w.far(0.040)
    begun = time.monotonic()
    with w.begin(
        [sys.executable, "-c", _START, str(w.folder), str(FAKE), f"whole-{os.getpid()}", NAME], stdout=subprocess.PIPE
    ) as client:
        if client.stdout is not None:
            client.stdout.readline()
            begun = time.monotonic()
            client.stdout.readline()
        step_s = 1.3 * (time.monotonic() - begun) / w.kills
        client.send_signal(signal.SIGINT)
    for step in range(w.kills):
        run_id = f"killed-{os.getpid()}-{step}"
        client = w.begin([sys.executable, "-c", _START, str(w.folder), str(FAKE), run_id, NAME], stdout=subprocess.PIPE)
        if client.stdout is not None:
            client.stdout.readline()
        time.sleep(step_s * step)
        up += bool(_proc.marked(run_id, [p.pid for p in _proc.processes(False)]))
        client.kill()
        client.communicate()
        outcomes[_after_kill(w, run_id)] += 1
    w.far(0)
    said = ", ".join(f"{count} {name}" for name, count in outcomes.items()) + f" ({up} had a server when they died)"
    yield Row(
        f"kill -9 of the client, every {step_s * 1000:.0f} ms along a start, {w.kills} times",
        "found by `server list`, or none",
        said,
        not outcomes["LOST"],
    )


def _after_kill(w: World, run_id: str) -> str:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not _proc.marked(run_id, [p.pid for p in _proc.processes(False)]):
            return "none"
        time.sleep(0.1)

    def listed() -> bool:
        with connect(w.host) as transport:
            return run_id in [one["run_id"] for one in reaping.servers(transport)["servers"]]

    return "found" if w.here(listed) else "LOST"


_START = """
import os, sys, time
os.environ["DIAG_CONFIG_DIR"] = sys.argv[1]
from diag.hosts import inventory
from diag.hosts.transport import connect
from diag.serving.server import Launch, start
print("begun", flush=True)
argv = [sys.executable, sys.argv[2], "{port}", "--workers", "1", "--name", sys.argv[4]]
launch = Launch(argv, sys.argv[3], ready_path="/health")
with connect(inventory.load().get("box")) as transport, start(transport, launch):
    print("ready", flush=True)
    time.sleep(60)
"""


def adopted(w: World) -> Iterator[Row]:
    """A supervisor is killed as well: what it leaves is listed, and stopped with proof."""
    run_id = f"orphan-{os.getpid()}"
    client = w.begin([sys.executable, "-c", _START, str(w.folder), str(FAKE), run_id, NAME])
    marked = _wait_for(lambda: _proc.marked(run_id, [p.pid for p in _proc.processes(False)]))
    time.sleep(1)
    for pid in _our_programs(w):
        conftest._kill(pid)
    client.kill()
    client.wait()

    def stop() -> reaping.Stopped:
        os.environ["DIAG_STATE_DIR"] = str(w.folder / "state")
        with connect(w.host) as transport:
            return reaping.stop(transport, run_id)

    done = w.here(stop)
    gone = not _proc.marked(run_id, [p.pid for p in _proc.processes(False)])
    said = f"{'clean' if done.clean else 'dirty'}, {len(marked)} marked before, none after: {gone}"
    yield Row("client and supervisor killed: `server stop RUN`", "clean", said, done.clean and gone)
    for process in _proc.processes():  # its worker has overwritten the mark, and has no parent: an orphan
        if process.argv[:1] == (NAME,) and process.ppid == 1:
            conftest._kill(process.pid)


# --- hostile output ----------------------------------------------------------------------------------------


def floods(w: World) -> Iterator[Row]:
    lines = {
        "200 MB on one line": "head -c 200000000 /dev/zero | tr '\\0' x",
        "8 MB on standard error, then 8 MB on output": "head -c 8000000 /dev/zero >&2; head -c 8000000 /dev/zero",
    }
    base = _resident(w, "true")
    for name, command in lines.items():
        memory, seconds = _resident(w, command)
        ok = memory <= 100
        yield Row(name, "100 MB resident", f"{memory:.0f} MB (bare connection: {base[0]:.0f}), {seconds:.1f} s", ok)


def _resident(w: World, command: str) -> tuple[float, float]:
    process = w.begin([sys.executable, "-c", _FLOOD, str(w.folder), command], stdout=subprocess.PIPE)
    out = process.communicate()[0].split()
    return float(out[0]), float(out[1])


_FLOOD = """
import os, resource, sys, time
os.environ["DIAG_CONFIG_DIR"] = sys.argv[1]
from diag.hosts import inventory
from diag.hosts.transport import connect
with connect(inventory.load().get("box")) as transport:
    begun = time.monotonic()
    done = transport.exec(sys.argv[2], timeout_s=120)
    took = time.monotonic() - begun
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, took, len(done.stdout), done.truncated)
"""


# --- whom we trust -----------------------------------------------------------------------------------------


def keys(w: World) -> Iterator[Row]:
    other = conftest.keygen(w.folder / "other_key").with_suffix(".pub").read_text().split()
    theirs, mine, name = " ".join(other[:2]), w.sshd.host_key_line(), f"[{w.host.address}]:{w.host.port}"
    hashed = w.folder / "hashed"
    hashed.write_text(f"{name} {mine}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", hashed], check=True, capture_output=True)
    table: dict[str, tuple[str | None, set[str]]] = {
        "right": (f"{name} {mine}\n", {"in"}),
        "another key": (f"{name} {theirs}\n", {"HostKeyChanged"}),
        "empty file": ("", {"HostKeyUnknown"}),
        "no file": (None, {"HostKeyUnknown"}),
        "unreadable file": ("(folder)", {"HostKeyUnknown"}),
        "revoked": (f"{name} {mine}\n@revoked * {mine}\n", {"HostKeyChanged"}),
        "wildcard": (f"[10.77.*]:* {mine}\n", {"in"}),
        "negated": (f"!{name},[10.77.*]:* {mine}\n", {"HostKeyUnknown"}),
        "hashed": (hashed.read_text(), {"in"}),
        "CA of others": (f"@cert-authority * {theirs}\n", {"HostKeyUnknown"}),
    }
    for kind in ("paramiko", "openssh"):
        wrong = []
        for label, (text, outcomes) in table.items():
            path = w.folder / f"known_{kind}_{label.replace(' ', '_')}"
            _place(path, text)
            host = w.host.model_copy(update={"known_hosts": path, "transport": kind})
            seen, execs, changed = _outcome(w, host, path)
            if seen not in outcomes or (seen != "in" and execs) or changed:
                wrong.append(f"{label}: {seen}, {execs} commands, file changed: {changed}")
        said = f"{len(table) - len(wrong)} of {len(table)} right" + "".join(f"; {line}" for line in wrong)
        yield Row(f"host keys: {', '.join(table)} ({kind})", "each right, no command, file unchanged", said, not wrong)


def _place(path: Path, text: str | None) -> None:
    if text == "(folder)":
        path.mkdir()
    elif text is not None:
        path.write_text(text)


def _outcome(w: World, host: Host, path: Path) -> tuple[str, int, bool]:
    before, had = w.sshd.execs(), path.read_bytes() if path.is_file() else None

    def attempt() -> str:
        try:
            with connect(host) as transport:
                return "in" if transport.exec("true").exit_status == 0 else "no command"
        except DiagError as error:
            return type(error).__name__

    seen = w.here(attempt)
    return seen, w.sshd.execs() - before, (path.read_bytes() if path.is_file() else None) != had


# --- tests that are the measure ----------------------------------------------------------------------------


def canaries(w: World) -> Iterator[Row]:
    for name, target, words in (
        ("secrets through every command, everything logged", "found nowhere", ["tests/hosts/test_canary.py"]),
        (
            "quoting, property-tested",
            "no canary file",
            ["tests/hosts", "-k", "never_run_as_shell or never_executed_as_shell or values_not_as_code or as_given"],
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        yield Row(name, target, done.stdout.strip().splitlines()[-1], done.returncode == 0)


def program(w: World) -> Iterator[Row]:
    from diag.hosts import payload

    size = len(payload.payload("probes.host", {"args": {}, "env": {}, "limit_s": 1.0}))
    yield Row("the program of `probe host`, compressed", "16 kB", f"{size} bytes", size <= 16 * 1024)
    listening = _listening(w)
    yield Row("ports that diag opens on either side while it asks a server", "0", str(listening), listening == 0)


def _listening(w: World) -> int:
    def look() -> int:
        with connect(w.host) as transport:
            before = set(_proc.listening("thread-self"))
            with contextlib.suppress(OSError):
                transport.open_tcp("127.0.0.1", w.host.port, 5).close()
            return len(set(_proc.listening("thread-self")) - before)

    return int(w.here(look))


MEASURES = (startup, program, trips, many, dead, interrupt, stops, killed, adopted, floods, keys, canaries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", type=Path, help="virtual environment with pyinfra and ansible-core")
    parser.add_argument("--only", nargs="+", choices=[m.__name__ for m in MEASURES])
    parser.add_argument("--stops", type=int, default=100, help="servers with nasty workers to stop")
    parser.add_argument("--kills", type=int, default=40, help="clients to kill along a start")
    args = parser.parse_args()
    missing = [name for name in ("ip", "nsenter", "ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"this needs root and {', '.join(missing) or 'nothing else'}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was set up is taken down
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the beginning\n")
    print("| measure | target | measured | met |\n|---|---|---|---|", flush=True)
    for measure in MEASURES:
        if args.only and measure.__name__ not in args.only:
            continue
        with world(args.rivals, args.stops, args.kills, alone=measure in (trips, many)) as made:
            try:
                for row in measure(made):
                    print(row, flush=True)
            except (RuntimeError, DiagError, OSError) as error:
                print(Row(measure.__name__, "", f"could not be measured: {str(error)[:300]}", False), flush=True)


if __name__ == "__main__":
    main()
