"""`diag probe source` and `diag source`, as typed: a wheel, a folder, a release, and a host behind a real sshd."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag import cli
from diag.fixes.catalogue import FIXES, files, get
from diag.source import wheels
from tests.conftest import Sshd

pytestmark = pytest.mark.wheel

VERSION = "0.5.12"
TRITON = "sglang/srt/layers/attention/triton_backend.py"
MODULE = "sglang.srt.layers.attention.triton_backend"
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    code = cli.run(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def told(capsys: Captured, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document, valid by its schema."""
    code, out, _ = run(capsys, *words, "--json")
    document: dict[str, Any] = json.loads(out)
    schema = "probe-source" if words[0] == "probe" else "source"
    jsonschema.validate(document, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    return code, document


def states(document: dict[str, Any]) -> dict[str, str]:
    return {fault["id"]: fault["state"] for fault in document["faults"]}


def refused(capsys: Captured, *words: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *words, "--json")
    error: dict[str, Any] = json.loads(out)["error"]
    assert code == error["exit_code"]
    return error


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of our own to stand in, and no inventory but the one that a test writes there."""
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wheel() -> Path:
    return wheels.fetch("sglang", VERSION)


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    """A virtual environment in shape, with the files of interest of the real wheel and its RECORD."""
    prefix = tmp_path / "venv"
    folder = prefix / "lib" / "python3.11" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        kept = [*files("sglang"), "sglang/version.py", f"sglang-{VERSION}.dist-info/RECORD"]
        archive.extractall(folder, kept)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "pyvenv.cfg").write_text("version = 3.11.2\n")
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    file = folder / TRITON
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# --- probe source -------------------------------------------------------------------------------------------------


def test_a_release(capsys: Captured) -> None:
    code, document = told(capsys, "probe", "source", f"sglang=={VERSION}", "--no-oracle")
    assert code == 1
    assert (document["kind"], document["package"], document["version"]) == ("release", "sglang", VERSION)
    assert list(states(document)) == [fix.id for fix in FIXES]
    assert [f["id"] for f in document["faults"] if f["severity"] == "fault"] == ["mask-indptr"]
    assert {file["integrity"] for file in document["files"]} == {"pristine"}
    first = document["faults"][0]
    assert {(site["line"], site["role"]) for site in first["sites"]} >= {(404, "seq_mask_len"), (843, "seq_mask_len")}
    rows = wheels.read(wheels.fetch("sglang", VERSION), TRITON).decode().split("\n")
    assert all(rows[site["line"] - 1] == site["text"] for site in first["sites"])


def test_a_wheel_file_says_the_same(capsys: Captured, wheel: Path) -> None:
    code, document = told(capsys, "probe", "source", str(wheel), "--no-oracle")
    assert (code, document["kind"], document["version"]) == (1, "wheel", VERSION)
    assert states(document)["mask-indptr"] == "present"


def test_the_backend_decides_what_is_a_fault(capsys: Captured) -> None:
    release = "sglang==0.5.23"
    assert told(capsys, "probe", "source", release, "--no-oracle")[0] == 0
    code, document = told(capsys, "probe", "source", release, "--no-oracle", "--backend", "wave")
    assert (code, document["backends"]) == (1, ["wave"])
    assert [f["id"] for f in document["faults"] if f["severity"] == "fault"] == ["mask-indptr-wave"]
    code, document = told(capsys, "probe", "source", release, "--no-oracle", "--backend", "all")
    assert code == 1
    assert sum(f["severity"] == "fault" for f in document["faults"]) == 5


def test_a_folder_in_every_spelling(capsys: Captured, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site)
    for spelling in (str(site), ".", "./sglang", "sglang"):
        code, document = told(capsys, "probe", "source", spelling, "--no-oracle")
        assert (code, document["kind"], document["version"]) == (1, "folder", VERSION)
        assert document["where"] == str(site)
        assert {file["integrity"] for file in document["files"]} == {"pristine"}


def test_a_checkout_has_no_record(capsys: Captured, site: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "fork"
    shutil.copytree(site / "sglang", checkout / "python" / "sglang")
    (checkout / "python" / "sglang" / "version.py").write_text('__version__ = "0.5.12+tree"\n')
    code, document = told(capsys, "probe", "source", "./fork", "--no-oracle")
    assert (code, document["version"]) == (1, "0.5.12+tree")
    assert {file["integrity"] for file in document["files"]} == {"unlisted"}
    assert document["unknown"]


def test_an_edited_file_is_shown_against_its_release(capsys: Captured, site: Path) -> None:
    edit(
        site, "self.num_draft_tokens * (seq_lens + self.num_draft_tokens)", "spec_info.draft_token_num * (seq_lens + 1)"
    )
    code, document = told(capsys, "probe", "source", str(site), "--no-oracle")
    (triton, *rest) = document["files"]
    assert triton["integrity"] == "edited"
    assert triton["diff"].startswith(f"--- released/{TRITON}\n+++ installed/{TRITON}\n@@ ")
    assert triton["diff"].count("\n+ ") == 2
    assert {file["diff"] for file in rest} == {None}
    assert (code, states(document)["mask-indptr"]) == (3, "unknown")
    code, out, _ = run(capsys, "probe", "source", str(site), "--no-oracle")
    assert "sglang 0.5.12: not everything could be told" in out
    assert "+            seq_mask_len = spec_info.draft_token_num * (seq_lens + 1)" in out


def test_a_file_that_is_gone_cannot_be_told(capsys: Captured, site: Path) -> None:
    (site / TRITON).unlink()
    code, document = told(capsys, "probe", "source", str(site), "--no-oracle")
    assert (code, states(document)["mask-indptr"]) == (3, "unknown")
    assert document["files"][0]["integrity"] == "missing"


def test_a_mended_folder_is_clean(capsys: Captured, site: Path) -> None:
    file = site / TRITON
    file.write_text(get("mask-indptr").rewrite(file.read_text()))
    code, document = told(capsys, "probe", "source", str(site), "--no-oracle")
    assert (code, states(document)["mask-indptr"]) == (0, "fixed")
    assert document["files"][0]["diff"] is not None


def test_the_page_shows_the_lines(capsys: Captured, wheel: Path) -> None:
    code, out, _ = run(capsys, "probe", "source", str(wheel), "--no-oracle")
    assert code == 1
    assert out.startswith("sglang 0.5.12: 1 fault present\n")
    assert "    > 404 |             seq_mask_len = self.num_draft_tokens * (" in out
    assert re.search(r"^fa-tree-mask-stride +present \(fa3/fa4/flashattention, lines 436, ", out, re.M)
    assert f"pristine  {TRITON}" in out


def test_the_oracle_stands_beside_the_fault_that_it_is_for(capsys: Captured, wheel: Path) -> None:
    pytest.importorskip("torch")
    code, document = told(capsys, "probe", "source", str(wheel), "--oracle")
    assert code == 1
    asked = {fault["id"]: fault["oracle"] for fault in document["faults"]}
    assert asked["mask-indptr"]["verdict"] == "wrong"
    assert {name for name, answer in asked.items() if answer is not None} == {"mask-indptr"}
    assert document["disagreement"] is None


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        ("./missing", "usage", "does not exist"),
        ("./plain.txt", "usage", "is neither a wheel nor a folder"),
        ("./empty", "package_not_installed", "holds no folder sglang"),
        ("./other.whl", "package_not_installed", "is no wheel of sglang"),
        ("no-such-host", "unknown_host", "no-such-host"),
    ],
)
def test_what_is_no_target(target: str, kind: str, says: str, capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other-1.dist-info/RECORD", "")
    error = refused(capsys, "probe", "source", target)
    assert error["kind"] == kind
    assert says in error["what"]


# --- diag source --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [MODULE, TRITON, TRITON.removesuffix(".py")])
def test_exactly_the_lines_of_a_method(module: str, capsys: Captured, site: Path) -> None:
    place = f"{site}:{module}:TritonAttnBackend.get_cuda_graph_seq_len_fill_value"
    code, out, err = run(capsys, "source", place)
    assert code == 0
    assert "sglang 0.5.12, pristine by its RECORD" in err
    rows = (site / TRITON).read_text().splitlines()
    shown = [re.fullmatch(r" *(\d+) \| (.*)", line) for line in out.splitlines()]
    numbers = [int(match[1]) for match in shown if match is not None]
    assert len(numbers) == len(shown) == 2
    assert [match[2] for match in shown if match is not None] == [rows[number - 1] for number in numbers]
    assert rows[numbers[0] - 1] == "    def get_cuda_graph_seq_len_fill_value(self):"


def test_a_whole_file(capsys: Captured, site: Path) -> None:
    _, document = told(capsys, "source", f"{site}:{MODULE}")
    (block,) = document["blocks"]
    assert [line["text"] for line in block] == (site / TRITON).read_text().splitlines()
    assert [line["number"] for line in block] == list(range(1, len(block) + 1))


def test_grep_within_a_method_with_context(capsys: Captured, site: Path) -> None:
    place = f"{site}:{MODULE}:TritonAttnBackend.init_forward_metadata"
    _, document = told(capsys, "source", place, "--grep", r"seq_mask_len\b", "--context", "1")
    matched = [line["number"] for block in document["blocks"] for line in block if line["matches"]]
    assert matched == [404, 408]
    assert [[line["number"] for line in block] for block in document["blocks"]] == [[403, 404, 405], [407, 408, 409]]
    code, out, err = run(capsys, "source", place, "--grep", "no such text")
    assert (code, out) == (0, "")
    assert "no line matches" in err


def test_against_the_release_and_another_one(capsys: Captured, site: Path) -> None:
    place = f"{site}:{MODULE}:TritonAttnBackend.init_forward_metadata"
    _, document = told(capsys, "source", place, "--against", "RECORD")
    assert document["against"] == {"what": "RECORD of sglang 0.5.12", "diff": ""}
    edit(
        site, "            max_extend_len = self.num_draft_tokens\n            num_kv_splits = None", "            pass"
    )
    _, document = told(capsys, "source", place, "--against", "RECORD")
    assert document["integrity"] == "edited"
    assert "\n-            max_extend_len = self.num_draft_tokens\n" in document["against"]["diff"]
    assert re.search(r"^@@ -407,\d+ \+407,\d+ @@$", document["against"]["diff"], re.M)
    _, out, _ = run(capsys, "source", f"sglang==0.5.16:{MODULE}:TritonAttnBackend.__init__", "--against", "0.5.17")
    assert out.startswith(f"--- sglang==0.5.17/{TRITON}\n+++ sglang==0.5.16/{TRITON}\n")
    assert "+        self.num_draft_tokens = model_runner.server_args.speculative_num_draft_tokens" in out


def test_a_name_that_is_not_there_names_the_nearest(capsys: Captured, site: Path) -> None:
    error = refused(capsys, "source", f"{site}:sglang.srt.layers.attention.triton_backnd")
    assert error["kind"] == "file_not_as_expected"
    assert "has no sglang/srt/layers/attention/triton_backnd.py" in error["what"]
    assert f"did you mean: {TRITON}" in error["details"][1]
    error = refused(capsys, "source", f"{site}:{MODULE}:TritonAttnBackend.init_forward_metdata")
    assert "did you mean: TritonAttnBackend.init_forward_metadata" in error["details"][0]
    error = refused(capsys, "source", f"{site}:{MODULE}:init_forward_metadata")
    assert "TritonAttnBackend.init_forward_metadata" in error["details"][0]


@pytest.mark.parametrize("typed", ["", "box", "box:", "box:1x", ":sglang", "./x:sglang:1"])
def test_what_names_no_place_is_a_usage_error(typed: str, capsys: Captured) -> None:
    assert refused(capsys, "source", typed)["exit_code"] == 2


def test_a_wrong_expression_is_a_usage_error(capsys: Captured, site: Path) -> None:
    error = refused(capsys, "source", f"{site}:{MODULE}", "--grep", "(")
    assert "is no regular expression" in error["what"]


def test_control_characters_of_a_file_do_nothing_to_the_terminal(capsys: Captured, site: Path) -> None:
    (site / "sglang" / "version.py").write_text("x = '\x1b[31m'\n")
    _, out, _ = run(capsys, "source", f"{site}:sglang.version")
    assert out == "1 | x = '\\x1b[31m'\n"


# --- a host -------------------------------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path, sshd: Sshd, site: Path) -> str:
    """A host whose engine is the one in `site`."""
    host = sshd.host
    lines = [
        "schema = 1",
        "[hosts.box]",
        f"address = {json.dumps(host.address)}",
        f"port = {host.port}",
        f"user = {json.dumps(host.user)}",
        f"identity_file = {json.dumps(str(host.identity_file))}",
        f"known_hosts = {json.dumps(str(host.known_hosts))}",
        f"python = {json.dumps(str(site.parents[2] / 'bin' / 'python'))}",
    ]
    (tmp_path / "diag.toml").write_text("\n".join([*lines, ""]))
    return "box"


@pytest.mark.sshd
def test_a_host_is_read_in_one_command(box: str, sshd: Sshd, site: Path, capsys: Captured) -> None:
    before = sshd.execs()
    code, document = told(capsys, "probe", "source", box)
    assert sshd.execs() - before == 1
    assert (code, document["kind"], document["version"], document["where"]) == (1, "host", VERSION, str(site))
    assert states(document)["mask-indptr"] == "present"
    assert document["faults"][0]["oracle"] is None
    code, out, _ = run(capsys, "probe", "source", box)
    assert "→ diag fix apply box mask-indptr --diff" in out


@pytest.mark.sshd
def test_the_lines_that_run_on_a_host(box: str, sshd: Sshd, site: Path, capsys: Captured) -> None:
    edit(site, "seq_mask_len = self.num_draft_tokens", "seq_mask_len = 1 * self.num_draft_tokens")
    before = sshd.execs()
    code, out, err = run(capsys, "source", f"box:{MODULE}:TritonAttnBackend.init_forward_metadata", "--grep", "1 [*]")
    assert sshd.execs() - before == 1
    assert (code, out) == (0, "404 |             seq_mask_len = 1 * self.num_draft_tokens * (\n")
    assert "edited by its RECORD" in err
    error = refused(capsys, "source", "box:sglang.srt.triton_backend")
    assert error["details"][1] == f"did you mean: {TRITON}"
    error = refused(capsys, "source", "box:vllm.core")
    assert error["kind"] == "package_not_installed"


@pytest.mark.sshd
def test_python_chooses_the_environment(box: str, capsys: Captured, tmp_path: Path) -> None:
    error = refused(capsys, "probe", "source", box, "--python", str(tmp_path / "none" / "bin" / "python"))
    assert error["kind"] == "package_not_installed"
    assert "none/bin/python" in error["what"]
