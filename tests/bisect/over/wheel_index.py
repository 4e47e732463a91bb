"""Wheels that a test makes, and an index of them that pip is pointed at: nothing is asked of the network."""

from __future__ import annotations

import base64
import hashlib
import html
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Text = Callable[[str, bytes], bytes]


def build(folder: Path, name: str, version: str, files: Mapping[str, bytes], *, tag: str = "py3-none-any") -> Path:
    """A wheel with these files and what a wheel must have."""
    info = f"{name}-{version}.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in whole.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in whole.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def files_of(wheel: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if wanted(name) and not name.endswith("/")}


def index(folder: Path, wheels: Iterable[Path], yanked: Iterable[str] = ()) -> dict[str, str]:
    """What pip must be told: a simple index (PEP 503) of these wheels in `folder`. yanked: versions."""
    pages: dict[str, list[str]] = {}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        mark = ' data-yanked="broken"' if version in yanked else ""
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f'<a href="{html.escape(wheel.as_uri())}#sha256={digest}"{mark}>{wheel.name}</a>'
        pages.setdefault(name.replace("_", "-"), []).append(link)
    for name, links in pages.items():
        page = folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")
    # No configuration but this: neither the user's file nor another index may add to it.
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX" + "_URL": (folder / "simple").as_uri(), "PIP_FIND_LINKS": ""}
