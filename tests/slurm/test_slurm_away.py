"""A controller that is away for a moment, as a login node sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probes import slurm as login
from tests.slurm.cluster import Cluster


def test_no_job_is_refused_while_nobody_answers_and_none_is_there_twice(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "slurm.conf"
    away.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", slurm.configuration.read_text()))
    name, script = "diag-away.1", "#!/bin/sh\n#SBATCH --job-name=diag-away.1\n#SBATCH --output=/dev/null\nsleep 99\n"
    job = {"serial": 1, "name": name, "files": {}, "script": script, "placeholder": "/there"}
    asked = {"do": "submit", "run": "away", "root": str(tmp_path / "jobs"), **job}
    monkeypatch.setenv("SLURM_CONF", str(away))
    assert login.run(asked)["error"]["kind"] == "host"
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    told = login.run(asked)
    (tmp_path / "jobs" / "away" / "1" / "job.json").unlink()
    assert login.run(asked)["job"] == told["job"]
    gone = {"do": "cancel", "run": "away", "root": str(tmp_path / "jobs"), "jobs": [told["job"]], "forget": True}
    assert login.run(gone) == {"left": []}
    assert not (tmp_path / "jobs" / "away").exists()
