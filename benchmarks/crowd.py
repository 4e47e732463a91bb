"""The ssh executor against many hosts: what is left, what it takes, and what happens when the laptop dies. A table.

    python benchmarks/crowd.py [--hosts 32] [--kills 2] [--only whole TERM KILL]

One real sshd on loopback, at an address for each host (127.0.0.2 and on) with a state folder, and so a lock, of its
own; a toy engine is the server, because 32 real ones do not fit on one machine. `diag bisect` is a process of its own,
whose memory, threads and connections are read while it runs. Every process on the far side carries a mark in its
environment: what is left is counted by that, and by what sshd still has connected. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diag.hosts import holding
from tests import conftest

ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT / "tests" / "bisect" / "toy_flags_server.py"
DIAG = [sys.executable, "-c", "from diag.cli import main; main()"]
FACTORS = 8
PLAN = f"""\
command: "{{python}} {TOY} --port {{port}}"
prompts: ./suite.yaml
ready_timeout_s: 300
factors:
  batch: {{flag: --batch, good: 1, bad: 8, sweep: false}}
""" + "".join(f"  f{i}: {{flag: --f{i}, good: 0, bad: 1, sweep: false}}\n" for i in range(FACTORS - 1))
SUITE = """\
schema: 1
name: one
max_new_tokens: 32
prompts:
  - {name: river, user: "Tell me about the river."}
"""
LIMIT_S = 900.0
MEMORY_MB = 200


@dataclass
class Crowd:
    """sshd: all hosts; mark: in the environment of all that runs on them."""

    folder: Path
    sshd: conftest.Sshd
    mark: str

    def begin(self) -> subprocess.Popen[bytes]:
        sets = ["--set", f"python={sys.executable}"]
        env = {
            **os.environ,
            "DIAG_STATE_DIR": str(self.folder / "laptop"),
            "DIAG_CONFIG_DIR": str(self.folder),
            "OPENBLAS_NUM_THREADS": "1",
        }
        with self.out.open("wb") as out, self.out.with_suffix(".err").open("wb") as err:
            return subprocess.Popen(
                [*DIAG, "bisect", "all", "--plan", str(self.folder / "toy.yaml"), *sets, "--json"],
                cwd=self.folder, env=env, stdout=out, stderr=err,
            )  # fmt: skip

    @property
    def out(self) -> Path:
        return self.folder / "told.json"

    def there(self) -> list[str]:
        """Command lines of what runs on the hosts."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if f"CROWD={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue
        return found

    def servers(self) -> int:
        return sum(TOY.name in line and "--port" in line for line in self.there())

    def connected(self) -> int:
        """TCP connections with sshd, seen from its side."""
        told = f"{self.sshd.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{told}") and row[3] == "01" for row in rows)


def crowd(folder: Path, hosts: int) -> Crowd:
    mark = secrets.token_hex(8)
    (folder / "sshd").mkdir()
    carried = f"SetEnv HOME={folder / 'sshd' / 'home'} CROWD={mark}"
    sshd = conftest._start(conftest._sshd_binary(), folder / "sshd", carried, "0.0.0.0")
    if not conftest._ready(sshd):
        raise SystemExit(sshd.log.read_text())
    addresses = [f"127.0.0.{i}" for i in range(2, hosts + 2)]
    sshd.known_hosts.write_text("".join(f"[{a}]:{sshd.port} {sshd.host_key_line()}\n" for a in addresses))
    entries = (
        f'[hosts.h{i}]\naddress = "{address}"\nport = {sshd.port}\nuser = "{sshd.host.user}"\n'
        f'identity_file = "{sshd.host.identity_file}"\nknown_hosts = "{sshd.known_hosts}"\n'
        f'env = {{ XDG_STATE_HOME = "{folder}/state{i}" }}\n'
        for i, address in enumerate(addresses)
    )
    (folder / "hosts.toml").write_text("schema = 1\n" + "".join(entries))
    (folder / "toy.yaml").write_text(PLAN)
    (folder / "suite.yaml").write_text(SUITE)
    return Crowd(folder, sshd, mark)


