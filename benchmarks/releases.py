"""Do reading, running and what is known go together, release by release? A table; exit status 1 where they do not.

    python benchmarks/releases.py                  one release of each shape of the source
    python benchmarks/releases.py 0.5.12 0.5.17    these
    python benchmarks/releases.py --all            all of tests/source/releases.tsv (46 wheels, fetched once)

For each release: the detector's state and line numbers, and the oracle's verdict, against tests/source/releases.tsv;
where the fault is present, the fix is applied to an unpacked copy by the real transaction, the detector must then say
fixed and the oracle right, and reverting must give the same bytes back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from diag.errors import DiagError
from diag.fixes import catalogue, transaction
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect
from diag.source import oracle, wheels
from diag.source.detect import Detection, detect
from tests.source.facts import Release, misplaced, releases

SHAPES = ("0.4.2.post4", "0.4.3", "0.4.8", "0.5.9", "0.5.12", "0.5.13", "0.5.16", "0.5.17", "0.5.21", "0.5.23")
FIX = catalogue.get("mask-indptr")
BATCH = 12  # subjects for one start of the oracle


@dataclass
class Row:
    release: Release
    wheel: Path
    text: str
    detection: Detection
    mended: str | None
    answer: oracle.OracleAnswer | None = None
    mended_answer: oracle.OracleAnswer | None = None
    reverted: str = "-"
    wrong: list[str] = field(default_factory=list)


def read(release: Release) -> Row:
    wheel = wheels.fetch("sglang", release.version)
    text = wheels.read(wheel, FIX.file).decode("utf-8")
    found = detect(text)
    row = Row(release, wheel, text, found, FIX.rewrite(text) if found.state == "present" else None)
    if found.state != release.state:
        row.wrong.append(f"detector says {found.state}, known is {release.state}: {found.why}")
    row.wrong += misplaced(release, found)
    if row.mended is not None and detect(row.mended).state != "fixed":
        row.wrong.append(f"after the rewrite the detector says {detect(row.mended).state}")
    return row


def run_oracle(rows: Sequence[Row]) -> None:
    """Ask for every file as released, and for every mended one."""
    asked = [(row, False) for row in rows] + [(row, True) for row in rows if row.mended is not None]
    for at in range(0, len(asked), BATCH):
        part = asked[at : at + BATCH]
        subjects = [oracle.Subject(row.wheel, row.mended if mended else None) for row, mended in part]
        for (row, mended), answer in zip(part, oracle.ask_local_all(subjects), strict=True):
            if mended:
                row.mended_answer = answer
            else:
                row.answer = answer
            wanted = "right" if mended else row.release.oracle
            if answer.verdict != wanted:
                row.wrong.append(f"oracle says {answer.verdict}, not {wanted}: {answer.summary}")
            disagreement = oracle.agree(detect(row.mended or "") if mended else row.detection, answer)
            if disagreement is not None:
                row.wrong.append(disagreement)


def apply_and_revert(rows: Sequence[Row]) -> None:
    with tempfile.TemporaryDirectory(prefix="diag-releases-") as scratch:
        host = Host(name="here", address="local", python=sys.executable, env={"XDG_STATE_HOME": f"{scratch}/state"})
        with connect(host) as transport:
            for row in rows:
                if row.mended is not None:
                    _apply_and_revert(row, transport, Path(scratch) / row.release.version)


def _apply_and_revert(row: Row, transport: Transport, site_packages: Path) -> None:
    file = site_packages / FIX.file
    try:
        _unpack(row.wheel, site_packages)
        before = file.read_bytes()
        change = transaction.plan(FIX, transaction.inspect(transport, FIX, str(site_packages)))
        done = transaction.apply(transport, FIX, change)
        if file.read_bytes() != (row.mended or "").encode("utf-8"):
            row.wrong.append("what was applied is not the rewritten text")
        transaction.revert(transport, FIX, done.installed)
        row.reverted = "identical" if file.read_bytes() == before else "differs"
        if row.reverted == "differs":
            row.wrong.append("after reverting the file is not the original")
    except DiagError as error:
        row.reverted = "failed"
        row.wrong.append(f"the transaction failed: {error.what}")


def _unpack(wheel: Path, target: Path) -> None:
    """The package's metadata and the file: all that the transaction looks at."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(FIX.file, target)
        for name in archive.namelist():
            if ".dist-info/" in name:
                archive.extract(name, target)
    (target / "sglang" / "__init__.py").touch()


HEAD = (
    "release",
    "shape",
    "detector",
    "sites",
    "lines",
    "oracle",
    "from bs",
    "mended",
    "by oracle",
    "revert",
    "",
)


def cells(row: Row) -> tuple[str, ...]:
    lines = misplaced(row.release, row.detection)
    answer, mended = row.answer, row.mended_answer
    return (
        row.release.version,
        row.release.shape,
        row.detection.state,
        str(len(row.detection.sites)),
        f"{len(lines)} wrong" if lines else "as known" if row.detection.sites else "-",
        answer.verdict if answer is not None else "-",
        first_wrong(answer),
        detect(row.mended).state if row.mended is not None else "-",
        mended.verdict if mended is not None else "-",
        row.reverted,
        "DISAGREE" if row.wrong else "ok",
    )


def first_wrong(answer: oracle.OracleAnswer | None) -> str:
    """Smallest batch with anything wrong, eager/graph: `1/2`."""
    cases = answer.document.get("path_results", ()) if answer is not None else ()
    sizes: dict[str, int] = {}
    for case in cases:
        if case["fields"] and not all(each["ok"] for each in case["fields"].values()):
            sizes[case["path"]] = min(case["bs"], sizes.get(case["path"], case["bs"]))
    return "/".join(str(sizes.get(path, "-")) for path in ("eager", "graph")) if sizes else "-"


def table(rows: Sequence[Row]) -> Iterator[str]:
    grid = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(HEAD))]
    for line in grid:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    for row in rows:
        for reason in row.wrong:
            yield f"{row.release.version}: {reason}"


def closing(rows: Sequence[Row], seconds: float) -> str:
    mended = [row for row in rows if row.mended is not None]
    agreeing = sum(not row.wrong for row in rows)
    states = ", ".join(
        f"{sum(row.detection.state == state for row in rows)} {state.replace('_', ' ')}"
        for state in ("present", "fixed", "not_applicable", "unknown")
    )
    right = sum(row.mended_answer is not None and row.mended_answer.verdict == "right" for row in mended)
    return (
        f"{len(rows)} releases ({states}); detector, oracle and table agree on {agreeing}; "
        f"mended and right by the oracle {right} of {len(mended)}; "
        f"reverted to the byte {sum(row.reverted == 'identical' for row in mended)} of {len(mended)}; {seconds:.0f} s"
    )


def main() -> int:
    known = releases()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="default: one release of each shape")
    parser.add_argument("--all", action="store_true", help=f"all {len(known)} releases that are known")
    given = parser.parse_args()
    versions = tuple(known) if given.all else tuple(given.versions) or SHAPES
    unknown = [version for version in versions if version not in known]
    if unknown:
        parser.error(f"not in tests/source/releases.tsv: {', '.join(unknown)}")
    started = time.monotonic()
    rows = [read(known[version]) for version in versions]
    run_oracle(rows)
    apply_and_revert(rows)
    print(*table(rows), closing(rows, time.monotonic() - started), sep="\n")
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
