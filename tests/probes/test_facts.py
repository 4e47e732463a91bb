"""nvidia-smi as it answers, refuses, hangs and is not there; and the machine itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import facts

FIELDS = list(facts.GPU_FIELDS)
HEAD = ",".join(FIELDS) + "\n"
SOME = "0, NVIDIA H200, GPU-1f, 00000000:0F:00.0, 575.57.08, 143771, 512, 3, 31, 76.61, Enabled, Disabled, 0, 9.0"
ROW = SOME + ", Enabled, 0, [N/A], 700.00, 405, 1980, 0x0000000000000001, 16, 16, 5"  # as driver 580 on an H200 answers


def test_a_gpu_with_all_its_fields() -> None:
    [gpu] = facts.parse_gpus(HEAD + ROW + "\n")
    assert gpu["name"] == "NVIDIA H200"
    assert (gpu["index"], gpu["memory_total_mib"], gpu["power_w"]) == (0, 143771, 76.61)
    assert (gpu["throttle_reasons"], gpu["pcie_width"], gpu["clock_sm_max_mhz"]) == ("0x0000000000000001", 16, 1980)
    assert (gpu["retired_pages_pending"], gpu["ecc_corrected"], gpu["power_limit_w"]) == (None, 0, 700)
    assert (gpu["driver"], gpu["compute_capability"], gpu["mig_mode"]) == ("575.57.08", "9.0", "Disabled")


@pytest.mark.parametrize(
    ("cell", "value"),
    [("[N/A]", None), ("[Not Supported]", None), ("[Unknown Error]", None), ("ERR!", None), ("", None), ("12", 12)],
)
def test_a_number_that_is_not_there(cell: str, value: object) -> None:
    [gpu] = facts.parse_gpus("index,power.draw\n0, " + cell)
    assert gpu == {"index": 0, "power_w": value}


@pytest.mark.parametrize(
    "table",
    [
        "",
        HEAD,
        HEAD + "Unable to determine the device handle for GPU 0000:0F:00.0: GPU is lost.\n",
        "No devices were found\n",
    ],
)
def test_no_gpu_is_made_of_a_complaint(table: str) -> None:
    assert facts.parse_gpus(table) == []


@given(st.text())
def test_any_garbage_gives_rows_of_the_right_shape_or_none(rows: str) -> None:
    for gpu in facts.parse_csv(rows, ["index", "name", "memory_used_mib"]):
        assert list(gpu) == ["index", "name", "memory_used_mib"]
        assert gpu["index"] is None or isinstance(gpu["index"], int | float)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name, first on PATH; the test writes its shell text."""
    path = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return path


def install(path: Path, body: str) -> None:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)


def whys(document: dict[str, Any]) -> dict[str, str]:
    return {entry["what"]: entry["why"] for entry in document["unknown"]}


def test_a_driver_that_answers(nvidia_smi: Path) -> None:
    install(
        nvidia_smi,
        f"""case "$*" in
        --query-gpu=*) echo '{ROW}';;
        --query-remapped-rows=*) echo 'GPU-1f, 0, 1, No, Yes';;
        --query-compute-apps=*) echo '4242, GPU-1f, 1024';;
        topo*) printf '\\tGPU0\\nGPU0\\t X\\n';;
        *) echo '| NVIDIA-SMI 575.57.08   Driver Version: 575.57.08   CUDA Version: 12.9 |';;
        esac""",
    )
    found = facts.run({})
    assert [gpu["uuid"] for gpu in found["facts"]["gpus"]] == ["GPU-1f"]
    assert found["facts"]["gpu_processes"] == [{"pid": 4242, "gpu_uuid": "GPU-1f", "memory_used_mib": 1024}]
    [rows] = found["facts"]["remapped_rows"]
    assert rows == {"gpu_uuid": "GPU-1f", "correctable": 0, "uncorrectable": 1, "pending": "No", "failure": "Yes"}
    assert (found["facts"]["driver"], found["facts"]["cuda"]) == ("575.57.08", "12.9")
    assert found["facts"]["gpu_topology"].startswith("GPU0")
    assert "GPUs" not in whys(found)


def test_an_old_driver_is_asked_for_less(nvidia_smi: Path) -> None:
    install(
        nvidia_smi,
        """case "$*" in
        *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;;
        --query-gpu=*) echo '0, Tesla V100, GPU-2, 0:1, 450.80, 16160, 0';;
        esac""",
    )
    [gpu] = facts.run({})["facts"]["gpus"]
    assert (gpu["name"], gpu["memory_total_mib"]) == ("Tesla V100", 16160)
    install(
        nvidia_smi,
        f"""case "$*" in
        *pcie.link*) echo 'Field "clocks_throttle_reasons.active" is not a valid field to query.'; exit 2;;
        --query-remapped-rows*) echo 'Option "--query-remapped-rows" is not valid.' ; exit 2;;
        --query-gpu=*) echo '{SOME}';;
        esac""",
    )
    found = facts.run({})
    [gpu] = found["facts"]["gpus"]
    assert (gpu["compute_capability"], "pcie_width" in gpu) == ("9.0", False)
    assert found["facts"]["remapped_rows"] == []


def test_a_driver_that_fails_or_hangs_is_unknown_with_its_own_words(nvidia_smi: Path) -> None:
    install(nvidia_smi, 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9')
    assert "couldn't communicate" in whys(facts.run({}))["GPUs"]
    install(nvidia_smi, "sleep 600")
    found = facts.Facts(limit_s=0.3).collect()
    assert found["facts"]["gpus"] == []
    assert "no answer within 0.3 s" in whys(found)["GPUs"]


def test_a_machine_without_nvidia_smi_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = facts.run({})
    assert whys(found)["GPUs"].startswith("no NVIDIA driver seen")
    assert found["facts"]["gpus"] == []


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "hush")
    found = facts.run({})["facts"]
    assert found["hostname"]
    assert found["memory_bytes"] > 1 << 28
    assert found["cpu"]["count"] >= 1
    assert all(disk["free_bytes"] <= disk["total_bytes"] for disk in found["disk"])
    assert found["is_root"] == (os.geteuid() == 0)
    assert found["clock_utc"].endswith("Z")
    assert (found["env"]["NCCL_DEBUG"], found["env"]["HF_TOKEN"]) == ("INFO", "***")
