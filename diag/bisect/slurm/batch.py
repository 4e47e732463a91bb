"""The text of a batch job, written by submitit; Slurm is at the other end of a connection, where submitit is not."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from diag.errors import PreconditionFailed, UsageError
from diag.hosts import payload

FOLDER = "/diag-job-folder"
"""Stands for the job's own folder until the login node knows it."""
LAUNCHER = "launcher.bin"
WARNED_S = 60
"""So long before its time is up a job is told, so that it can stop its server itself; a fifth of a short time."""
REAP_S = 60
_OWN = (
    "job-name",
    "output",
    "error",
    "nodes",
    "ntasks-per-node",
    "signal",
    "requeue",
    "no-requeue",
    "array",
    "parsable",
)


@dataclass(frozen=True)
class Options:
    """partition: None for the cluster's default. gpus: on each node; None asks for none. nodes: of one trial, a rank on
    each. jobs: at once. share: other jobs may use the same nodes. folder: that login and compute nodes share, where the
    jobs' files go; None: below our own in the user's home. more: further options of sbatch, by their long names."""

    partition: str | None = None
    gpus: int | None = None
    nodes: int = 1
    jobs: int = 2
    minutes: int | None = None
    share: bool = False
    folder: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = sorted(name for name in self.more if name in _OWN)
        if own:
            raise UsageError(f"--slurm {own[0]}=… is what diag sets itself.", next="Leave it out.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def minutes(options: Options, ready_timeout_s: float, asking_s: float) -> int:
    """The time limit of a job."""
    return options.minutes or math.ceil((ready_timeout_s + asking_s) / 60) + 2


def text(
    options: Options, name: str, time_minutes: int, pythons: Sequence[str], exclude: Sequence[str] = (), node: str = ""
) -> str:
    """The batch script; FOLDER is in it where the job's folder goes. exclude: nodes that it must not be placed on;
    node: the ones that it must be.

    Raises PreconditionFailed where submitit is not installed.
    """
    launcher = f"{payload.command(tuple(pythons))} < {FOLDER}/{LAUNCHER}"
    step = shlex.join(["/bin/sh", "-c", launcher])
    each = ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    wanted: dict[str, Any] = {
        "job_name": name,
        "partition": options.partition,
        "time": time_minutes,
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": options.gpus,
        "exclude": ",".join(exclude) or None,
        "nodelist": node or None,
        "exclusive": None if options.share else True,
        "wckey": None,
        "setup": [f"export DIAG_JOB_FOLDER={FOLDER}", "unset DIAG_JOB"],
        "teardown": ["export DIAG_JOB=reap", *_reaping(options, each, step)],
        "srun_args": each,
        "additional_parameters": {
            "signal": f"TERM@{min(WARNED_S, time_minutes * 12)}",
            "no-requeue": True,  # a lost trial is written down and tried again elsewhere, within a budget
            **({} if options.share else {"mem": "0"}),
            **options.more,
        },
    }
    script = _writer()
    script.update_parameters(**wanted)
    return str(script._make_submission_file_text(step, name))


def _reaping(options: Options, each: Sequence[str], step: str) -> list[str]:
    """What a killed launcher left behind, also what has left its process group. This script runs on the first node; a
    step on the others waits for the controller, which may be away."""
    if options.nodes == 1:
        return [step]
    return [step, shlex.join(["timeout", str(REAP_S), "srun", *each]) + f" {step}"]


def _writer() -> Any:
    try:
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError:
        raise PreconditionFailed(
            "Jobs for Slurm are written by submitit, which is not installed here.",
            next="Install it: pip install 'diag[slurm]'",
        ) from None

    class Writer(SlurmExecutor):  # type: ignore[misc,unused-ignore]
        """submitit looks for srun on this machine; ours is on the login node."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    return Writer(FOLDER)
