"""Jobs of a Slurm cluster, from its login node: submitted, looked at, collected, cancelled. See `run`.

Only `sbatch`, `squeue`, `scancel` and `sinfo` are used: accounting (sacct) is asked where it is there, since a cluster
need not have it. A job's own folder says what it came to; the queue only says whether there is still something to wait
for.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _jobfiles, _proc
from ._wire import failure

Json = Dict[str, Any]

LIMIT_S = 40.0
GONE_S = 100.0  # a controller that was away as a job ended takes a minute to believe that it has
LOG_BYTES = 1 << 16
_NOT_USABLE = ("down", "drain", "error", "fail", "inval", "maint", "perfctrs", "power", "reboot", "unk")
_TOOLS = ("sbatch", "squeue", "scancel", "sinfo")
_QUEUE = ["squeue", "--noheader", "--states=all", "--format=%i|%j|%T|%r|%N"]
_ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """args: do, and run (the bisection's id) and root (where the folders of runs are; null: in our own folder of this
    user's home, which all nodes must see).

    look    partition (null: the default one) -> {nodes [{name, state, usable}]}
    free    job -> {}, which may be placed on any node from now on
    submit  serial, name (of the job), files {name: base64}, script, placeholder (in it, for the job's folder) ->
            {job: id, folder, submitted_unix}; the same name again is the same job, not another
    poll    jobs {serial: id} -> {jobs {serial: {state, reason, nodes, progress, result: whether it is there}},
            controller: "" or why it does not answer}; state "" is a job that the queue does not know any more
    collect serial -> {result, submitted_unix, stopped: whether it was told to stop before it had a result, log: the
            last lines of the job's output}
    find    -> {jobs [{serial, job: id or null, spec}]}, all that was submitted for this run
    cancel  jobs [id], forget: whether the run's folder goes -> {left: jobs that the queue still holds}
    Errors: host, where the controller does not answer: it may later; precondition, with what Slurm said.
    """
    if args["do"] != "find":
        lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if lacking:
            return _refused(
                "There is no {} on this host: it is no login node of a Slurm cluster.".format(", ".join(lacking)),
                "Name a host that can submit jobs, or add the folder of Slurm's programs to PATH in its env.",
            )
    if args["do"] == "look":
        return _look(args)
    if args["do"] == "free":
        _proc.command(["scontrol", "update", "JobId={}".format(int(args["job"])), "ExcNodeList="], LIMIT_S)
        return {}
    root = _jobfiles.root(args.get("root"), str(args["run"]))
    if args["do"] == "submit":
        return _submit(root, args)
    if args["do"] == "poll":
        return _poll(root, dict(args["jobs"]))
    if args["do"] == "collect":
        return _collect(root, str(args["serial"]))
    if args["do"] == "find":
        return _find(root)
    return _cancel(root, [str(job) for job in args["jobs"]], bool(args.get("forget")))


def _refused(what: str, next: str, said: str = "") -> Json:
    return failure("precondition", what, next, said.splitlines()[-20:])


def _away(said: str) -> Json:
    return failure(
        "host",
        "Slurm's controller does not answer.",
        "Ask there: scontrol ping. Is its configuration elsewhere? Set SLURM_CONF in the env of the host.",
        said.splitlines()[-20:],
    )


def _look(args: Mapping[str, Any]) -> Json:
    out, why = _proc.command(["sinfo", "--noheader", "--Node", "--format=%P|%N|%T"], LIMIT_S)
    if why:
        return _away(why)
    rows = [line.strip().split("|") for line in out.splitlines() if line.count("|") == 2]
    known = sorted({name.rstrip("*") for name, _, _ in rows})
    wanted = args.get("partition")
    if wanted and wanted not in known:
        return _refused(
            "There is no partition {} on this cluster; no job was submitted.".format(wanted),
            "Take one of: {}".format(", ".join(known)),
        )
    mine = [row for row in rows if (row[0].rstrip("*") == wanted if wanted else row[0].endswith("*"))]
    nodes = [{"name": name, "state": state, "usable": _usable(state)} for _, name, state in mine]
    return {"nodes": nodes}


def _usable(state: str) -> bool:
    """In sinfo's words: down, drained, and with a * behind it, not responding."""
    return not state.startswith(_NOT_USABLE) and not state.endswith("*")


# --- submit ---------------------------------------------------------------------------------------


def _submit(root: str, args: Mapping[str, Any]) -> Json:
    folder = os.path.join(root, str(int(args["serial"])))
    if not re.fullmatch(r"[\w./@+-]+", folder):
        return _refused("A batch script cannot name the folder {!r}.".format(folder), "Name another one: --job-dir DIR")
    try:
        _jobfiles.make(folder)
        for name, data in dict(args["files"]).items():
            _jobfiles.put(os.path.join(folder, os.path.basename(name)), base64.b64decode(data))
        script = str(args["script"]).replace(str(args["placeholder"]), folder)
        _jobfiles.put(os.path.join(folder, "job.sh"), script.encode("utf-8"))
    except OSError as error:
        return _refused(
            "The job's files cannot be written: {}.".format(error),
            "Name a folder that login and compute nodes share, and that is yours: --job-dir DIR",
        )
    # A link that was lost after sbatch had answered: the job is there, and must not be there twice.
    known = _jobfiles.read(os.path.join(folder, "job.json"))
    if known is None:
        known, away = _named(str(args["name"]))
        if away:
            return _away(away)
    if known is None:
        out, why = _proc.command(["sbatch", "--parsable", os.path.join(folder, "job.sh")], LIMIT_S)
        if why:
            known, away = _named(str(args["name"]))  # the controller went away after it had taken it
            if known is None and (away or _is_away(why)):
                return _away(why)
            if known is None:
                return _refused("Slurm does not take the job.", "Change what it was asked for; see above.", why)
        else:
            known = {"job": out.strip().split(";")[0]}
    known = dict({"submitted_unix": time.time()}, **known)
    _jobfiles.write(os.path.join(folder, "job.json"), known)
    return dict(known, folder=folder)


def _named(name: str) -> Tuple[Optional[Json], str]:
    """The job of that name, and "" or why the queue cannot be read."""
    rows, why = _rows(["--name", name])
    return ({"job": rows[-1][0]} if rows else None), why


def _is_away(why: str) -> bool:
    """In sbatch's words, or in ours where it hung."""
    return any(words in why for words in ("contact slurm controller", "timed out", "gave no answer"))


def _rows(more: Sequence[str]) -> Tuple[List[List[str]], str]:
    """[[id, name, state, reason, nodes]] and "", or why the queue cannot be read."""
    out, why = _proc.command([*_QUEUE, "--user", str(os.geteuid()), *more], LIMIT_S)
    return [line.split("|", 4) for line in out.splitlines() if line.count("|") >= 4], why


# --- poll, collect --------------------------------------------------------------------------------


def _poll(root: str, jobs: Mapping[str, str]) -> Json:
    rows, why = _rows([])
    queue = {row[0]: row for row in rows}
    told = {}
    for serial, job in jobs.items():
        folder = os.path.join(root, str(int(serial)))
        _, _, state, reason, nodes = queue.get(str(job)) or [job, "", "", "", ""]
        if not state and not why:
            state, nodes = _accounted(str(job))
        told[serial] = {
            "state": state,
            "reason": reason,
            "nodes": nodes,
            "progress": _jobfiles.read(os.path.join(folder, "progress.json")),
            "result": os.path.exists(os.path.join(folder, "result.json.gz")),
        }
    return {"jobs": told, "controller": why}


def _accounted(job: str) -> Tuple[str, str]:
    """What accounting remembers of a job that the queue has forgotten; "" where there is none."""
    if shutil.which("sacct") is None:
        return "", ""
    out, why = _proc.command(["sacct", "-n", "-P", "-X", "-j", job, "-o", "State,NodeList"], LIMIT_S)
    line = out.strip().splitlines()[-1] if out.strip() and not why else ""
    state, _, nodes = line.partition("|")
    return state.split(" ")[0], nodes


def _collect(root: str, serial: str) -> Json:
    folder = os.path.join(root, str(int(serial)))
    result = _jobfiles.read(os.path.join(folder, "result.json.gz"))
    submitted = (_jobfiles.read(os.path.join(folder, "job.json")) or {}).get("submitted_unix")
    stopped = _jobfiles.read(os.path.join(folder, "ended.json")) is not None
    return {"result": result, "submitted_unix": submitted, "stopped": stopped, "log": _log(folder)}


def _log(folder: str) -> List[str]:
    """The last lines of what the job printed; the launcher's own records are no text, and left out."""
    lines: List[str] = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith((".out", ".err")):
                raw = _proc.read(entry.path, LOG_BYTES) or b""
                lines += [_proc.text(line) for line in raw.split(b"\n") if line.strip() and _is_text(line)]
    return lines[-20:]


def _is_text(line: bytes) -> bool:
    return b"\x1e" not in line and all(byte >= 32 or byte == 9 for byte in line)


def _find(root: str) -> Json:
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(root)):
            spec = _jobfiles.read(os.path.join(root, name, "spec.json")) if name.isdecimal() else None
            if spec is not None:
                known = _jobfiles.read(os.path.join(root, name, "job.json")) or _named(str(spec.get("name")))[0] or {}
                found.append({"serial": int(name), "job": known.get("job"), "spec": spec})
    return {"jobs": sorted(found, key=lambda each: int(each["serial"]))}


# --- cancel ---------------------------------------------------------------------------------------


def _cancel(root: str, jobs: List[str], forget: bool) -> Json:
    """A job that ends by itself meanwhile, or that somebody else has cancelled, is gone as well."""
    deadline = time.monotonic() + GONE_S
    left = _held(jobs)
    while left and time.monotonic() < deadline:
        _proc.command(["scancel", *left], LIMIT_S)
        time.sleep(0.5)
        left = _held(jobs)
    if forget and not left:
        _jobfiles.remove(root)
    return {"left": left}


def _held(jobs: List[str]) -> List[str]:
    """Those that have not ended; all of them where the queue cannot be read."""
    rows, why = _rows([])
    if why:
        return jobs
    return [row[0] for row in rows if row[0] in jobs and row[2] not in _ENDED and row[2] != "PREEMPTED"]
