"""Every spelling of the usual suspects, held against the argument parsers of released wheels.

    python benchmarks/engines.py [--releases 12] [--engine vllm] [--version 0.22.1]...

Of each wheel only the files that hold its flags are read, by HTTP range requests, out of the archive on the index that
pip is configured for (a vLLM wheel has hundreds of megabytes). Prints for each release the suspects whose flags its
parser does not know, and those spellings outside their range that it would know. Exit code 1 where a flag is unknown.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
from packaging.version import Version

from diag.serving.flags import known_flags, knows, sources, unknown
from diag.serving.suspects import engines, spellings, table
from diag.source import wheels
from diag.source.wheels import Target

FIRST = {"sglang": "0.4.6", "vllm": "0.8.0"}
CHUNK_BYTES = 1 << 18
PLATFORMS = (*(f"manylinux_2_{glibc}_x86_64" for glibc in (35, 34, 31, 28, 17)), "manylinux1_x86_64")
TARGETS = tuple(Target(python, PLATFORMS) for python in ("3.12", "3.11", "3.10"))


class Ranges(io.RawIOBase):
    """A file on an HTTP server, of which only what is read is fetched."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http, self._url, self._at, self.fetched_bytes = http, url, 0, 0
        head = http.head(url, follow_redirects=True)
        head.raise_for_status()
        self._size = int(head.headers["content-length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        answer = self._http.get(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"}, follow_redirects=True)
        if answer.status_code != 206:
            raise SystemExit(f"The index answers no range requests (HTTP {answer.status_code}).")
        data = answer.content
        buffer[: len(data)] = data
        self._at += len(data)
        self.fetched_bytes += len(data)
        return len(data)


def address(package: str, version: str) -> str:
    """Where pip would take the wheel from."""
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report.json"
            words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--target", scratch]
            more = ["--report", str(report), *target.options, f"{package}=={version}"]
            done = subprocess.run([sys.executable, "-m", "pip", *words, *more], capture_output=True, check=False)
            if done.returncode == 0:
                return str(json.loads(report.read_text())["install"][0]["download_info"]["url"])
    raise SystemExit(f"pip finds no wheel of {package} {version}.")


def read(engine: str, version: str, http: httpx.Client) -> tuple[set[str], int]:
    """(the flags that its parser knows, bytes that were fetched)"""
    raw = Ranges(http, address(engine, version))
    with zipfile.ZipFile(io.BufferedReader(raw, CHUNK_BYTES)) as wheel:
        texts = [wheel.read(name).decode() for name in sources(engine, wheel.namelist())]
    return known_flags(engine, texts), raw.fetched_bytes


def picked(engine: str, count: int) -> list[str]:
    """The newest, the oldest that counts, and evenly between them."""
    found = [v for v in wheels.versions(engine, TARGETS[0]) if Version(v) >= Version(FIRST[engine])]
    if count >= len(found):
        return found
    return [found[round(at * (len(found) - 1) / max(count - 1, 1))] for at in range(count)]


def judged(engine: str, version: str, flags: set[str]) -> tuple[list[str], list[str]]:
    """(flags of its spellings that the parser does not know, those of other versions' spellings that it does)"""
    mine = spellings(engine, version)
    missing = [f"{one.name}: {flag}" for one in mine for flag in unknown(flags, one.flags, any_will_do=bool(one.given))]
    others = [one for one in table(engine).suspect if one not in mine and one.name not in {each.name for each in mine}]
    early = [f"{one.name}: {flag}" for one in others for flag in one.flags if knows(flags, flag)]
    return missing, early


def rows(engine: str, versions: list[str]) -> Iterator[bool]:
    with httpx.Client(timeout=60) as http:
        for version in versions:
            began = time.monotonic()
            flags, fetched = read(engine, version, http)
            missing, early = judged(engine, version, flags)
            count = len(spellings(engine, version))
            told = "; ".join(missing) or "-"
            print(
                f"| {engine} {version} | {len(flags)} | {count} | {told} | {'; '.join(early) or '-'} "
                f"| {fetched / 1e6:.1f} | {time.monotonic() - began:.1f} |",
                flush=True,
            )
            yield not missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=12)
    parser.add_argument("--engine", choices=engines(), action="append")
    parser.add_argument("--version", action="append")
    asked = parser.parse_args()
    print("| release | flags | suspects | not known | known outside the range | MB read | s |")
    print("|---|---|---|---|---|---|---|")
    right = [
        fine
        for engine in asked.engine or engines()
        for fine in rows(engine, asked.version or picked(engine, asked.releases))
    ]
    print(f"\n{sum(right)} of {len(right)} releases know every flag of their spellings")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
