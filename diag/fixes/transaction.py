"""A fix on a host, seen from the laptop: look, decide, and have probes/fixtx.py do it there.

    installed = inspect(transport, fix)          one exec: the file, its integrity, the state of the transaction
    change = plan(fix, installed)                pure: what is wrong, the new text, the diff
    would = check(transport, fix, change)        one exec: all that apply would refuse for; touches nothing
    outcome = apply(transport, fix, change)      one exec: the transaction (and one before, where there is an oracle)

The laptop keeps nothing: revert and status need the journal on the host alone.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from diag.errors import FileNotAsExpected, HostProgramFailed, PreconditionFailed
from diag.hosts import courier
from diag.source import oracle
from diag.source.detect import Detection

if TYPE_CHECKING:
    from diag.fixes.catalogue import Fix
    from diag.hosts.inventory import Host
    from diag.hosts.transport import Transport

SCHEMA = 1
TIMEOUT_S = 120.0

State = Literal["applied", "not_applied", "outstanding", "modified"]


@dataclass(frozen=True)
class Process:
    """A running server of the installation, or a worker of one. code: stale (it started before the file changed, and
    still runs the old code), current, or unknown; why: what that was told from. started_at_unix: by the host's clock,
    in seconds. worker_of: the server's pid, None for a server."""

    pid: int
    argv: tuple[str, ...]
    port: int | None
    started_at_unix: float | None
    code: Literal["stale", "current", "unknown"]
    why: str = ""
    worker_of: int | None = None


@dataclass(frozen=True)
class Standing:
    """Where the transaction on the host stands.

    outstanding: "apply" or "revert", when one did not end; journal: its path on the host, None before the first
    change; changed_at_unix: of our latest change; holder: who is changing it right now; unknown: {what, why}.
    """

    state: State
    outstanding: str | None
    journal: str | None
    changed_at_unix: float | None
    holder: Mapping[str, Any] | None
    processes: tuple[Process, ...]
    unknown: tuple[Mapping[str, str], ...]

    @property
    def stale(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.code == "stale")

    @property
    def restart_needed(self) -> tuple[int, ...]:
        """Pids of the servers that are stale, or have a worker that is."""
        return tuple(dict.fromkeys(each.worker_of or each.pid for each in self.stale))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Standing:
        outstanding = document["outstanding"]
        return cls(
            state=document["state"],
            outstanding=outstanding["act"] if outstanding else None,
            journal=document["journal"],
            changed_at_unix=document["changed_at_unix"],
            holder=document["lock"],
            processes=tuple(
                Process(
                    pid=each["pid"],
                    argv=tuple(each["argv"] or ()),
                    port=each["port"],
                    started_at_unix=each["started_at_unix"],
                    code=each["code"],
                    why=each["why"],
                    worker_of=each["worker_of"],
                )
                for each in document["processes"]
            ),
            unknown=tuple(document["unknown"]),
        )


@dataclass(frozen=True)
class Installed:
    """The file of a fix as it is on the host. integrity: pristine, edited or unlisted, by the wheel's RECORD;
    python: the interpreter of its environment; others: further installations of the package that were found."""

    site_packages: str
    python: str | None
    version: str | None
    path: str
    content: bytes = field(repr=False)
    sha256: str
    integrity: str
    others: tuple[str, ...]
    standing: Standing

    @property
    def text(self) -> str:
        """Raises FileNotAsExpected when the bytes are not UTF-8."""
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileNotAsExpected(
                f"{self.path} is not UTF-8: {error}.",
                next="Reinstall the package; Python cannot read this file either.",
            ) from None


@dataclass(frozen=True)
class Plan:
    """What a fix would do. new_text: None when there is nothing to do; diff: unified, "" likewise."""

    installed: Installed
    detection: Detection
    new_text: str | None
    diff: str


@dataclass(frozen=True)
class Outcome:
    """What was done. changed: whether files changed now; recovered: "finished" or "undone", when an interrupted
    transaction was found; detection: of the file as it is now; kept: where on the host the content is that someone
    else had written and a forced revert replaced; oracle: what running the new code said, None where there is none."""

    changed: bool
    recovered: str | None
    installed: Installed
    detection: Detection
    standing: Standing
    kept: tuple[str, ...] = ()
    oracle: Proof | None = None