@dataclass
class Watched:
    """Of the laptop's process, while it ran: the most of each."""

    memory_mb: float = 0.0
    threads: int = 0
    connections: int = 0
    servers: int = 0
    begun: float = field(default_factory=time.monotonic)

    def look(self, pid: int, there: Crowd) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        if "VmHWM" in status:
            self.memory_mb = max(self.memory_mb, int(status["VmHWM"].split()[0]) / 1000)
            self.threads = max(self.threads, int(status["Threads"]))
        self.connections = max(self.connections, there.connected())
        self.servers = max(self.servers, there.servers())


Row = tuple[str, str, str]


def whole(there: Crowd, hosts: int) -> Iterator[Row]:
    """One bisection, undisturbed."""
    watched, process = Watched(), there.begin()
    while process.poll() is None and time.monotonic() - watched.begun < LIMIT_S:
        watched.look(process.pid, there)
        time.sleep(0.2)
    took = time.monotonic() - watched.begun
    if process.poll() is None:
        process.kill()
    told = json.loads(there.out.read_text() or "{}")
    if "trials" not in told:
        raise SystemExit(f"{told}\n{there.out.with_suffix('.err').read_text()[-2000:]}")
    culprit = (told["culprit"] or {}).get("factors")
    used = len({trial["host"] for trial in told["trials"]})
    yield (
        f"one bisection over {hosts} hosts", "the culprit",
        f"{culprit} with exit code {process.returncode}, {len(told['trials'])} trials on {used} hosts, {took:.0f} s, "
        f"left out: {len(told['left_out'])}",
    )  # fmt: skip
    yield ("memory of the laptop's side, at most", f"<= {MEMORY_MB} MB", f"{watched.memory_mb:.0f} MB")
    most = f"{watched.threads}, {watched.connections}, {watched.servers}"
    yield ("threads, connections, servers at once, at most", "-", most)
    yield ("processes and connections left when it has ended", "0, 0", _left(there, 5.0))


def struck(there: Crowd, hosts: int, how: signal.Signals) -> Iterator[Row]:
    """The laptop's process ends in the middle, when half of the hosts have a server."""
    watched, process = Watched(), there.begin()
    while process.poll() is None and watched.servers < hosts // 2 and time.monotonic() - watched.begun < LIMIT_S:
        watched.look(process.pid, there)
        time.sleep(0.05)
    process.send_signal(how)
    begun = time.monotonic()
    process.wait()
    ended = time.monotonic() - begun
    limit = holding.LEASE_S * 2
    left = _left(there, limit)
    yield (
        f"{how.name} with {watched.servers} servers up", f"nothing left within the lease ({holding.LEASE_S:.0f} s)",
        f"exit code {process.returncode} after {ended:.1f} s; left {left}",
    )  # fmt: skip


def _left(there: Crowd, limit_s: float) -> str:
    """Waits until nothing is, or no longer than that."""
    begun = time.monotonic()
    while (there.there() or there.connected()) and time.monotonic() - begun < limit_s:
        time.sleep(0.2)
    return f"{len(there.there())}, {there.connected()} after {time.monotonic() - begun:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--kills", type=int, default=2, help="of each signal")
    parser.add_argument("--only", nargs="+", choices=["whole", "TERM", "KILL"], default=["whole", "TERM", "KILL"])
    given = parser.parse_args()
    tables: dict[str, Callable[[Crowd], Iterator[Row]]] = {
        "whole": lambda c: whole(c, given.hosts),
        "TERM": lambda c: struck(c, given.hosts, signal.SIGTERM),
        "KILL": lambda c: struck(c, given.hosts, signal.SIGKILL),
    }
    print("| measure | target | reached |\n|---|---|---|", flush=True)
    for name in given.only:
        for _ in range(1 if name == "whole" else given.kills):
            with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
                there = crowd(Path(folder), given.hosts)
                try:
                    for row in tables[name](there):
                        print(f"| {' | '.join(row)} |", flush=True)
                finally:
                    for pid in there.sshd.session_pids():
                        conftest._kill(pid)
                    there.sshd.process.kill()
                    there.sshd.process.wait()


if __name__ == "__main__":
    main()
