"""Trials as jobs of a Slurm cluster: an Executor whose slots are jobs, not hosts. Slurm says where each one runs.

A job needs nobody while it runs: it starts its server, asks it, stops it and leaves a result in a folder that all nodes
see. So a link that is lost costs nothing but time, and `--resume` finds what went on meanwhile. A job that ends without
a result is nothing but a failure of ours; where that says something about its node, later jobs are placed elsewhere.

All nodes are judged by one reference, the first healthy answers of the good configuration on any of them: each answer
is scored by the server that gave it, so that what differs between healthy nodes are near ties.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diag.bisect import asking, seen
from diag.bisect.decision import Next, same_config
from diag.bisect.executor import Cancelled
from diag.bisect.link import Link
from diag.bisect.plan import Plan
from diag.bisect.run import Listener
from diag.bisect.slurm import batch, jobs
from diag.bisect.slurm.batch import Options
from diag.bisect.trial import Outcome, Trial
from diag.errors import HostError, JobFailed, PreconditionFailed, UsageError
from diag.hosts import courier, payload
from diag.records import telling

LOOK_FIRST_S, LOOK_LAST_S = 0.5, 5.0
"""Between looks at the queue: soon after something was begun, and from then on less and less often."""
SETTLE_S = 3.0
"""A shared folder may show a file a moment after the queue says that the job is over."""
UNKNOWN_S = 20.0
"""A job that the queue does not know for so long is gone (a controller that comes back takes a moment), and one that
waits for its only node waits in vain."""
FREE_S = 10.0
"""Between looks at the nodes that are left for jobs which may not run everywhere."""
GIVE_UP_S = 900.0
"""So long without a login node, and the run ends; its jobs go on, and --resume finds them."""
ASKING_S = 300.0
CALL_S = 150.0
_DETAIL = "slurm"


@dataclass
class _Job:
    """serial: of the job in this run, never used twice. node: the only one that it may run on, "" for any."""

    serial: int
    step: Next
    node: str = ""
    job: str | None = None
    excluded: tuple[str, ...] = ()
    over_since: float | None = None
    state: str = ""
    reason: str = ""
    nodes: str = ""
    said: str = ""


@dataclass
class Slurm:
    """See the module. `slots` are the jobs that may be under way at once."""

    plan: Plan
    link: Link
    run_id: str
    options: Options
    fills: Mapping[str, str]
    listener: Listener
    done: Sequence[Trial] = ()
    resumed: bool = False
    places: bool = field(default=True, init=False)
    slots: tuple[str, ...] = field(default=(), init=False)
    _jobs: dict[str, _Job] = field(default_factory=dict, init=False)
    _all: list[str] = field(default_factory=list, init=False)
    _serial: int = field(default=0, init=False)
    _reference: asking.Reference | None = field(default=None, init=False)
    _shunned: Counter[str] = field(default_factory=Counter, init=False)
    _first_info: Mapping[str, Any] | None = field(default=None, init=False)
    _pause_s: float = field(default=LOOK_FIRST_S, init=False)
    _freed: float = field(default=0.0, init=False)
    _cancelled: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self.slots = tuple(f"job {number}" for number in range(1, self.options.jobs + 1))
        for trial in self.done:
            self._serial = max(self._serial, int((trial.details.get(_DETAIL) or {}).get("serial", 0)))
        healthy = [t for t in self.done if same_config(t.config, self.plan.space.good)]
        self._reference = asking.reference_of(healthy)

    # what the shell calls

    def adopted(self) -> Mapping[str, Next]:
        """Jobs of an earlier session that no trial was written down for yet; they are this session's now."""
        if not self.resumed:
            return {}
        known = {int((t.details.get(_DETAIL) or {}).get("serial", 0)) for t in self.done}
        found = [each for each in self._call("find")["jobs"] if each["serial"] not in known]
        self._serial = max([self._serial, *(int(each["serial"]) for each in found)])
        more = range(len(self.slots) + 1, len(found) + 1)
        self.slots = (*self.slots, *(f"job {number}" for number in more))
        for slot, each in zip(self.slots, found):
            step = Next(each["spec"]["config"], each["spec"]["purpose"])
            self._jobs[slot] = _Job(int(each["serial"]), step, str(each["spec"].get("node", "")), each["job"])
            self._all += [each["job"]] if each["job"] else []
        return {slot: job.step for slot, job in self._jobs.items()}

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None:
        """Noted here; `poll` sends it, since only that may wait for a link."""
        self._serial += 1
        self._jobs[slot] = _Job(self._serial, step, host)
        self._pause_s = LOOK_FIRST_S

    def poll(self) -> Sequence[str]:
        while True:
            for job in self._jobs.values():
                if job.job is None:
                    self._send(job)
            self._look()
            over = [slot for slot, job in self._jobs.items() if self._is_over(job) and not self._must_wait(job)]
            if over:
                return over
            self._tell()
            self._free()
            if self._cancelled.wait(self._pause_s):
                raise Cancelled
            self._pause_s = min(LOOK_LAST_S, self._pause_s * 1.2)

    def collect(self, slot: str) -> Trial:
        job = self._jobs.pop(slot)
        told = self._call("collect", serial=job.serial)
        ran = self._ran(job, told)
        try:
            return self._collected(job, ran, told)
        except JobFailed as error:
            if job.state == "PENDING":
                self._call("cancel", jobs=[job.job])
            if (job.state in jobs.NODES_AT_FAULT and not told["stopped"]) or told["result"] is not None:
                self._shunned.update(_names(ran.nodes))
            error.told = {_DETAIL: ran.to_json()}
            raise

    def cancel(self) -> None:
        """All jobs of this run, and its folder on the cluster. Raises the HostError of a link that is not there."""
        self._cancelled.set()
        self._end()

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        left = self._call("cancel", patient=False, jobs=self._all, forget=True)["left"]
        if left:
            raise HostError(
                f"Slurm still holds job {', '.join(left)} of this run, long after it was told to cancel.",
                next=f"Look: squeue --jobs {','.join(left)}",
            )

    # the queue

    def _send(self, job: _Job) -> None:
        mark = f"{self.run_id}.{job.serial}"
        host, plan = self.link.host, self.plan
        facts: dict[str, Any] = {"files": [], "python": host.python}
        args = jobs.launcher_args(plan, job.step.config, mark, self.fills, facts)
        env = {name: value.get_secret_value() for name, value in host.env.items()}
        program = payload.payload("probes.job", {"args": args, "env": env, "limit_s": None})
        name = f"diag-{mark}"
        spec = {"name": name, "config": dict(job.step.config), "purpose": job.step.purpose, "node": job.node}
        given = (host.helper_python,) if host.helper_python is not None else payload.CANDIDATES
        job.excluded = self._excluded(job)
        minutes = batch.minutes(self.options, plan.spec.ready_timeout_s, ASKING_S)
        answer = self._call(
            "submit",
            serial=job.serial,
            name=name,
            files={batch.LAUNCHER: _b64(program), "spec.json": _b64(json.dumps(spec).encode())},
            script=batch.text(self.options, name, minutes, given, job.excluded, job.node),
            placeholder=batch.FOLDER,
        )
        job.job = str(answer["job"])
        self._all.append(job.job)

    def _excluded(self, job: _Job) -> tuple[str, ...]:
        """Nodes that failed us, the worst first; always so few that a trial still finds enough others."""
        if job.node or not self._shunned:
            return ()
        most = max(0, len(self._usable()) - self.options.nodes)
        return tuple(node for node, _ in self._shunned.most_common(most))

    def _usable(self) -> list[str]:
        found = self._call("look", partition=self.options.partition)["nodes"]
        return [str(each["name"]) for each in found if each["usable"]]

    def _free(self) -> None:
        """Jobs that wait for nodes which have gone away since may run on those that failed us."""
        waiting = [job for job in self._jobs.values() if job.excluded and job.state == "PENDING"]
        if waiting and time.monotonic() - self._freed > FREE_S:
            self._freed, usable = time.monotonic(), self._usable()
            for job in waiting:
                if len(set(usable) - set(job.excluded)) < self.options.nodes:
                    self._call("free", job=job.job)
                    job.excluded = ()

    def _look(self) -> None:
        asked = {str(job.serial): job.job for job in self._jobs.values() if job.job is not None}
        told = self._call("poll", jobs=asked)
        now = time.monotonic()
        for job in self._jobs.values():
            each = told["jobs"].get(str(job.serial))
            if each is None:
                continue
            unknown = not each["state"] and bool(told["controller"])
            job.state, job.nodes = (job.state, job.nodes) if unknown else (each["state"], each["nodes"] or job.nodes)
            job.reason = each["reason"] or job.reason
            job.said = told["controller"] or _progress(each)
            over = not unknown and (each["state"] in jobs.ENDED or not each["state"] or _is_stuck(job))
            job.over_since = (job.over_since or now) if over else None
            if each["result"] and not (each["state"] in ("RUNNING", "COMPLETING") and self._is_doubtful(job)):
                job.over_since = float("-inf")

    def _is_doubtful(self, job: _Job) -> bool:
        result = self._call("collect", serial=job.serial)["result"]
        return result is not None and jobs.must_be_known(result)

    def _is_over(self, job: _Job) -> bool:
        if job.over_since is None:
            return False
        return time.monotonic() - job.over_since > (SETTLE_S if job.state in jobs.ENDED else UNKNOWN_S)

    def _must_wait(self, job: _Job) -> bool:
        """Its answers have nothing to be compared with yet, and soon will."""
        if self._reference is not None or self._is_good(job):
            return False
        return any(self._is_good(other) for other in self._jobs.values())

    def _is_good(self, job: _Job) -> bool:
        return same_config(job.step.config, self.plan.space.good)

    def _tell(self) -> None:
        said = [f"job {job.job} {job.said}" for job in self._jobs.values() if job.job is not None]
        self.listener.waits_for("; ".join(said) or "the queue")

    # results

    def _ran(self, job: _Job, told: Mapping[str, Any]) -> jobs.Ran:
        result, submitted = told["result"], told["submitted_unix"]
        if result is None:
            return jobs.Ran(str(job.job), job.serial, job.nodes)
        waited = None if submitted is None else round(max(0.0, float(result["began_unix"]) - float(submitted)), 1)
        return jobs.Ran(str(job.job), job.serial, str(result["nodes"]), int(result["restart"]), waited)

    def _collected(self, job: _Job, ran: jobs.Ran, told: Mapping[str, Any]) -> Trial:
        result = told["result"]
        if result is None and job.state == "FAILED" and not job.nodes:
            raise PreconditionFailed(
                f"Slurm has no place for job {ran.job} ({job.reason or 'FAILED'}).",
                next="Change what it asks for (--gpus, --nodes, --partition, --slurm); see: sinfo --Node --long",
            )
        if result is None or job.state == "OUT_OF_MEMORY":
            raise jobs.lost(ran, job.state, job.reason, told["log"], told["stopped"])
        differ = jobs.unlike(result)
        if differ:
            raise JobFailed(
                f"The nodes of job {ran.job} ({ran.nodes}) are not alike; its trial does not count.",
                next="Make them alike, or keep one out: --slurm exclude=NODE",
                details=differ[:20],
            )
        launch = seen.launch(self.plan, job.step.config, f"{self.run_id}.{ran.serial}", self.fills)
        done = jobs.judged(self.plan, job.step, result["server"], ran, seen.told(launch), self._reference)
        if self._is_good(job) and done.trial.outcome is Outcome.PASS:
            self._reference = self._reference or done.reference
        elif self._is_good(job) and self._reference is not None:
            self._shunned.update(_names(ran.nodes))
        in_force = telling.in_force(done.info, self._first_info)
        self._first_info = in_force.get("server_info", self._first_info)
        return replace(done.trial, details={**done.trial.details, **in_force})

    # the login node

    def _call(self, do: str, *, patient: bool = True, **args: Any) -> dict[str, Any]:
        """patient: a link that is lost is made anew, and a controller that is away asked again, for GIVE_UP_S: jobs
        need neither."""
        lost_at: float | None = None
        for pause_s in _pauses():
            try:
                request = {"do": do, "run": self.run_id, "root": self.options.folder, **args}
                return courier.call(self.link.transport(), "slurm", request, timeout_s=CALL_S)
            except HostError as error:
                self.link.drop()
                lost_at = lost_at or time.monotonic()
                if not patient or time.monotonic() - lost_at > GIVE_UP_S:
                    error.next = f"Jobs that were submitted go on. Go on with them: diag bisect --resume {self.run_id}"
                    raise
                self.listener.waits_for(f"the login node: {error.what}")
                if self._cancelled.wait(pause_s):
                    raise
        raise ValueError("pauses do not end")