@dataclass(frozen=True)
class Proof:
    """verdict: right or cannot_tell; a change that is wrong is not made."""

    verdict: str
    why: str


@dataclass(frozen=True)
class FileChange:
    """One file of a change, by its path in site-packages. before_sha256: of what was read, in hex."""

    path: str
    before_sha256: str
    content: bytes

    def to_wire(self) -> dict[str, str]:
        packed = base64.b64encode(zlib.compress(self.content)).decode("ascii")
        return {"path": self.path, "pre_sha256": self.before_sha256, "content_b64": packed}


def inspect(transport: Transport, fix: Fix, site_packages: str | None = None) -> Installed:
    """Read the file and the standing in one exec; touches nothing.

    site_packages: this installation; without it the host's `python` decides, then running servers, then the usual
    places. Raises PackageNotInstalled (with where was looked), FileNotAsExpected when the package lacks the file.
    """
    document = _call(transport, fix, "read", site_packages, files=[fix.file], python=transport.host.python)
    found = document["files"][0]
    path = f"{document['site_packages']}/{fix.file}"
    if not found["exists"]:
        raise FileNotAsExpected(
            f"{fix.package} {document['version'] or 'of unknown version'} has no readable file {fix.file}.",
            details=[f"in {document['site_packages']}", *([str(found["why"])] if found.get("why") else [])],
            next=f"The fix is for {fix.package} {fix.affected}.",
        )
    if found["content_b64"] is None:
        raise FileNotAsExpected(f"{path} is too large to be this file.", next="Reinstall the package.")
    content = zlib.decompress(base64.b64decode(found["content_b64"]))
    if hashlib.sha256(content).hexdigest() != found["sha256"]:
        raise HostProgramFailed(f"{path} did not arrive as it was read.", next="Run the command again.")
    return Installed(
        site_packages=document["site_packages"],
        python=document["python"],
        version=document["version"],
        path=path,
        content=content,
        sha256=found["sha256"],
        integrity=found["integrity"],
        others=tuple(document["others"]),
        standing=Standing.read(document["status"]),
    )


def refuse_a_guess(installed: Installed, host: Host, named: str | None) -> None:
    """Raises PreconditionFailed where several installations fit and nobody said which: what is changed is chosen."""
    if named is not None or host.python is not None or not installed.others:
        return
    raise PreconditionFailed(
        f"{host.name} has several installations that this could be about; none was chosen.",
        details=[installed.site_packages, *installed.others],
        next="Say which: --site-packages PATH, or `python` in the inventory entry of the host.",
    )


def plan(fix: Fix, installed: Installed) -> Plan:
    """What the fix would do to this file. Raises FileNotAsExpected when it cannot be told, and PreconditionFailed, with
    what to do instead, when no change of the source mends this fault."""
    detection = fix.detect(installed.text)
    if detection.state in ("fixed", "not_applicable"):
        return Plan(installed, detection, None, "")
    if detection.state == "unknown":
        raise FileNotAsExpected(
            f"{installed.path} is not what the fix {fix.id} was made for.",
            details=[detection.why, f"the file is {installed.integrity} by the wheel's RECORD"],
            next="Nothing was changed. Mend a file that was edited by hand by hand, or reinstall the package.",
        )
    new_text = fix.rewrite(installed.text)
    return Plan(installed, detection, new_text, unified(installed.text, new_text, fix.file))


def check(transport: Transport, fix: Fix, change: Plan) -> Literal["apply", "nothing"]:
    """What `apply` would do; touches nothing. Raises what `apply` would raise."""
    if change.new_text is None:
        return "nothing"
    answer: Literal["apply", "nothing"] = _send(transport, fix, "check", change.installed, [_file(fix, change)])[
        "would"
    ]
    return answer


