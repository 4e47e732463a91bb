"""What a repository says about the commits between two: read, refused where it is no answer, made an axis.

The repository may lie here (`local`, through GitPython) or on a host (`remote`); both run the same questions
(probes/checkout.py), and what comes back is judged by the same rules.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import bundle
from diag.bisect.over.axis import Axis, Place
from diag.errors import PreconditionFailed, UsageError
from diag.hosts import courier
from diag.hosts.transport import Transport

LOOK_S = 600.0


@dataclass(frozen=True)
class Range:
    """good, bad: as they were named. paths: what a build is made of; () is everything that a commit holds."""

    repo: str
    good: str
    bad: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """notes: what a person should know before the first trial."""

    axis: Axis
    top: str
    notes: tuple[str, ...] = ()


def local(asked: Range) -> dict[str, Any]:
    """What the repository on this machine says; `look` in probes/checkout.py. Raises UsageError, PreconditionFailed."""
    import git  # takes a moment

    checkout = bundle.load("probes.checkout")
    path = Path(asked.repo).expanduser()
    try:
        repo = git.Repo(path, search_parent_directories=True)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, ValueError):
        raise UsageError(
            f"{asked.repo} is not inside a git repository.", next="Name one that is here: --repo PATH"
        ) from None

    def ask(words: Sequence[str], stdin: str = "") -> str:
        with tempfile.TemporaryFile() as given:
            given.write(os.fsencode(stdin))
            given.seek(0)
            try:
                said = repo.git.execute(
                    ["git", *checkout._QUIET, *words],
                    istream=given,
                    strip_newline_in_stdout=False,
                    env={"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
                )
            except git.GitCommandError as error:
                raise checkout.GitFailed(str(error.stderr).strip().removeprefix("stderr: ").strip("'\n")) from None
            return str(said)

    try:
        found: dict[str, Any] = checkout.look(ask, asked.good, asked.bad, asked.paths)
    except checkout.GitFailed as error:
        raise courier.error_from(checkout.failed(asked.repo, error).document["error"], "git") from None
    except checkout.Refused as refused:
        raise courier.error_from(refused.document["error"], "git") from None
    finally:
        repo.close()
    return found


def remote(transport: Transport, asked: Range) -> dict[str, Any]:
    """The same on a host."""
    args = {"repo": asked.repo, "good": asked.good, "bad": asked.bad, "paths": list(asked.paths)}
    return courier.call(transport, "checkout", args, timeout_s=LOOK_S)


def history_of(facts: Mapping[str, Any], asked: Range, *, ignore_changes: bool = False) -> History:
    """Pure. Raises UsageError for ends between which there is nothing to search, PreconditionFailed for a checkout
    with changes that no commit holds."""
    _refuse_ends(facts, asked)
    _refuse_order(facts, asked)
    if facts["dirty"] and not ignore_changes:
        raise PreconditionFailed(
            f"{facts['top']} has changes that are not committed; no trial would contain them.",
            next="Commit or stash them, or give --ignore-changes: the checkout is not touched either way.",
            details=list(facts["dirty"]),
        )
    axis = axis_of(facts, declared=bool(asked.paths))
    good, bad = axis.places[0], axis.places[axis.bad]
    if good.build == bad.build:
        where = ", ".join(asked.paths) or "the tree"
        raise UsageError(
            f"Nothing in {where} differs between {asked.good} and {asked.bad}.",
            next="Name the paths that matter with --build-paths, or leave it out: all files count then.",
        )
    return History(axis, str(facts["top"]), tuple(_notes(facts, asked)))


def axis_of(facts: Mapping[str, Any], *, declared: bool) -> Axis:
    commits = facts["commits"]
    index = {commit[0]: at for at, commit in enumerate(commits)}
    ends = facts["ends"]
    bases = 1 if facts["bases"] == [ends["good"]] else 1 + sum(base != ends["good"] for base in facts["bases"])
    outside = 0 if bases == 1 else 1  # an ancestor of what both ends contain
    places = []
    for at, (commit, parents, date, subject, build) in enumerate(commits):
        before = dict.fromkeys(index.get(parent, outside) for parent in parents) if at >= bases else {}
        places.append(
            Place(commit, tuple(before), "" if set(build) <= {"-", ","} else build, f"{subject}, {date[:10]}")
        )
    return Axis("commit", tuple(places), bases, declared)


def _refuse_ends(facts: Mapping[str, Any], asked: Range) -> None:
    for option, name in (("good", asked.good), ("bad", asked.bad)):
        if facts["ends"][option] is None:
            near = difflib.get_close_matches(name, facts["names"], n=3, cutoff=0.5)
            shallow = " The repository is shallow: git fetch --unshallow brings the rest." if facts["shallow"] else ""
            raise UsageError(
                f"--{option} {name}: no such commit in {facts['top']}.",
                next=(f"Did you mean {' or '.join(near)}?" if near else "Name a commit, a tag or a branch.") + shallow,
            )


def _refuse_order(facts: Mapping[str, Any], asked: Range) -> None:
    good, bad = facts["ends"]["good"], facts["ends"]["bad"]
    if good == bad:
        raise UsageError(f"--good {asked.good} and --bad {asked.bad} are one commit.", next="Name two that differ.")
    if bad in facts["bases"]:
        raise UsageError(
            f"--bad {asked.bad} comes before --good {asked.good}.",
            next="The good end is the older one: what is looked for is the commit that broke it.",
        )
    if not facts["bases"]:
        shallow = "the repository is shallow: git fetch --unshallow" if facts["shallow"] else "name two that have one"
        raise UsageError(f"{asked.good} and {asked.bad} have no history in common.", next=f"Look: {shallow}.")
    if not facts["commits"]:
        raise UsageError(
            f"{facts['count']} commits lie between {asked.good} and {asked.bad}: more than a search takes.",
            next="Choose ends that are nearer to each other; tags of releases tell them (--over versions).",
        )


def _notes(facts: Mapping[str, Any], asked: Range) -> list[str]:
    notes = []
    others = [base[:12] for base in facts["bases"] if base != facts["ends"]["good"]]
    if others:
        notes.append(
            f"{asked.good} is no ancestor of {asked.bad}: where they part ({', '.join(others)}) is tried first; "
            "if that is healthy, what came after it is searched"
        )
    if facts["dirty"]:
        notes.append("the checkout has changes that are not committed; they are in no trial")
    if facts["submodules"]:
        names = ", ".join(facts["submodules"][:5])
        notes.append(f"submodules are empty in a trial's tree, unless its command checks them out: {names}")
    if facts["shallow"]:
        notes.append("the repository is shallow: commits before its edge are taken for good")
    return notes
