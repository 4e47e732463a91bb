"""Inference servers that run on this machine: which engine, which interpreter, which port, since when."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _proc
from .environments import Interpreter, describe

Json = Dict[str, Any]

DEFAULT_PORT = {"sglang": 30000, "vllm": 8000}
DEFAULT_HOST = {"sglang": "127.0.0.1", "vllm": "0.0.0.0"}


class Recognised(NamedTuple):
    engine: str
    worker: bool = False  # a renamed worker: a server of its own only if its server is gone


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """{} -> {"servers": [see `find`], "unknown": [{what, why}]}"""
    unknown: List[Json] = []
    return {"servers": find(unknown)[0], "unknown": unknown}


def recognise(argv: Sequence[str]) -> Optional[Recognised]:
    """Which engine a command line starts, if any. Wrappers (timeout, uv run, bash -c) are not servers."""
    if not argv:
        return None
    if re.match(r"(sglang|sgl)::", argv[0]) or re.match(r"VLLM::", argv[0]):
        return Recognised("vllm" if argv[0].startswith("VLLM") else "sglang", worker=True)
    words = list(argv)
    if re.match(r"(python|pypy)[\d.]*$", os.path.basename(words[0])):
        words = _after_options(words[1:])
    if words[:1] == ["-m"]:
        module = "".join(words[1:2])
        if module == "sglang.launch_server" or (module == "sglang" and words[2:3] == ["serve"]):
            return Recognised("sglang")
        return Recognised("vllm") if module.startswith("vllm.entrypoints.") else None
    script = os.path.basename(words[0]) if words else ""
    if script in ("sglang", "vllm") and words[1:2] == ["serve"]:
        return Recognised(script)
    return Recognised("sglang") if script == "launch_server.py" else None


def _after_options(words: List[str]) -> List[str]:
    """What follows the interpreter's own options; `-m` and its module are kept."""
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        words = words[2 if words[0] in ("-X", "-W") else 1 :]
    return words


def option(argv: Sequence[str], name: str) -> Optional[str]:
    """The value of `--name V` or `--name=V`; the last one counts, as in argparse."""
    value = None
    for at, word in enumerate(argv):
        if word.startswith(name + "="):
            value = word[len(name) + 1 :]
        elif word == name and at + 1 < len(argv):
            value = argv[at + 1]
    return value


def find(unknown: List[Json], packages: Sequence[str] = ()) -> Tuple[List[Json], List[Interpreter]]:
    """Top-level servers (not their workers), and their interpreters. A server:
    {pid, argv, engine: sglang|vllm|unknown, python, site_packages, cwd, port, host, listening: ["address:port"],
     started_at_utc, started_at_unix, user, run_id (ours, or null), env (telling variables), orphan (a worker whose
     server is gone), other_mounts (in a container, seen from outside)}. Secrets are hidden."""
    table = _proc.processes()
    parents = {process.pid: process.ppid for process in table}
    found: Dict[int, Tuple[_proc.Process, Optional[Recognised], Dict[str, str]]] = {}
    for process in table:
        env = _proc.environment(process.pid)
        what = recognise(process.argv)
        if process.pid != os.getpid() and process.state not in "ZX" and (what or _proc.MARK in env):
            found[process.pid] = (process, what, env)
    servers, interpreters = [], []
    for pid, (process, what, env) in sorted(found.items()):
        if not _ancestors(pid, parents) & set(found):
            server, interpreter = _server(process, what, env, unknown, packages)
            servers.append(server)
            interpreters += [interpreter] if interpreter else []
    return servers, interpreters


def _ancestors(pid: int, parents: Mapping[int, int]) -> "set[int]":
    seen = set()
    while pid in parents and parents[pid] not in seen:
        pid = parents[pid]
        seen.add(pid)
    return seen


def _server(
    process: _proc.Process,
    what: Optional[Recognised],
    env: Dict[str, str],
    unknown: List[Json],
    packages: Sequence[str],
) -> Tuple[Json, Optional[Interpreter]]:
    pid, argv = process.pid, process.argv
    cwd = _link(pid, "cwd")
    if _proc.HAS_PROC and cwd is None:
        why = "it belongs to another user"
        unknown.append({"what": f"working folder, environment and sockets of server {pid}", "why": why})
    elsewhere = _link(pid, "ns/mnt") not in (None, _link("self", "ns/mnt"))
    python = _python(process, env, cwd)
    interpreter = environment = None
    if python is not None:
        on_path = cwd if "-m" in argv[:4] else None
        interpreter = Interpreter(python, env, on_path, f"/proc/{pid}/root" if elsewhere else "")
        environment = describe(interpreter, packages)
    engine = what.engine if what else "unknown"
    held = _proc.sockets(pid)
    listens = sorted({address for inode, address in _proc.listening(pid).items() if inode in held}) if held else []
    host, port = _address(argv, engine, listens)
    started = _proc.started_unix(process)
    return {
        "pid": pid,
        "argv": _proc.hide_argv(argv),
        "engine": engine,
        "python": python,
        "site_packages": environment["site_packages"] if environment else None,
        "cwd": cwd,
        "port": port,
        "host": host,
        "listening": [f"{address}:{number}" for address, number in listens],
        "started_at_unix": started,
        "started_at_utc": _proc.utc(started) if started is not None else None,
        "user": user_of(pid),
        "run_id": env.get(_proc.MARK),
        "env": _proc.telling(env),
        "orphan": bool(what and what.worker),
        "other_mounts": elsewhere,
    }, interpreter


def _address(
    argv: Sequence[str], engine: str, listens: Sequence[Tuple[str, int]]
) -> Tuple[Optional[str], Optional[int]]:
    """What the command line says; where it does not, what the process listens on; else the engine's default."""
    said = option(argv, "--port")
    ports = {number: address for address, number in listens}
    port = DEFAULT_PORT.get(engine)
    if said is not None and said.isdecimal():
        port = int(said)
    elif ports and port not in ports:
        port = min(ports)
    host = ports.get(port) if port is not None else None
    return host or option(argv, "--host") or DEFAULT_HOST.get(engine), port


def _link(pid: object, name: str) -> Optional[str]:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None


def _python(process: _proc.Process, env: Mapping[str, str], cwd: Optional[str]) -> Optional[str]:
    """The interpreter as it was called, which tells the venv; the executable itself would be the base's."""
    name = process.argv[0] if process.argv else ""
    if "python" not in os.path.basename(name):
        return _link(process.pid, "exe")
    if os.path.isabs(name):
        return name
    if "/" in name:
        return os.path.normpath(os.path.join(cwd, name)) if cwd else None
    return shutil.which(name, path=env.get("PATH", os.defpath)) or _link(process.pid, "exe")


def user_of(pid: int) -> Optional[str]:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return _proc.command(["ps", "-o", "user=", "-p", str(pid)], 5)[0].strip() or None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