def apply(transport: Transport, fix: Fix, change: Plan) -> Outcome:
    """Carry the plan out; does nothing when there is nothing to do. An interrupted transaction is ended first."""
    installed = change.installed
    if change.new_text is None and installed.standing.outstanding is None:
        return Outcome(False, None, installed, change.detection, installed.standing)
    recovered = None
    if change.new_text is None:  # the end of an interrupted revert may leave something to do
        settled = _settled(transport, fix, installed, "recover")
        change, installed, recovered = plan(fix, settled.installed), settled.installed, settled.recovered
        if change.new_text is None:
            return settled
    file = _file(fix, change)
    proof = prove(transport, fix, installed, change.new_text)
    document = apply_files(transport, fix, installed, [file])
    return Outcome(
        changed=document["changed"],
        recovered=document["recovered"] or recovered,
        installed=replace(
            installed,
            content=file.content,
            sha256=hashlib.sha256(file.content).hexdigest(),
            integrity="unlisted" if installed.integrity == "unlisted" else "edited",
        ),
        detection=fix.detect(change.new_text),
        standing=Standing.read(document["status"]),
        oracle=proof,
    )


def apply_files(transport: Transport, fix: Fix, installed: Installed, files: Sequence[FileChange]) -> dict[str, Any]:
    """One transaction over all files: afterwards either each is the new one, or each the old. See probes/fixtx.py."""
    return _send(transport, fix, "apply", installed, files)


def _send(
    transport: Transport, fix: Fix, action: str, installed: Installed, files: Sequence[FileChange]
) -> dict[str, Any]:
    wire = [file.to_wire() for file in files]
    about = {"version": installed.version, "python": installed.python}
    return _call(transport, fix, action, installed.site_packages, files=wire, **about)


def _file(fix: Fix, change: Plan) -> FileChange:
    return FileChange(fix.file, change.installed.sha256, (change.new_text or "").encode("utf-8"))


def prove(transport: Transport, fix: Fix, installed: Installed, new_text: str) -> Proof | None:
    """What the oracle says of the new code, run by the engine's interpreter before anything is changed; None where
    there is no oracle for this fix. Raises PreconditionFailed when the new code is wrong."""
    if not fix.oracle or installed.python is None:
        return None
    answer = oracle.ask_text(transport, fix.id, installed.site_packages, installed.python, new_text)
    if answer is None:
        return None
    if answer.verdict == "wrong":
        raise PreconditionFailed(
            f"The new {fix.file} computes wrong values when it is run; nothing was changed.",
            details=[answer.why],
            next="Please report this with the file: the detector and the oracle disagree.",
        )
    return Proof(answer.verdict, answer.why)


def revert(transport: Transport, fix: Fix, installed: Installed, *, force: bool = False) -> Outcome:
    """Give the original back, to the byte.

    Raises FileNotAsExpected, with the difference, when someone else changed the file since; with `force` what they
    wrote is kept beside the journal (`Outcome.kept`) and the original put back.
    """
    return _settled(transport, fix, installed, "revert", force=force)


def _settled(transport: Transport, fix: Fix, installed: Installed, action: str, **more: object) -> Outcome:
    document = _call(transport, fix, action, installed.site_packages, **more)
    touched = document["changed"] or document["recovered"] is not None
    after = inspect(transport, fix, installed.site_packages) if touched else installed
    return Outcome(
        changed=document["changed"],
        recovered=document["recovered"],
        installed=after,
        detection=fix.detect(after.text),
        standing=Standing.read(document["status"]),
        kept=tuple(document["kept"]),
    )


def _call(transport: Transport, fix: Fix, action: str, site_packages: str | None, **more: object) -> dict[str, Any]:
    args = {"action": action, "fix": fix.id, "package": fix.package, "site_packages": site_packages, **more}
    module = "fixread" if action == "read" else "fixtx"
    return courier.call(transport, module, args, timeout_s=TIMEOUT_S, sudo=transport.host.sudo)


def unified(old: str, new: str, path: str) -> str:
    """A unified diff that `patch -p1` takes, whatever the line ends."""
    lines = difflib.unified_diff(_kept_lines(old), _kept_lines(new), f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _kept_lines(text: str) -> list[str]:
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
