"""What a machine says against what it should say."""

from __future__ import annotations

from typing import Any

import pytest

from diag import probe
from diag.hosts import expectations
from diag.hosts.expectations import findings, model_of, models, topology
from diag.hosts.inventory import Expected

H200: dict[str, Any] = {  # as driver 580 tells it
    **{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_mib": 143771, "temperature_c": 31},
    **{"mig_mode": "Disabled", "ecc_uncorrected": 0, "ecc_mode": "Enabled", "ecc_corrected": 0, "pcie_width": 16},
    **{"retired_pages_pending": None, "power_limit_w": 700, "clock_sm_mhz": 375, "clock_sm_max_mhz": 1980},
    **{"throttle_reasons": "0x0000000000000001", "pcie_width_max": 16, "pcie_gen_max": 5},
}


def document(**facts: Any) -> dict[str, Any]:
    told = {
        "gpus": [H200],
        "gpu_processes": [],
        "remapped_rows": [],
        "xid": [],
        "gpu_topology": None,
        "driver": "580.1",
    }
    told |= {"memory_bytes": 64 << 30, "disk": [{"path": "/", "free_bytes": 50 << 30, "total_bytes": 1 << 40}]}
    environments = [{"packages": {"torch": "2.8"}}, {"packages": {"sglang": "0.5.12", "torch": "2.9"}}]
    return {"facts": told | facts, "servers": [], "environments": environments}


def ids(told: dict[str, Any], expected: Expected | None = None) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in findings(told, expected)]


def test_a_sound_machine_has_no_findings() -> None:
    assert ids(document()) == []
    assert ids(document(gpus=[])) == []
    assert ids({"facts": {}}) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"ecc_uncorrected": 2}, ("gpu-memory-errors", "fault")),
        ({"retired_pages_pending": "Yes"}, ("gpu-needs-reset", "fault")),
        ({"throttle_reasons": "0x0000000000000048"}, ("gpu-throttled", "fault")),
        ({"temperature_c": 88}, ("gpu-hot", "notice")),
        ({"memory_total_mib": 71000}, ("gpu-not-as-its-model", "notice")),
        ({"power_limit_w": 500}, ("gpu-not-as-its-model", "notice")),
        ({"pcie_width": 8}, ("gpu-not-as-its-model", "notice")),
        ({"ecc_mode": "Disabled"}, ("gpu-not-as-its-model", "notice")),
    ],
)
def test_a_gpu_that_is_not_well(change: dict[str, Any], finding: tuple[str, str]) -> None:
    assert ids(document(gpus=[H200 | change])) == [finding]


@pytest.mark.parametrize(
    "change",
    [
        {"throttle_reasons": "0x0000000000000004"},  # at its power cap: that is how they run
        {"throttle_reasons": None},
        {"mig_mode": "Enabled", "memory_total_mib": 20000},
        {"name": "Some Other GPU", "memory_total_mib": 1, "power_limit_w": 1, "pcie_width": 1},
        dict.fromkeys(H200, None),
    ],
)
def test_what_is_nobodys_fault(change: dict[str, Any]) -> None:
    assert ids(document(gpus=[H200 | change])) == []


def test_rows_xid_and_memory_that_is_held() -> None:
    rows = [{"gpu_uuid": "a", "pending": "Yes", "failure": "No"}, {"gpu_uuid": "b", "pending": "No", "failure": "Yes"}]
    assert ids(document(remapped_rows=rows)) == [("gpu-needs-reset", "fault"), ("gpu-needs-replacement", "fault")]
    line = "[ 1.0] NVRM: Xid (PCI:0000:0f:00): {}, pid=7, text"
    assert ids(document(xid=[line.format(79), line.format(79), line.format(31)])) == [
        ("gpu-xid", "fault"),
        ("gpu-xid", "notice"),
    ]
    held = {"pid": 7, "memory_used_mib": 900, "seen": True, "server_pid": None, "argv": ["sglang::scheduler_TP0"]}
    assert ids(document(gpu_processes=[held])) == [("gpu-memory-held", "notice")]
    others = [held | {"server_pid": 5}, held | {"argv": ["python", "train.py"]}, held | {"argv": None, "seen": False}]
    assert ids(document(gpu_processes=others)) == []


