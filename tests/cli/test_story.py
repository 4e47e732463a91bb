"""The whole story through the commands that a person types, and the documents that a program reads.

The order matters and is the file's: before the fix, the fix, after it, and back.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.lab.layout import Lab
from tests.lab_fixture import Ran, command
from tests.report import browser

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

Diag = Callable[..., Ran]
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def document(ran: Ran, schema: str) -> dict[str, Any]:
    """Standard output is one JSON document of the documented form."""
    read: dict[str, Any] = json.loads(ran.out)
    jsonschema.validate(read, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    return read


TWO_PROMPTS = """\
schema: 1
name: two
max_new_tokens: 20
prompts:
  # One whose trees cannot be filled, so that padding is there and innocent, and one whose trees always are.
  - name: poem
    user: "Write a short poem about the ocean."
  - name: cycle
    text: "a1 b2 c3 d4 e5 f6 a1 b2 c3 d4 e5 f6 a1 b2"
"""


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped plan with a suite of two prompts, so that a trial is short."""
    shipped = (Path(__file__).parents[2] / "playbooks" / "plans" / "ddtree-garble.yaml").read_text()
    folder = tmp_path_factory.mktemp("plan")
    (folder / "two.yaml").write_text(TWO_PROMPTS)
    plan = folder / "story.yaml"
    plan.write_text(shipped.replace("prompts: garble", "prompts: two.yaml"))
    return plan