def _is_stuck(job: _Job) -> bool:
    """Whether it waits for a node that Slurm cannot give it, and for no other."""
    return bool(job.node) and job.state == "PENDING" and ("NotAvail" in job.reason or "DOWN" in job.reason)


def _pauses() -> Iterator[float]:
    pause_s = 1.0
    while True:
        yield pause_s
        pause_s = min(60.0, pause_s * 2)


def _progress(told: Mapping[str, Any]) -> str:
    state, reason, nodes = (str(told[name]) for name in ("state", "reason", "nodes"))
    if state == "PENDING":
        return f"waits in the queue ({reason})"
    at = told["progress"] or {}
    where = f" on {nodes}" if nodes else ""
    said = f": {at['phase']} {at['said']}".rstrip() if at else ""
    return f"{state.lower() or 'is not in the queue'}{where}{said}"


def _names(nodes: str) -> list[str]:
    """Of a list as Slurm writes it: node[1-2,7],login -> node1, node2, node7, login."""
    found: list[str] = []
    for part in _parts(nodes):
        head, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        for span in rest.rstrip("]").split(","):
            low, dash, high = span.partition("-")
            count = range(int(low), int(high) + 1) if dash else [int(low)]
            found += [f"{head}{number:0{len(low)}d}" for number in count]
    return found


def _parts(nodes: str) -> Iterator[str]:
    depth, begun = 0, ""
    for letter in nodes:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            yield begun
            begun = ""
        else:
            begun += letter
    if begun:
        yield begun


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def check(link: Link, options: Options) -> None:
    """Ask the login node of the cluster. Raises PreconditionFailed where it is none, has no such partition, or
    where submitit is not installed here; UsageError for a host in a container."""
    batch.text(options, "check", 1, payload.CANDIDATES)
    if link.host.container is not None:
        raise UsageError(
            f"{link.host.name} is a container; jobs are submitted from a login node.",
            next="Name the login node itself.",
        )
    args = {"do": "look", "partition": options.partition}
    courier.call(link.transport(), "slurm", args, timeout_s=CALL_S)
