"""`diag lab up | status | reset | down`: the life of the embedded host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diag import bundle
from diag.errors import LabError
from diag.hosts.draft import quoted
from diag.lab import build
from diag.lab.layout import HOST_NAME, MODEL_PACKAGE, MODEL_VERSION, SGLANG_VERSION, Lab, model_dir, owned_by_us
from diag.serving.engine import Name

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0

# A tree of 16 nodes is 17 rows wide; the backend goes on counting 8.
STORY_FLAGS = (
    *("--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "16"),
    *("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"),
)

# The mask of the step before is read where a captured step is replayed, and only a step that verifies drafts has one.
VLLM_FLAGS = (
    *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
    *("--lab-fault", "stale-mask"),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class LabStatus:
    """built: the environment is there. running: its SSH server answers to the pid on record."""

    folder: str
    built: bool
    running: bool
    host: str
    port: int | None
    sshd_pid: int | None
    engine: str
    model: str
    python: str
    servers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def up(lab: Lab, say: Say) -> LabStatus:
    """Build what is missing, start the SSH server, write the inventory entry. A running lab is left as it is."""
    build.require_packages()
    if lab.root.is_dir() and not owned_by_us(lab.root):
        raise LabError(
            f"{lab.root} is not empty and not a lab.",
            next="Name an empty folder, or one that does not exist yet.",
        )
    now = status(lab)
    if now.running and now.built:
        return now
    model = build.build_model(say)
    for folder in (lab.ssh, lab.home):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    if not now.built:
        build.build_environment(lab, say)
        lab.write_state(engine=f"sglang {SGLANG_VERSION}", model=str(model), built=True)
    build.write_launchers(lab)
    _fresh_keys(lab)
    _start_sshd(lab, say)
    _write_inventory(lab)
    return status(lab)


def start_line(lab: Lab, engine: Name, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """Of a server in the lab, `{port}` in it; without flags, one that garbles."""
    if engine == "vllm":
        script = str(lab.python.with_name("vllm"))
        return (script, "serve", str(model_dir()), "--host", "127.0.0.1", "--port", "{port}", *(flags or VLLM_FLAGS))
    words = ("-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}")
    return (str(lab.python), *words, *(flags or STORY_FLAGS))


def down(lab: Lab, say: Say) -> bool:
    """Stop everything that runs in the lab and remove its folder. False when there was no lab."""
    if not lab.root.is_dir():
        _forget(lab)
        return False
    if not owned_by_us(lab.root):
        raise LabError(f"{lab.root} is not a lab: nothing was removed.", next="Look at what is in it.")
    _stop(lab, say)
    _forget(lab)
    shutil.rmtree(lab.root)
    return True


def reset(lab: Lab, say: Say) -> LabStatus:
    """The pristine wheel again, no journals, no servers; the SSH server and its keys stay."""
    if not status(lab).built:
        raise LabError("There is no lab to reset.", next="Start one: diag lab up.")
    _stop_servers(lab, say)
    build.unpack_engine(lab, say)
    shutil.rmtree(lab.home)
    lab.home.mkdir(mode=0o700)
    return status(lab)


def status(lab: Lab) -> LabStatus:
    state = lab.read_state()
    pid = state.get("sshd_pid")
    running = isinstance(pid, int) and _is_our_sshd(pid, lab)
    return LabStatus(
        folder=str(lab.root),
        built=bool(state.get("built")) and lab.site_packages.is_dir(),
        running=running,
        host=HOST_NAME,
        port=state.get("port") if running else None,
        sshd_pid=pid if running else None,
        engine=state.get("engine", f"sglang {SGLANG_VERSION}"),
        model=f"{MODEL_PACKAGE} {MODEL_VERSION} ({model_dir()})",
        python=str(lab.python),
        servers=tuple(pid for pid, _ in _lab_processes(lab)),
    )


def _fresh_keys(lab: Lab) -> None:
    """New host and user keys, and the known_hosts line for them, each time the SSH server is started anew."""
    import asyncssh

    for path in (lab.host_key, lab.user_key):
        key = asyncssh.generate_private_key("ssh-ed25519", comment="diag lab")
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(key.export_private_key())
        path.with_suffix(".pub").write_bytes(key.export_public_key())


def _start_sshd(lab: Lab, say: Say) -> None:
    say("starting the SSH server")
    lab.write_state(sshd_pid=None)
    with lab.sshd_log.open("ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "diag.lab.sshd", str(lab.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while lab.read_state().get("sshd_pid") != daemon.pid:
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            tail = lab.sshd_log.read_text(errors="replace").splitlines()[-5:]
            raise LabError("The lab's SSH server did not start.", next=f"Its log: {lab.sshd_log}", details=tail)
        time.sleep(0.05)
    port = lab.read_state()["port"]
    public = lab.host_key.with_suffix(".pub").read_text().split()
    lab.known_hosts.write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    # The daemon outlives us on purpose; its state file, not this object, is how it is found again.
    daemon.returncode = 0


def _write_inventory(lab: Lab) -> None:
    state = lab.read_state()
    entry = f"""\
# Written by `diag lab up`; removed by `diag lab down`.
schema = 1

[hosts.{HOST_NAME}]
address = "127.0.0.1"
port = {state["port"]}
user = {quoted(build_user())}
identity_file = {quoted(lab.user_key)}
known_hosts = {quoted(lab.known_hosts)}
python = {quoted(lab.python)}

[hosts.{HOST_NAME}.labels]
model = {quoted(state["model"])}
"""
    lab.inventory_file.parent.mkdir(parents=True, exist_ok=True)
    lab.inventory_file.write_text(entry)


def build_user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _forget(lab: Lab) -> None:
    """Remove the inventory entry, if it is this lab's."""
    try:
        mine = str(lab.user_key) in lab.inventory_file.read_text()
    except FileNotFoundError:
        return
    if mine:
        lab.inventory_file.unlink()


def _stop(lab: Lab, say: Say) -> None:
    pid = lab.read_state().get("sshd_pid")
    _stop_servers(lab, say)
    if isinstance(pid, int) and _is_our_sshd(pid, lab):
        _end(pid)
    lab.write_state(sshd_pid=None)


def _stop_servers(lab: Lab, say: Say) -> None:
    for pid, argv in _lab_processes(lab):
        say(f"stopping process {pid}: {' '.join(argv)[:80]}")
        _end(pid)


def _end(pid: int) -> None:
    """TERM, then KILL; returns when the process is gone."""
    for sign, patience_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not _alive(pid):
                return
            time.sleep(0.05)
    raise LabError(f"Process {pid} could not be stopped.", next=f"Look at it: ps -p {pid}")


def _alive(pid: int) -> bool:
    try:
        with_child = os.waitpid(pid, os.WNOHANG)[0]  # only if it is our own child; otherwise ECHILD
        if with_child == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_our_sshd(pid: int, lab: Lab) -> bool:
    """A pid alone may be someone else's by now: the command line must name this lab."""
    return any(p == pid and "diag.lab.sshd" in argv and str(lab.root) in argv for p, argv in _processes())


def _lab_processes(lab: Lab) -> list[tuple[int, list[str]]]:
    """Processes that run with the lab's own interpreter, whoever started them."""
    return [(pid, argv) for pid, argv in _processes() if argv and Path(argv[0]) == lab.python]


def _processes() -> list[tuple[int, list[str]]]:
    listing = bundle.load("probes._proc").processes()
    return [(process.pid, list(process.argv)) for process in listing if process.state != "Z"]
