"""Everything that can go wrong, as a tree; the class decides the exit code.

    DiagError
    ├── UsageError (2)                 the command or a file given to it is wrong
    │   ├── UnknownHost                no such name in the inventory
    │   ├── InventoryError             the inventory itself cannot be read
    │   └── PlanError                  a plan, with file:line:column
    ├── HostError (4)                  the host is unreachable or refused us
    │   ├── HostUnreachable            no address, no route, refused, timed out before a banner
    │   ├── HostKeyUnknown             we have no key for this name
    │   ├── HostKeyChanged             the key differs from the one on record
    │   ├── AuthenticationFailed       none of the offered keys was accepted
    │   ├── LinkLost                   the connection ended before the answer was complete: state unknown
    │   ├── HostProgramFailed          our program on the host did not answer as agreed
    │   └── JobFailed                  a job of a queueing system ended without a result
    ├── PreconditionFailed (5)         something needed is missing; nothing was changed
    │   ├── NoPythonOnHost
    │   ├── PackageNotInstalled
    │   ├── FileNotAsExpected          a file is not what the fix was made for
    │   ├── PortInUse
    │   ├── ServerDied                 the server's process ended before it was healthy
    │   ├── ServerNotHealthy           it runs, but was not healthy within its deadline
    │   └── LabError                   the embedded host cannot be built or started
    └── Interrupted (130)

Every error says what happened, to what, and what to do next. `str(error)` is the whole text for a person.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DiagError(Exception):
    """Base of all expected failures.

    what:    one sentence in the past tense: what happened, naming the thing it happened to.
    next:    one sentence: what to do about it. May be empty only where there is nothing to do.
    details: lines shown below (a log tail, the line of known_hosts to look at). Remote text is shown escaped.
    """

    exit_code: ClassVar[int] = 5
    kind: ClassVar[str] = "error"

    def __init__(self, what: str, *, next: str = "", details: list[str] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.next = next
        self.details = details or []

    def __str__(self) -> str:
        parts = [self.what, *(f"  {line}" for line in self.details)]
        if self.next:
            parts.append(f"→ {self.next}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The same for a program: {"kind", "what", "next", "details", "exit_code"}."""
        return {
            "kind": self.kind,
            "what": self.what,
            "next": self.next,
            "details": self.details,
            "exit_code": self.exit_code,
        }


class UsageError(DiagError):
    exit_code = 2
    kind = "usage"


class UnknownHost(UsageError):
    kind = "unknown_host"


class InventoryError(UsageError):
    kind = "inventory"


class PlanError(UsageError):
    """A plan or prompt file is wrong. `problems` lists every fault, each as "file:line:column: text"."""

    kind = "plan"

    def __init__(self, what: str, *, problems: list[str], next: str = "") -> None:
        super().__init__(what, next=next, details=problems)
        self.problems = problems


class HostError(DiagError):
    exit_code = 4
    kind = "host"


class HostUnreachable(HostError):
    kind = "host_unreachable"


class HostKeyUnknown(HostError):
    kind = "host_key_unknown"


class HostKeyChanged(HostError):
    kind = "host_key_changed"


class AuthenticationFailed(HostError):
    kind = "authentication_failed"


class LinkLost(HostError):
    kind = "link_lost"


class HostProgramFailed(HostError):
    kind = "host_program_failed"


class JobFailed(HostError):
    """told: where and how the job ran, for the record of the trial that it was to be."""

    kind = "job_failed"

    def __init__(self, what: str, *, next: str = "", details: list[str] | None = None) -> None:
        super().__init__(what, next=next, details=details)
        self.told: dict[str, Any] = {}


class PreconditionFailed(DiagError):
    exit_code = 5
    kind = "precondition"


class NoPythonOnHost(PreconditionFailed):
    kind = "no_python_on_host"


class PackageNotInstalled(PreconditionFailed):
    kind = "package_not_installed"


class FileNotAsExpected(PreconditionFailed):
    kind = "file_not_as_expected"


class PortInUse(PreconditionFailed):
    kind = "port_in_use"


class ServerDied(PreconditionFailed):
    kind = "server_died"


class ServerNotHealthy(PreconditionFailed):
    kind = "server_not_healthy"


class LabError(PreconditionFailed):
    kind = "lab"


class Interrupted(DiagError):
    exit_code = 130
    kind = "interrupted"
