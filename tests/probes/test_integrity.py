"""RECORD as wheels write it, and as it may not be; files against it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import integrity


def checksum(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def install(site: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A package as pip would have installed it; its dist-info folder."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    rows = [(path, checksum(content), len(content)) for path, content in files.items()]
    rows.append((f"{info.name}/RECORD", "", ""))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    (info / "RECORD").write_text(text.getvalue())
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    return info


BACKEND = "sglang/srt/layers/attention/triton_backend.py"
FILES = {
    BACKEND: b"x = 1\r\n",
    "sglang/__init__.py": b"",
    'sglang/a "quoted", name.py': b"q",
    "../../../bin/sglang": b"#!x",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "python3.12" / "site-packages"
    install(folder, "sglang", "0.5.12", FILES)
    return folder


SHA = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"a/b.py,{checksum(b'')},0", {"a/b.py": (SHA, 0)}),
        (f'"a, ""b"".py",{checksum(b"")},0', {'a, "b".py': (SHA, 0)}),
        ("a.pyc,,", {"a.pyc": (None, None)}),
        ("a.py,md5=AAAA,3", {"a.py": (None, 3)}),
        ("a.py,sha256=short,x", {"a.py": (None, None)}),
        ("a.py,sha256=!!!,1", {"a.py": (None, 1)}),
        ("a.py", {"a.py": (None, None)}),
        ("", {}),
    ],
)
def test_record_lines(line: str, expected: dict[str, tuple[str | None, int | None]]) -> None:
    assert integrity.parse_record(line) == expected


@given(st.dictionaries(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1), st.binary(max_size=20)))
def test_record_round_trip(files: dict[str, bytes]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows((path, checksum(content), len(content)) for path, content in files.items())
    assert integrity.parse_record(text.getvalue()) == {
        path: (hashlib.sha256(content).hexdigest(), len(content)) for path, content in files.items()
    }


@given(st.text())
def test_any_text_is_a_record_of_something(text: str) -> None:
    assert all(entry.sha256 is None or len(entry.sha256) == 64 for entry in integrity.parse_record(text).values())


def look(site: Path, *files: str, verify_all: bool = False) -> dict:
    return integrity.run({"site_packages": str(site), "package": "sglang", "files": files, "verify_all": verify_all})


def test_states_of_a_file(site: Path) -> None:
    (site / "sglang" / "extra.py").write_bytes(b"added")
    (site / "sglang" / "__init__.py").write_bytes(b"edited")
    (site / 'sglang/a "quoted", name.py').unlink()
    paths = [BACKEND, "sglang/__init__.py", 'sglang/a "quoted", name.py', "sglang/extra.py", "sglang/nowhere.py"]
    found = look(site, *paths)["files"]
    assert [file["integrity"] for file in found] == ["pristine", "edited", "missing", "unlisted", "unlisted"]
    assert [file["exists"] for file in found] == [True, True, False, True, False]
    assert zlib.decompress(base64.b64decode(found[0]["content_b64"])) == FILES[BACKEND]  # byte for byte
    assert found[1]["record_sha256"] == SHA
    assert found[1]["sha256"] == hashlib.sha256(b"edited").hexdigest()


def test_all_files_of_a_package(site: Path) -> None:
    assert look(site, verify_all=True)["record_checked"]["counts"] == {"edited": 0, "missing": 0, "unlisted": 0}
    (site / BACKEND).write_bytes(b"x = 1\n")
    (site / "sglang/__init__.py").unlink()
    (site / "sglang/new.py").touch()
    checked = look(site, verify_all=True)["record_checked"]
    assert checked["files"] == len(FILES)
    assert (checked["edited"], checked["missing"]) == ([BACKEND], ["sglang/__init__.py"])
    assert checked["unlisted"] == ["sglang/new.py"]


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    names = [f"sglang/m{at:04}.py" for at in range(integrity.NAMES + 50)]
    install(tmp_path, "sglang", "1.0", dict.fromkeys(names, b""))
    for name in names:
        (tmp_path / name).unlink()
    checked = look(tmp_path, verify_all=True)["record_checked"]
    assert checked["counts"]["missing"] == len(names)
    assert len(checked["missing"]) == integrity.NAMES


@pytest.mark.parametrize("path", ["/etc/passwd", "sglang/../../../etc/passwd", ".."])
def test_nothing_outside_site_packages_is_sent(site: Path, path: str) -> None:
    found = look(site, path)
    assert found["files"] == []
    assert found["unknown"][0]["what"] == path


def test_a_file_that_cannot_be_read_says_why(site: Path) -> None:
    [file] = look(site, "sglang/srt")["files"]
    assert (file["exists"], file["sha256"]) == (False, None)
    assert "irectory" in file["why"]


def test_a_package_without_record_cannot_be_checked(site: Path) -> None:
    (site / "sglang-0.5.12.dist-info" / "RECORD").unlink()
    found = look(site, BACKEND, verify_all=True)
    assert found["record_checked"] is None
    assert found["files"][0]["integrity"] == "unlisted"
    assert "RECORD is missing" in found["unknown"][0]["why"]


def test_the_distribution_of_a_package_of_another_name(tmp_path: Path) -> None:
    install(tmp_path, "other", "1", {"other.py": b"", "sgl_kernel_x/a.py": b""})
    install(tmp_path, "sglang-kernel", "0.4", {"sgl_kernel/__init__.py": b"k"})
    version, folder, _ = integrity.owner([str(tmp_path)], "sgl_kernel")
    assert (version, folder) == ("0.4", str(tmp_path))
    assert integrity.owner([str(tmp_path)], "torch") == (None, None, None)