MATRIX = "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\tSYS\t0-15\nGPU1\tNV18\t X \tNV18\t0-15\n"


@pytest.mark.parametrize(("skew", "said"), [(60.0, "60 s ahead of"), (-7.5, "7.5 s behind")])
def test_a_clock_that_differs(skew: float, said: str) -> None:
    [finding] = findings(document(clock_skew_s=skew))
    assert (finding.id, finding.severity) == ("clock-skew", "notice")
    assert said in finding.what
    assert ids(document(clock_skew_s=2.0)) == ids(document(clock_skew_s=None)) == []


@pytest.mark.parametrize(
    ("told", "skew"), [(100.0, 0.0), (101.0, 0.0), (102.0, 0.0), (110.0, 8.0), (90.0, -10.0), (None, None)]
)
def test_the_time_of_the_answer_is_no_skew(told: float | None, skew: float | None) -> None:
    assert probe._skew({"clock_unix": told}, 100.0, 102.0) == skew


def test_links_between_gpus() -> None:
    assert topology(MATRIX) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "NV18"}
    assert topology("") == topology("nonsense\tGPU0\nGPU\tx") == {}
    told = findings(document(gpus=[H200, H200, H200], gpu_topology=MATRIX))
    assert [finding.id for finding in told] == ["gpu-links"]
    assert "1 of 3 pairs" in told[0].what
    assert ids(document(gpus=[H200, H200], gpu_topology=MATRIX.replace("SYS", "NV18"))) == []


@pytest.mark.parametrize(
    ("listening", "argv", "is_open"),
    [
        (["0.0.0.0:30000"], ["serve"], True),
        (["::1:30000", ":::30000"], ["serve"], True),
        (["10.0.0.5:1"], ["serve", "--api-key=***"], False),
        (["127.0.0.1:1", "::1:1"], ["serve"], False),
        ([], ["serve"], False),
    ],
)
def test_a_server_that_anybody_can_reach(listening: list[str], argv: list[str], is_open: bool) -> None:
    told = {**document(), "servers": [{"pid": 1, "port": 1, "argv": argv, "listening": listening}]}
    assert ids(told) == ([("server-open", "notice")] if is_open else [])


def test_the_inventorys_expectations() -> None:
    right = Expected(
        gpu_count=1,
        gpu_name="H200",
        driver="580.",
        memory_gib=64,
        disk_free_gib=50,
        packages={"sglang": "0.5.12", "torch": "2.9"},
    )
    assert ids(document(), right) == []
    wrong = Expected(
        gpu_count=8, gpu_name="B200", driver="575", memory_gib=65, disk_free_gib=51, packages={"torch": "2.8", "x": "1"}
    )
    said = [finding.what for finding in findings(document(), wrong)]
    assert len(said) == 7
    assert said[0] == "number of GPUs: 1; the inventory expects 8."
    assert "package x: not installed; the inventory expects 1." in said
    assert {finding.severity for finding in findings(document(), wrong)} == {"fault"}
    assert len(findings(document(gpus=[], driver=None, memory_bytes=None), wrong)) == 7


def test_each_line_of_the_file_of_models_is_found_by_its_own_name() -> None:
    assert len(models()) > 10
    for model in models():
        assert model_of(f"NVIDIA {model.match}") == model
    names = {"NVIDIA H200": "H200", "NVIDIA H20": "H20", "NVIDIA L4": "L4", "NVIDIA L40S": "L40S", "NVIDIA L40": None}
    names |= {"NVIDIA GB200": None, "NVIDIA H100 80GB HBM3": "H100 80GB HBM3", "NVIDIA H200 NVL": "H200 NVL"}
    assert {name: getattr(model_of(name), "match", None) for name in names} == names
    assert expectations.models() is models()
