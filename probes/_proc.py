"""Processes and ports of this machine, read without changing anything: /proc on Linux, else `ps`, `lsof`.

Also here, because everything that leaves the host passes it: hiding of secret values.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import socket
import subprocess
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

MARK = "DIAG_RUN_ID"  # environment variable that every process of a server started by us inherits
HAS_PROC = os.path.exists("/proc/self/stat")
_PS = ["ps", "-axwwo", "pid=,ppid=,pgid=,state=,lstart=,command="]


class Process(NamedTuple):
    """One line of the process table. `start` is raw (clock ticks since boot, or ps' lstart): with the pid it
    is an identity that survives the reuse of pids; `started_unix` makes seconds of it."""

    pid: int
    ppid: int
    group: int
    state: str
    start: str
    argv: Tuple[str, ...]

    @property
    def key(self) -> Tuple[int, str]:
        return (self.pid, self.start)


def text(raw: bytes) -> str:
    """Bytes of the host as text that can always be printed and stored: invalid UTF-8 becomes \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def read(path: str, limit: int = 1 << 22) -> Optional[bytes]:
    """A file's first `limit` bytes, or None where it is not there, not ours to read, or gone meanwhile."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def command(argv: Sequence[str], limit_s: float) -> Tuple[str, str]:
    """(what it printed, "") or ("", why not). Never waits longer than `limit_s`, also not for what cannot be
    killed (a driver that hangs keeps nvidia-smi in uninterruptible sleep)."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(os.environ, LC_ALL="C"),
        )
    except OSError as error:
        return "", f"{argv[0]}: {error.strerror}"
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            return "", f"{argv[0]} hung for {limit_s:g} s and cannot be killed"
        return "", f"{argv[0]} gave no answer within {limit_s:g} s"
    if child.returncode != 0:
        said = text(err or out).strip().splitlines()
        return "", f"{argv[0]} failed with {child.returncode}: {said[-1] if said else 'no message'}"
    return text(out), ""


def gpu_memory_mib(limit_s: float = 5.0) -> Optional[List[int]]:
    """Memory in use, MiB a GPU; None where that cannot be asked."""
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = command(argv, limit_s)[0].split()
    return [int(number) for number in used] if used and all(number.isdecimal() for number in used) else None


# --- the process table ----------------------------------------------------------------------------


def parse_cmdline(raw: bytes) -> Tuple[str, ...]:
    """/proc/PID/cmdline. A renamed process pads with NULs; a kernel thread has none."""
    raw = raw.rstrip(b"\0")
    return tuple(text(part) for part in raw.split(b"\0")) if raw else ()


def parse_stat(line: str, argv: Tuple[str, ...] = ()) -> Process:
    """/proc/PID/stat; the name in parentheses may hold spaces and parentheses. ValueError if it is not one."""
    head, _, tail = line.rpartition(")")
    field = tail.split()
    if len(field) < 20:
        raise ValueError(f"not a stat line: {line!r}")
    return Process(int(head.split(" ", 1)[0]), int(field[1]), int(field[2]), field[0], field[19], argv)


def parse_ps(listing: str) -> List[Process]:
    """Output of `ps -o pid=,ppid=,pgid=,state=,lstart=,command=`; argv is split at blanks, as ps joined it."""
    found = []
    for line in listing.splitlines():
        field = line.split()
        if len(field) >= 9 and field[0].isdigit() and field[1].isdigit() and field[2].isdigit():
            found.append(
                Process(
                    int(field[0]),
                    int(field[1]),
                    int(field[2]),
                    field[3][:1],
                    " ".join(field[4:9]),
                    tuple(field[9:]),
                )
            )
    return found


def processes(with_argv: bool = True) -> List[Process]:
    """All processes visible to us."""
    if not HAS_PROC:
        return parse_ps(command(_PS, 10)[0])
    found = []
    for name in os.listdir("/proc"):
        stat = read(f"/proc/{name}/stat") if name.isdigit() else None
        if stat:
            argv = parse_cmdline(read(f"/proc/{name}/cmdline") or b"") if with_argv else ()
            found.append(parse_stat(text(stat), argv))
    return found


def started_unix(process: Process) -> Optional[float]:
    """Start time in seconds since the epoch, by this host's clock."""
    try:
        if not HAS_PROC:
            return time.mktime(time.strptime(process.start, "%a %b %d %H:%M:%S %Y"))
        boot = re.search(rb"^btime (\d+)", read("/proc/stat") or b"", re.M)
        return int(boot.group(1)) + int(process.start) / os.sysconf("SC_CLK_TCK") if boot else None
    except ValueError:
        return None


