"""The same commands through a real OpenSSH server: same documents, one exec a probe, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.lab.layout import Lab
from tests.conftest import Sshd
from tests.lab_fixture import Ran

pytestmark = [pytest.mark.lab, pytest.mark.sshd, pytest.mark.timeout(300)]

Diag = Callable[..., Ran]
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.fixture
def project(tmp_path: Path, sshd: Sshd, lab: Lab) -> Path:
    """A project folder whose inventory reaches the lab's environment through OpenSSH instead of AsyncSSH."""
    host = sshd.host
    lines = [
        "schema = 1",
        "[hosts.real]",
        f"address = {json.dumps(host.address)}",
        f"port = {host.port}",
        f"user = {json.dumps(host.user)}",
        f"identity_file = {json.dumps(str(host.identity_file))}",
        f"known_hosts = {json.dumps(str(host.known_hosts))}",
        f"python = {json.dumps(str(lab.python))}",
        # The transaction's journal belongs into the test's own folder, not into the home of whoever runs the tests.
        "[hosts.real.env]",
        f"XDG_STATE_HOME = {json.dumps(str(tmp_path / 'host-state'))}",
    ]
    (tmp_path / "diag.toml").write_text("\n".join([*lines, ""]))
    return tmp_path


def read(ran: Ran, schema: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    jsonschema.validate(document, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    return document


def test_probe_host_is_one_exec_and_names_the_fault(diag: Diag, project: Path, sshd: Sshd, lab: Lab) -> None:
    before = sshd.execs()
    ran = diag("probe", "host", "real", "--json", cwd=project)
    assert ran.code == 1, ran.err
    assert sshd.execs() - before == 1
    told = read(ran, "probe-host")
    states = {f["site_packages"]: f["state"] for f in told["faults"] if f["id"] == "mask-indptr"}
    assert states[str(lab.site_packages)] == "present"


def test_fix_apply_status_and_revert(diag: Diag, project: Path, lab: Lab) -> None:
    file = lab.site_packages / "sglang/srt/layers/attention/triton_backend.py"
    original = file.read_bytes()
    shown = diag("fix", "apply", "real", "mask-indptr", "--diff", cwd=project)
    assert shown.code == 0, shown.err
    assert "draft_token_num" in shown.out
    assert file.read_bytes() == original

    applied = read(diag("fix", "apply", "real", "mask-indptr", "--json", cwd=project), "fix")
    assert (applied["changed"], applied["fault"]["state"]) == (True, "fixed")
    assert file.read_bytes() != original
    status = diag("fix", "status", "real", "mask-indptr", "--json", cwd=project)
    assert status.code == 0
    told = read(status, "fix")
    assert (told["state"], told["file"]["integrity"], told["fault"]["state"]) == ("applied", "edited", "fixed")

    reverted = read(diag("fix", "revert", "real", "mask-indptr", "--json", cwd=project), "fix")
    assert (reverted["changed"], reverted["file"]["integrity"]) == (True, "pristine")
    assert file.read_bytes() == original
    assert diag("fix", "status", "real", "mask-indptr", cwd=project).code == 1