@contextmanager
def served(lab: Lab) -> Iterator[int]:
    """`diag lab serve` as a person leaves it running in another terminal; the port it says."""
    with subprocess.Popen(command("lab", "serve"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout is None:
                pytest.fail("no standard output")
            line = child.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            assert found is not None, line
            yield int(found[1])
        finally:
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=60)
    assert child.returncode == 130


def test_probe_names_the_fault_and_its_lines(diag: Diag, lab: Lab) -> None:
    ran = diag("probe", "host", "lab", "--json", "--verify-all")
    assert ran.code == 1, ran.err
    told = document(ran, "probe-host")
    here = [f for f in told["faults"] if f["site_packages"] == str(lab.site_packages)]
    (fault,) = [f for f in here if f["severity"] == "fault"]
    assert (fault["id"], fault["state"], fault["version"], fault["integrity"]) == (
        "mask-indptr",
        "present",
        "0.5.12",
        "pristine",
    )
    text = (lab.site_packages / fault["sites"][0]["file"]).read_text().splitlines()
    assert all(text[site["line"] - 1] == site["text"] for site in fault["sites"])
    lines = {(site["role"], site["line"]) for site in fault["sites"]}
    assert {("qo_indptr", 364), ("seq_mask_len", 404), ("seq_mask_len", 685), ("seq_mask_len", 843)} <= lines
    (source,) = [s for s in told["sources"] if s["site_packages"] == str(lab.site_packages)]
    assert source["record_checked"]["edited"] == source["record_checked"]["missing"] == []
    assert source["record_checked"]["files"] > 2000
    assert [f["id"] for f in told["findings"] if f["severity"] == "fault"] == ["mask-indptr"]


def test_probe_as_a_page_says_the_same(diag: Diag, lab: Lab) -> None:
    ran = diag("probe", "host", "lab")
    assert ran.code == 1
    assert ran.out.startswith("lab: 1 fault found")
    assert "> 404 |             seq_mask_len = self.num_draft_tokens * (" in ran.out
    assert "TritonAttnBackend.init_forward_metadata_replay_cuda_graph" in ran.out
    assert "file pristine by its RECORD" in ran.out


def test_bisect_ends_with_the_equality(diag: Diag, lab: Lab, story: Path) -> None:
    ran = diag("bisect", "lab", "--plan", str(story), "--json", timeout_s=600)
    assert ran.code == 1, ran.err
    told = document(ran, "bisect")
    assert told["verdict"] == "culprit"
    assert told["culprit"]["predicate"] == "budget + 1 != block_size"
    assert told["culprit"]["confidence"] == 1.0
    assert set(told["cleared"]) == {"topk", "cuda_graph"}
    assert told["sufficient"]
    assert told["necessary"]
    assert {"padded_rows > 0", "topk=4", "cuda_graph=on", "budget=16"} <= {r["name"] for r in told["rejected"]}
    assert len(told["trials"]) <= 8
    for trial in told["trials"]:
        effective = trial["effective"]
        assert (trial["outcome"] == "fail") is (effective["budget"] + 1 != effective["block_size"])
        assert trial["warnings"] == []
    assert told["source"]["state"] == "present"
    assert {site["line"] for site in told["source"]["sites"]} >= {364, 404, 685, 843}
    assert "trial 1 of about" in ran.err
    journal = [json.loads(line) for line in Path(told["journal"]).read_text().splitlines()]
    kinds = [e["kind"] for e in journal if e["kind"] not in ("facts", "outlook", "report")]
    assert kinds == ["start", *["trial"] * len(told["trials"]), "verdict"]


def test_its_report_holds_all_that_was_seen(diag: Diag, lab: Lab, tmp_path: Path) -> None:
    page = tmp_path / "story.html"
    made = document(diag("report", "--html", str(page), "--json"), "report")
    assert made["not_recorded"] == []
    assert made["answer"][0].startswith("CULPRIT")
    assert [rate["garbled"] == rate["tried"] for rate in made["rates"]] == [True, False]
    assert made["posterior"][-1]["standing"][0] == ["budget + 1 != block_size", 1.0]
    assert made["in_force"]["telling"]["attention_backend"] == "triton"
    assert made["texts"][0]["gaps_nats"]
    assert made["texts"][0]["pieces"]
    assert ["packages", "sglang 0.5.12"] in made["facts"][0]["lines"]
    assert page.stat().st_size < 1.5 * 1024 * 1024
    program = browser.find()
    if program is not None:  # looked at more closely in tests/report
        with browser.opened(program, tmp_path / "profile") as opened, opened.page(page, 390, "dark") as shown:
            assert shown.complaints() == []
            assert shown.value("document.documentElement.scrollWidth") <= 390
            shown.screenshot(Path("build/screenshots/lab-390-dark.png"))


def test_status_before(diag: Diag, lab: Lab) -> None:
    ran = diag("fix", "status", "lab", "mask-indptr", "--json")
    assert ran.code == 1
    told = document(ran, "fix")
    assert (told["fault"]["state"], told["state"], told["file"]["integrity"]) == ("present", "not_applied", "pristine")


def test_a_running_garbler_is_judged_and_said_to_hold_old_code_after_the_fix(diag: Diag, lab: Lab) -> None:
    """The tree of budget 16, up while the file is mended: it goes on garbling, and every command says why."""
    with served(lab) as port:
        probed = diag("probe", "host", "lab", "--json")
        assert probed.code == 1
        told = document(probed, "probe-host")
        (server,) = told["servers"]
        assert (server["port"], server["engine"], server["verdict"]) == (port, "sglang", "garbled")
        assert (server["verify_width"], server["effective"]["speculative_num_draft_tokens"]) == (17, 8)
        assert {f["id"] for f in told["findings"]} >= {"mask-indptr", "server-garbled", "verify-width-mismatch"}
        assert server["site_packages"] == str(lab.site_packages)

        applied = diag("fix", "apply", "lab", "mask-indptr", "--json")
        assert applied.code == 0, applied.err
        told = document(applied, "fix")
        assert (told["changed"], told["fault"]["state"]) == (True, "fixed")
        assert told["oracle"]["verdict"] == "right", told["oracle"]
        assert told["restart_needed"] == [server["pid"]]
        page = diag("fix", "status", "lab", "mask-indptr")
        assert page.code == 0
        assert "still running the old code" in page.out
        again = document(diag("probe", "host", "lab", "--json"), "probe-host")
        assert {f["id"] for f in again["findings"]} >= {"server-garbled", "server-stale", "file-edited"}


def test_the_failing_configuration_is_clean_after_the_fix(diag: Diag, lab: Lab, story: Path) -> None:
    ran = diag("bisect", "lab", "--plan", str(story), "--check", "--json", timeout_s=600)
    assert ran.code == 0, ran.err
    told = document(ran, "bisect")
    assert told["verdict"] == "clean"
    assert [trial["outcome"] for trial in told["trials"]] == ["pass", "pass"]
    assert {text["kind"] for trial in told["trials"] for text in trial["texts"]} <= {"identical", "plausible"}


def test_revert_gives_the_wheels_own_bytes_back(diag: Diag, lab: Lab) -> None:
    ran = diag("fix", "revert", "lab", "mask-indptr", "--json")
    assert ran.code == 0, ran.err
    told = document(ran, "fix")
    assert (told["changed"], told["file"]["integrity"], told["fault"]["state"]) == (True, "pristine", "present")
    again = diag("fix", "revert", "lab", "mask-indptr")
    assert again.code == 0
    assert "Nothing to do" in again.out


def test_and_it_garbles_again(diag: Diag, lab: Lab, story: Path) -> None:
    ran = diag("bisect", "lab", "--plan", str(story), "--check", timeout_s=600)
    assert ran.code == 1, ran.err
    assert ran.out.startswith("FAILS")
    assert "GARBLED" in ran.out


def test_reset_gives_a_pristine_wheel_whatever_was_done_to_it(diag: Diag, lab: Lab) -> None:
    victim = lab.site_packages / "sglang" / "version.py"
    victim.write_text("broken = (")
    (lab.site_packages / "sglang" / "stray.py").write_text("")
    assert diag("lab", "reset").code == 0
    ran = diag("probe", "host", "lab", "--json", "--verify-all")
    (source,) = [s for s in json.loads(ran.out)["sources"] if s["site_packages"] == str(lab.site_packages)]
    checked = source["record_checked"]
    assert (checked["edited"], checked["missing"], checked["unlisted"]) == ([], [], [])
