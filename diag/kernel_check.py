"""Is the installed attention kernel right, and right with what its backend tells it? Asked of a host, by one exec.

What runs there, and with what it is compared: kernels/differential.py. This module needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from diag.errors import HostProgramFailed, PreconditionFailed
from diag.source import targets

if TYPE_CHECKING:
    from diag.hosts.transport import Transport

Verdict = Literal["right", "wrong", "cannot_tell"]

SCHEMA = 1
TIMEOUT_S = 900.0
FILE = "sglang/srt/layers/attention/triton_backend.py"
"""What must be there for an installation to be one that is meant."""


@dataclass(frozen=True)
class Case:
    """One shape in which the kernel itself is wrong. wrong, untouched: rows (tokens of the batch) that differ, and that
    nobody wrote; error: the largest of the others, relative; died: what the GPU said instead."""

    label: str
    error: float
    wrong: tuple[int, ...]
    untouched: tuple[int, ...]
    died: str


@dataclass(frozen=True)
class Step:
    """One verify step with the offsets that the installed backend computed. off: offsets that are not what they should
    be; alone: of each, how many rows go wrong by it alone; cells: what mask_audit counts."""

    path: str
    bs: int
    setting: int
    width: int
    off: tuple[str, ...]
    wrong: tuple[int, ...]
    untouched: tuple[int, ...]
    alone: Mapping[str, int]
    cells: Mapping[str, int]

    @property
    def rows(self) -> int:
        return self.bs * self.width


@dataclass(frozen=True)
class KernelCheck:
    """device: the GPU's name, or the interpreter on a CPU. worst: largest relative error by dtypes."""

    host: str
    verdict: Verdict
    why: str
    package_version: str | None
    file: str | None
    device: str
    gpu_why: str
    interpreted: bool
    real_import: bool
    cases: int
    skipped: int
    wrong_cases: int
    wrong: tuple[Case, ...]
    worst: Mapping[str, float]
    steps: tuple[Step, ...]
    offsets: str
    seconds: float
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def exit_code(self) -> int:
        return {"right": 0, "wrong": 1, "cannot_tell": 3}[self.verdict]


def check(
    transport: Transport,
    *,
    python: str | None = None,
    quick: bool = False,
    gpu: int | None = None,
    cpu: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> KernelCheck:
    """Run the check on the host, in the engine's own interpreter.

    gpu: its index, taken even if it is in use; else the first free one, else none. Raises PackageNotInstalled,
    PreconditionFailed (no such GPU; no torch there), and the HostError of a connection that fails.
    """
    from diag.hosts import courier

    target = targets.Target(transport.host.name, "host", host=transport.host)
    say("looking for the engine")
    found = targets.read(target, [FILE], transport=transport, python=python)
    if found.python is None:
        raise PreconditionFailed(
            f"It is not known which Python on {transport.host.name} runs the engine.",
            next="Name it: --python PATH, or `python` in the inventory.",
        )
    args = {"site_packages": found.where, "quick": quick, "gpu": gpu, "cpu": cpu}
    say("running the installed kernel")
    try:
        document = courier.call(
            transport,
            "kernels.differential",
            args,
            python=found.python,
            timeout_s=TIMEOUT_S,
            on_event=lambda event: say(_progress(event)),
        )
    except HostProgramFailed as error:
        document = {"schema": SCHEMA, "verdict": "cannot_tell", "why": str(error)}
    return answer(transport.host.name, document)


def _progress(event: Mapping[str, Any]) -> str:
    return f"running the installed kernel: {event.get('done')} of {event.get('of')} shapes"


def answer(host: str, document: Mapping[str, Any]) -> KernelCheck:
    """The values in a document of kernels/differential.py."""
    verdict = document.get("verdict")
    if document.get("schema") != SCHEMA or verdict not in ("right", "wrong", "cannot_tell"):
        document = {"verdict": "cannot_tell", "why": "The host's answer has an unknown form."}
        verdict = "cannot_tell"
    return KernelCheck(
        host=host,
        verdict=cast(Verdict, verdict),
        why=str(document.get("why", "")),
        package_version=document.get("package_version"),
        file=document.get("file"),
        device=str(document.get("device", "unknown")),
        gpu_why=str(document.get("gpu_why", "")),
        interpreted=bool(document.get("interpreted")),
        real_import=bool(document.get("real_import")),
        cases=int(document.get("cases", 0)),
        skipped=int(document.get("skipped", 0)),
        wrong_cases=int(document.get("wrong_cases", 0)),
        wrong=tuple(_case(each) for each in document.get("wrong", ())),
        worst=dict(document.get("worst", {})),
        steps=tuple(_step(each) for each in document.get("steps", ())),
        offsets=str(document.get("offsets", {}).get("summary", "")),
        seconds=float(document.get("seconds", 0.0)),
        document=document,
    )


def _case(each: Mapping[str, Any]) -> Case:
    return Case(each["label"], each["error"], tuple(each["wrong"]), tuple(each["untouched"]), each["died"])


def _step(each: Mapping[str, Any]) -> Step:
    return Step(
        path=each["path"],
        bs=each["bs"],
        setting=each["S"],
        width=each["D"],
        off=tuple(each["off"]),
        wrong=tuple(each["wrong"]),
        untouched=tuple(each["untouched"]),
        alone=each["alone"],
        cells=each["cells"],
    )
