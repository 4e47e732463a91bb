"""`--over versions` on the lab: its server really imports what is laid out, and the range really flips.

No released range flips there: every SGLang that the lab's server can run garbles the story's configuration. So the
range is made here of the real files of 0.5.12, with and without the fix of the catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from diag.fixes import catalogue
from diag.lab.layout import Lab
from diag.source import wheels
from tests.bisect.over.wheel_index import build, files_of, index
from tests.lab_fixture import Ran

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

FIX = catalogue.get("mask-indptr")
SUITE = """\
schema: 1
name: one
title: one prompt
max_new_tokens: 24
prompts:
  - {name: count, user: "Count from one to twenty, in words."}
"""


def releases(folder: Path) -> list[Path]:
    """0.5.9, 0.5.11: mended. 0.5.10: does not start. 0.5.12: as released."""
    attention = str(Path(FIX.file).parent)
    kept = files_of(
        wheels.fetch("sglang", "0.5.12"), lambda n: n.startswith(f"{attention}/") or n == "sglang/__init__.py"
    )
    mended = {**kept, FIX.file: FIX.rewrite(kept[FIX.file].decode()).encode()}
    dead = {**kept, FIX.file: b'raise ImportError("libcudart.so.12 is not there")\n'}
    contents = {"0.5.9": mended, "0.5.10": dead, "0.5.11": mended, "0.5.12": kept}
    return [build(folder, "sglang", version, files) for version, files in contents.items()]


def test_the_release_that_broke_it_is_named(lab: Lab, diag: Callable[..., Ran], tmp_path: Path) -> None:
    plan = (Path(__file__).parents[3] / "playbooks" / "plans" / "ddtree-garble.yaml").read_text()
    (tmp_path / "story.yaml").write_text(plan.replace("prompts: garble", "prompts: ./suite.yaml"))
    (tmp_path / "suite.yaml").write_text(SUITE)
    pip = index(tmp_path, releases(tmp_path / "wheels"))
    env = {**pip, "DIAG_CACHE_DIR": str(tmp_path / "cache")}
    before = {path: path.stat().st_mtime_ns for path in lab.site_packages.rglob("*") if "__pycache__" not in str(path)}
    asked = ("--over", "versions", "--good", "0.5.9", "--bad", "0.5.12", "--plan", "./story.yaml")
    ran = diag("bisect", "lab", *asked, "--json", env=env, cwd=tmp_path)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    assert told["culprit"]["factors"] == {"version": "0.5.12"}
    assert told["culprit"]["predicate"] == "version >= 0.5.12"
    assert told["over"]["last_good"] == ["0.5.11"]
    schema = json.loads((Path(__file__).parents[3] / "docs" / "schemas" / "bisect.json").read_text())
    jsonschema.validate(told, schema)
    # What ran is the evidence: the server says its version, and where the file lies that it executed.
    for trial in told["trials"]:
        assert trial["effective"] == trial["config"]
    # Nothing was installed, nothing is left but the wheels, by their hashes.
    after = {path: path.stat().st_mtime_ns for path in lab.site_packages.rglob("*") if "__pycache__" not in str(path)}
    assert after == before
    cache = lab.home / ".cache" / "diag"
    assert list((cache / "overlays").iterdir()) == []
    kept = [path.name for path in (cache / "wheels").rglob("*.whl")]
    assert sorted(kept) == sorted({t["details"]["wheel"] for t in told["trials"]})
