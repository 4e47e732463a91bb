"""The released versions between two, from the package index: what `--over versions` goes over."""

from __future__ import annotations

import difflib

from packaging.version import InvalidVersion, Version

from diag.errors import PreconditionFailed, UsageError
from diag.source import wheels
from diag.source.wheels import Target


def between(package: str, good: str, bad: str, target: Target) -> list[str]:
    """From `good` to `bad`, oldest first, both included: versions with a wheel that fits `target`.

    Yanked releases and pre-releases are left out, unless they are the good or the bad end. Raises UsageError for ends
    that are no versions of this package or in the wrong order, PreconditionFailed where the index cannot be asked.
    """
    low, high = _version(good, "--good"), _version(bad, "--bad")
    if low == high:
        raise UsageError(f"--good {good} and --bad {bad} are one version.", next="Name two that differ.")
    if low > high:
        raise UsageError(
            f"--good {good} is newer than --bad {bad}.",
            next="The good end is the older one: what is looked for is the release that broke it. "
            "Look for an older one that works.",
        )
    released = {Version(one): one for one in wheels.versions(package, target)}
    for wanted, named in ((low, good), (high, bad)):
        if wanted not in released:
            released[wanted] = _named(package, named, target, list(released.values()))
    return [released[one] for one in sorted(released) if low <= one <= high]


def _version(text: str, option: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"{option} {text}: not a version.", next="For example: --good 0.5.9 --bad 0.5.12") from None


def _named(package: str, version: str, target: Target, listed: list[str]) -> str:
    """A version that the list does not have, because it is yanked or a pre-release; it can be had all the same."""
    try:
        wheels.fetch(package, version, target=target)
    except PreconditionFailed as error:
        raise _not_there(package, version, target, listed, error) from None
    return version


def _not_there(
    package: str, version: str, target: Target, listed: list[str], error: PreconditionFailed
) -> UsageError | PreconditionFailed:
    wanted = Version(version)
    if wanted in map(Version, wheels.versions(package, None, pre=True)):
        return PreconditionFailed(
            f"No wheel of {package} {version} fits the host's {target}.",
            next="Choose an end that has one" + (f": {', '.join(_near(version, listed))}." if listed else "."),
            details=error.details,
        )
    near = _near(version, listed)
    return UsageError(
        f"There is no release {package} {version}.",
        next=f"Did you mean {' or '.join(near)}?" if near else "See: pip index versions " + package,
    )


def _near(version: str, listed: list[str]) -> list[str]:
    return difflib.get_close_matches(version, listed, n=3, cutoff=0.5)