def utc(unix: float) -> str:
    """2026-11-29T17:23:01Z"""
    return datetime.datetime.fromtimestamp(unix, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def environment(pid: int) -> Dict[str, str]:
    """Variables a process was started with; {} where not readable (another user's, or no /proc)."""
    pairs = (text(entry).partition("=") for entry in (read(f"/proc/{pid}/environ") or b"").split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def marked(run_id: str, pids: Iterable[int]) -> Set[int]:
    """Those of `pids` that carry our mark with this run id."""
    mark = f"{MARK}={run_id}"
    if HAS_PROC:
        wanted = mark.encode()
        return {pid for pid in pids if wanted in (read(f"/proc/{pid}/environ") or b"").split(b"\0")}
    lines = (line.split() for line in command(["ps", "-axEwwo", "pid=,command="], 10)[0].splitlines())
    return {int(words[0]) for words in lines if mark in words} & set(pids)


def outputs(pid: int) -> Set[str]:
    """The pipes a process writes its output to, as "pipe:[inode]"; empty where there are none or not readable."""
    found = set()
    for number in (1, 2):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return {target for target in found if target.startswith("pipe:")}


# --- ports ----------------------------------------------------------------------------------------


def parse_listening(table: str) -> Dict[str, Tuple[str, int]]:
    """/proc/net/tcp or tcp6 -> {socket inode: (address, port)} of listening sockets."""
    found = {}
    for line in table.splitlines()[1:]:
        field = line.split()
        if len(field) < 10 or field[3] != "0A":
            continue
        address, _, port = field[1].partition(":")
        words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
        family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
        found[field[9]] = (socket.inet_ntop(family, b"".join(words)), int(port, 16))
    return found


def listening(pid: object = "self") -> Dict[str, Tuple[str, int]]:
    """Listening sockets of the network namespace that process lives in."""
    found: Dict[str, Tuple[str, int]] = {}
    for name in ("tcp6", "tcp"):
        found.update(parse_listening(text(read(f"/proc/{pid}/net/{name}") or b"")))
    return found


def sockets(pid: int) -> Set[str]:
    """Inodes of the sockets a process holds; empty where not readable."""
    inodes = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return inodes


def port_is_free(port: int) -> bool:
    """True if a server could listen there: both on loopback and on all addresses, and nobody answers."""
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    with socket.socket() as probe:  # BSD lets a second socket bind beside a listener on another address
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


# --- secrets --------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(r"SECRET|PASS|CRED|AUTH|KEYS?(?![A-Z])")
_TOKEN_NAME = re.compile(r"TOKENS?(?![A-Z])")  # but not --tokenizer-path
_COUNT = re.compile(r"[\d.,_]{1,9}")  # and not --speculative-num-draft-tokens 4
_PLAIN = re.compile(r"\d?|true|false|yes|no|on|off|none|auto", re.I)  # what no secret is
# A token may begin behind "\x1b[31m", which colours it.
_SECRET_TEXT = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?:\b|(?<=m))(?:sk-|hf_|gh\w_|AKIA|eyJ)[\w.-]{16,}")

_TELLING = re.compile(
    r"(CUDA|NCCL|SGL|SGLANG|VLLM|TORCH\w*|PYTORCH|TRITON|FLASHINFER|HF|HIP|ROCM|OMP|MC|UCX|GLOO|NVSHMEM)_"
    r"|PYTHONPATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|CONDA_PREFIX$|DIAG_RUN_ID$"
)


def is_secret(name: str, value: str) -> bool:
    """Is this variable or flag one whose value must not leave the host?"""
    name = name.upper()
    if _PLAIN.fullmatch(value):
        return False
    if _SECRET_NAME.search(name):
        return True
    return _TOKEN_NAME.search(name) is not None and _COUNT.fullmatch(value) is None


def secrets(argv: Sequence[str], env: Mapping[str, Optional[str]]) -> Set[str]:
    """Secret values of a command line (`--api-key X`, `--api-key=X`, `NAME=X`) and its variables."""
    found = {value for name, value in env.items() if value and is_secret(name, value)}
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if equals and is_secret(name, value):
            found.add(value)
        elif word.startswith("-") and not equals:
            value = "".join(argv[at + 1 : at + 2])
            if not value.startswith("--") and is_secret(word, value):
                found.add(value)
    return found - {""}


def hide(line: str, values: Iterable[str] = ()) -> str:
    """`line` without the given secret values, URL passwords and well-known key shapes."""
    for value in sorted(values, key=len, reverse=True):
        line = line.replace(value, "***")
    return _SECRET_TEXT.sub("***", line)


def hide_argv(argv: Sequence[str]) -> List[str]:
    """A command line that may be shown."""
    values = secrets(argv, {})
    return [
        "***" if word in values else hide(word, (value for value in values if word.endswith("=" + value)))
        for word in argv
    ]


def telling(env: Mapping[str, str]) -> Dict[str, str]:
    """Those variables that change what an engine does, fit to be shown."""
    shown = {name: value for name, value in sorted(env.items()) if _TELLING.match(name)}
    return {name: "***" if is_secret(name, value) else hide(value) for name, value in shown.items()}
