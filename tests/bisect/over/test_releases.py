"""Which releases lie between two, and for whom: real pip, an index that the test makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.bisect.over.releases import between
from diag.errors import DiagError, PreconditionFailed, UsageError
from diag.source import wheels
from diag.source.wheels import LINUX, Target, target_of
from tests.bisect.over.wheel_index import build, index

ARM = Target("3.12", ("manylinux_2_28_aarch64",))


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """toy: 1.0 to 1.4, of which 1.2 is yanked, 1.3 has no wheel but for x86_64, and 1.4rc1 is a pre-release."""
    anywhere = [build(tmp_path, "toy", version, {"toy/__init__.py": b""}) for version in ("1.0", "1.1", "1.10", "1.2")]
    early = build(tmp_path, "toy", "1.4rc1", {"toy/__init__.py": b""})
    here = build(tmp_path, "toy", "1.3", {"toy/__init__.py": b""}, tag="cp311-cp311-manylinux_2_34_x86_64")
    for name, value in index(tmp_path, [*anywhere, early, here], yanked=("1.2",)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIAG_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_in_their_order_without_yanked_and_early_ones(released: Path) -> None:
    assert between("toy", "1.0", "1.10", LINUX) == ["1.0", "1.1", "1.3", "1.10"]
    assert between("Toy", "1", "1.3", LINUX) == ["1.0", "1.1", "1.3"]
    # Not the bad end, but between: left out. Named: there, and fetched.
    assert between("toy", "1.1", "1.2", LINUX) == ["1.1", "1.2"]
    assert between("toy", "1.3", "1.4rc1", LINUX) == ["1.3", "1.4rc1"]
    assert wheels.cached("toy", "1.4rc1") is not None


def test_only_what_fits_the_host(released: Path) -> None:
    assert between("toy", "1.0", "1.10", ARM) == ["1.0", "1.1", "1.10"]
    with pytest.raises(PreconditionFailed, match=r"No wheel of toy 1\.3 fits the host's Python 3\.12") as refused:
        between("toy", "1.0", "1.3", ARM)
    assert "1.1" in refused.value.next
    # A wheel for another machine, fetched before, is none for this one.
    assert wheels.fetch("toy", "1.3").name.endswith("x86_64.whl")
    assert wheels.cached("toy", "1.3", target=ARM) is None


@pytest.mark.parametrize(
    ("package", "good", "bad", "kind", "said"),
    [
        ("toy", "1.0", "1.30", UsageError, "There is no release toy 1.30"),
        ("toy", "1.10", "1.0", UsageError, "--good 1.10 is newer than --bad 1.0"),
        ("toy", "1.0", "1.0.0", UsageError, "are one version"),
        ("toy", "latest", "1.0", UsageError, "--good latest: not a version"),
        ("no-such-toy", "1.0", "1.1", PreconditionFailed, "does not list no-such-toy"),
    ],
)
def test_ends_that_are_none(
    released: Path, package: str, good: str, bad: str, kind: type[DiagError], said: str
) -> None:
    with pytest.raises(kind, match=said.replace(".", r"\.")) as refused:
        between(package, good, bad, LINUX)
    assert refused.value.next


def test_a_damaged_download_is_refused(released: Path) -> None:
    wheel = released / "toy-1.1-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    with pytest.raises(PreconditionFailed, match="could not be fetched"):
        wheels.fetch("toy", "1.1")
    assert wheels.cached("toy", "1.1") is None


@pytest.mark.parametrize(
    ("facts", "python", "first", "among"),
    [
        ({"system": "linux", "machine": "x86_64", "libc": "glibc 2.31"}, "3.11", "manylinux_2_31_x86_64", "manylinux1"),
        ({"system": "linux", "machine": "aarch64", "libc": "glibc 2.17"}, "3.11", "manylinux_2_17_aarch64", "linux_"),
        ({"system": "darwin", "machine": "arm64", "release": "14.5"}, "3.11", "macosx_14_0_arm64", "macosx_11_0_arm64"),
    ],
)
def test_the_host_says_what_fits(facts: dict[str, str], python: str, first: str, among: str) -> None:
    target = target_of({"version": "3.11.9", "implementation": "cpython", **facts})
    assert (target.python_version, target.platforms[0]) == (python, first)
    assert any(platform.startswith(among) for platform in target.platforms)
    assert any(str(tag) == "py3-none-any" for tag in target.tags)


@pytest.mark.parametrize(
    "facts", [{"libc": ""}, {"libc": "musl 1.2"}, {"implementation": "pypy", "libc": "glibc 2.36"}]
)
def test_where_wheels_are_not_looked_for(facts: dict[str, str]) -> None:
    whole = {"version": "3.11.9", "implementation": "cpython", "system": "linux", "machine": "x86_64", **facts}
    with pytest.raises(PreconditionFailed, match="Wheels are not looked for"):
        target_of(whole)
