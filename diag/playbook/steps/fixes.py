"""Steps that change the installed source, by the transaction of `diag fix`: fix.apply, fix.revert, fix.inject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from diag.bisect.expr import Recorded
from diag.fixes import catalogue, transaction
from diag.playbook.kind import Foreseen, Kind, Params, Result, problems_of
from diag.playbook.stage import Change, Stage

if TYPE_CHECKING:
    from diag.fixes.entry import Fix
    from diag.fixes.transaction import Installed, Outcome
    from diag.hosts.transport import Transport

REVERT, APPLY = "fix.revert", "fix.apply"


class FixParams(Params):
    """As the arguments of `diag fix`."""

    main = "fix"
    fix: str = Field(description="an id of `diag fix list`")
    site_packages: str | None = Field(default=None, description="this installation on the host")


def apply(params: FixParams, stage: Stage) -> Result:
    fix, transport = catalogue.get(params.fix), stage.transport()
    installed = _installed(fix, params, transport)
    change = transaction.plan(fix, installed)
    if transaction.check(transport, fix, change) == "nothing" and installed.standing.outstanding is None:
        return _told(fix, f"nothing to do: {change.detection.why}", change.detection.state, installed, changed=False)
    begun = stage.change(f"{fix.id} in {installed.path}", do=REVERT, fix=fix.id, site_packages=installed.site_packages)
    outcome = transaction.apply(transport, fix, change)
    if not outcome.changed and outcome.recovered is None:
        stage.ended(begun)
        return _outcome(fix, outcome, "nothing to do")
    return _outcome(fix, outcome, f"applied to {installed.path}")


def revert(params: FixParams, stage: Stage) -> Result:
    """Of what this run applied, or of what was applied before: then that is what would be given back."""
    fix, transport = catalogue.get(params.fix), stage.transport()
    installed = _installed(fix, params, transport)
    ours = [each for each in stage.changes.in_force() if _reverts(each, fix.id, installed.site_packages)]
    if not ours and installed.standing.state == "not_applied":
        state = fix.detect(installed.text).state
        return _told(fix, "nothing to do: it is not applied", state, installed, changed=False)
    if not ours:
        stage.change(
            f"{fix.id} taken out of {installed.path}", do=APPLY, fix=fix.id, site_packages=installed.site_packages
        )
    outcome = transaction.revert(transport, fix, installed)
    for each in ours:
        stage.ended(each)
    return _outcome(fix, outcome, "the original file is back, to the byte" if outcome.changed else "nothing to do")


def _installed(fix: Fix, params: FixParams, transport: Transport) -> Installed:
    installed = transaction.inspect(transport, fix, params.site_packages)
    transaction.refuse_a_guess(installed, transport.host, params.site_packages)
    return installed


def _reverts(change: Change, fix_id: str, site_packages: str) -> bool:
    undo = change.undo
    return undo["do"] == REVERT and (undo["fix"], undo["site_packages"]) == (fix_id, site_packages)


def _outcome(fix: Fix, outcome: Outcome, what: str) -> Result:
    stale = outcome.standing.restart_needed
    more = f"; servers that still run the old code: {', '.join(map(str, stale))}" if stale else ""
    return _told(fix, what + more, outcome.detection.state, outcome.installed, changed=outcome.changed)


def _told(fix: Fix, what: str, state: str, installed: Installed, *, changed: bool) -> Result:
    values: dict[str, Recorded] = {
        "changed": changed,
        "state": state,
        "integrity": installed.integrity,
        "sha256": installed.sha256,
        "version": installed.version or "",
    }
    return Result(f"{fix.id}: {what}", values, changed=changed)


# --- before a run, and after it ---------------------------------------------------------------------------------


def foresee_apply(params: FixParams, stage: Stage) -> Foreseen:
    fix, transport = catalogue.get(params.fix), stage.transport()
    change = transaction.plan(fix, _installed(fix, params, transport))
    would = transaction.check(transport, fix, change)
    stage.foreseen[fix.id] = would
    return "change" if would == "apply" else "no change"


def foresee_revert(params: FixParams, stage: Stage) -> Foreseen:
    fix = catalogue.get(params.fix)
    if stage.foreseen.get(fix.id) == "apply":
        return "change"
    return "no change" if _installed(fix, params, stage.transport()).standing.state == "not_applied" else "change"


def undo_apply(transport: Transport, undo: Mapping[str, Any]) -> None:
    """Give the original back. Raises FileNotAsExpected when somebody else changed the file since."""
    fix = catalogue.get(undo["fix"])
    installed = transaction.inspect(transport, fix, undo["site_packages"])
    transaction.revert(transport, fix, installed)


def undo_revert(transport: Transport, undo: Mapping[str, Any]) -> None:
    """Put in again what was there before the run."""
    fix = catalogue.get(undo["fix"])
    installed = transaction.inspect(transport, fix, undo["site_packages"])
    transaction.apply(transport, fix, transaction.plan(fix, installed))


def _known(params: FixParams, folder: Path) -> Iterator[tuple[str, str]]:
    yield from problems_of("fix", lambda: catalogue.get(params.fix))


def _a_fix(params: FixParams, folder: Path) -> Iterator[tuple[str, str]]:
    yield from _known(params, folder)
    injections = [each.id for each in catalogue.INJECTIONS]
    if params.fix in injections:
        yield "fix", f"'{params.fix}' makes a fault: fix.inject does that"
    if any(each.id == params.fix and each.mend is None for each in catalogue.FIXES):
        yield "fix", f"there is no patch for '{params.fix}'; see: diag fix show {params.fix}"


def _an_injection(params: FixParams, folder: Path) -> Iterator[tuple[str, str]]:
    yield from _known(params, folder)
    if any(each.id == params.fix for each in catalogue.FIXES):
        known = ", ".join(each.id for each in catalogue.INJECTIONS)
        yield "fix", f"'{params.fix}' mends a fault: fix.apply does that; injections: {known}"


_VALUES = {
    "changed": "whether the file was changed now",
    "state": "present, fixed, not_applicable or unknown: the fault, in the file as it is now",
    "integrity": "pristine, edited or unlisted, by the wheel's RECORD",
    "sha256": "of the file as it is now",
    "version": "of the package, empty where it is not known",
}
KINDS = (
    Kind(
        "fix.apply",
        FixParams,
        "mend the installed source; undone by giving the original back",
        _VALUES,
        apply,
        foresee_apply,
        changes=True,
        check=_a_fix,
    ),
    Kind(
        "fix.revert",
        FixParams,
        "give the original source back, to the byte; undone by applying it again, if it was there before the run",
        _VALUES,
        revert,
        foresee_revert,
        changes=True,
        check=_known,
    ),
    Kind(
        "fix.inject",
        FixParams,
        "make a fault, to try things with; undone by giving the original back",
        _VALUES,
        apply,
        foresee_apply,
        changes=True,
        check=_an_injection,
    ),
)
