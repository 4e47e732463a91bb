"""What a machine says of itself against what it should say: its GPU's model (gpu_models.toml), and the inventory.

Pure, but for reading that file once. Each difference is a finding with what to do about it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from diag.hosts.inventory import Expected
from diag.verdict.findings import Finding

GIB = 2**30
HOT_C = 85
SKEW_S = 5.0
# Bits of nvidia-smi's clocks_throttle_reasons (NVML: nvmlClocksThrottleReason*). The rest is idleness and choice.
_SLOWED = {0x08: "hardware slowdown", 0x20: "temperature", 0x40: "temperature (hardware)", 0x80: "power brake"}
# Xid numbers that mean hardware or driver (NVIDIA's "Xid Errors"), and what to do; others are mostly the program's.
_HARDWARE_XID: dict[int, str] = {
    48: "a double-bit memory error: reset the GPU, and run dcgmi diag",
    63: "memory rows were remapped: reset the GPU when it is idle",
    64: "memory rows could not be remapped: have the GPU replaced",
    74: "an NVLink error: reset the GPU, and look at links and cables",
    79: "the GPU has fallen off the bus: restart the machine; if it comes back, have it replaced",
    92: "many single-bit memory errors: run dcgmi diag",
    94: "a contained memory error: restart the program, and reset the GPU when it is idle",
    95: "an uncontained memory error: reset the GPU before anything else runs on it",
    119: "the GPU's own processor (GSP) does not answer: reset the GPU",
    120: "the GPU's own processor (GSP) failed: reset the GPU",
}


class Model(BaseModel):
    """One line of gpu_models.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str = Field(min_length=2)
    memory_mib: int = Field(gt=0)
    power_limit_w: int = Field(gt=0)
    pcie_width: int = Field(gt=0)
    ecc: bool = False
    nvlinks: int | None = None


@lru_cache(maxsize=1)
def models() -> tuple[Model, ...]:
    document = tomllib.loads(Path(__file__).with_name("gpu_models.toml").read_text(encoding="utf-8"))
    return tuple(Model(**entry) for entry in document["model"])


def model_of(name: str) -> Model | None:
    return next((model for model in models() if re.search(rf"\b{re.escape(model.match)}\b", name)), None)


def findings(document: Mapping[str, Any], expected: Expected | None = None) -> list[Finding]:
    """document: of probes/host.py."""
    facts = document["facts"]
    found = [*_clock(facts), *_xid(facts), *_orphans(facts), *_links(facts), *_open_servers(document)]
    for gpu in facts.get("gpus", []):
        found += _gpu(gpu)
    for rows in facts.get("remapped_rows", []):
        found += _rows(rows)
    return found + (list(_inventory(document, expected)) if expected is not None else [])


def _gpu(gpu: Mapping[str, Any]) -> Iterator[Finding]:
    name = f"GPU {gpu.get('index')} ({gpu.get('name')})"
    if (gpu.get("ecc_uncorrected") or 0) > 0:
        yield Finding(
            "gpu-memory-errors",
            "fault",
            f"{name} has had {gpu['ecc_uncorrected']} uncorrected memory errors since its driver was loaded.",
            "Stop what runs on it and reset it: nvidia-smi --gpu-reset; if they come back, have it replaced.",
        )
    if str(gpu.get("retired_pages_pending")) == "Yes":
        yield Finding("gpu-needs-reset", "fault", f"{name} has memory pages to retire.", "Reset it when it is idle.")
    reasons = _bits(gpu.get("throttle_reasons"))
    slowed = sorted({text for bit, text in _SLOWED.items() if reasons & bit})
    if slowed:
        yield Finding(
            "gpu-throttled",
            "fault",
            f"{name} is held back now by {', '.join(slowed)}: {gpu.get('clock_sm_mhz')} of "
            f"{gpu.get('clock_sm_max_mhz')} MHz at {gpu.get('temperature_c')} °C.",
            "Look at cooling, power supply and cables; timings taken now mean nothing.",
        )
    elif (gpu.get("temperature_c") or 0) >= HOT_C:
        what = f"{name} has {gpu['temperature_c']} °C; from about there it slows itself down."
        yield Finding("gpu-hot", "notice", what, "Look at cooling and at what runs on it.")
    yield from _against_model(gpu, name)


def _bits(text: object) -> int:
    try:
        return int(str(text), 16)
    except ValueError:
        return 0


def _against_model(gpu: Mapping[str, Any], name: str) -> Iterator[Finding]:
    model = model_of(str(gpu.get("name") or ""))
    if model is None:
        return
    parts = []
    memory, limit, width = gpu.get("memory_total_mib"), gpu.get("power_limit_w"), gpu.get("pcie_width")
    if memory is not None and memory < model.memory_mib and gpu.get("mig_mode") != "Enabled":
        parts.append(f"{memory} MiB of memory instead of {model.memory_mib} or more")
    if limit is not None and limit < model.power_limit_w:
        parts.append(f"a power limit of {limit:g} W instead of {model.power_limit_w}")
    if width is not None and width < model.pcie_width:
        parts.append(f"{width} PCIe lanes instead of {model.pcie_width}")
    if model.ecc and gpu.get("ecc_mode") == "Disabled":
        parts.append("ECC switched off")
    if parts:
        yield Finding(
            "gpu-not-as-its-model",
            "notice",
            f"{name} has {', '.join(parts)}.",
            "If nobody chose that: look at nvidia-smi -q, the slot, and the power settings (nvidia-smi -pl).",
        )


def _rows(rows: Mapping[str, Any]) -> Iterator[Finding]:
    if rows.get("failure") == "Yes":
        what = f"GPU {rows.get('gpu_uuid')} could not remap a faulty row of its memory."
        yield Finding("gpu-needs-replacement", "fault", what, "Take it out of service and have it replaced.")
    elif rows.get("pending") == "Yes":
        what = f"GPU {rows.get('gpu_uuid')} has a faulty row of memory that is remapped at its next reset."
        yield Finding("gpu-needs-reset", "fault", what, "Reset it when it is idle: nvidia-smi --gpu-reset")


def _clock(facts: Mapping[str, Any]) -> Iterator[Finding]:
    skew = facts.get("clock_skew_s") or 0.0
    if abs(skew) > SKEW_S:
        what = f"The host's clock is {abs(skew):g} s {'ahead of' if skew > 0 else 'behind'} this machine's."
        yield Finding("clock-skew", "notice", what, "Mind it when you compare logs; look at chronyc tracking, on both.")


def _xid(facts: Mapping[str, Any]) -> Iterator[Finding]:
    seen: dict[int, str] = {}
    for line in facts.get("xid", []):
        told = re.search(r"NVRM: Xid \([^)]*\): (\d+)", line)
        if told is not None:
            seen[int(told[1])] = line
    for number, line in seen.items():
        meaning = _HARDWARE_XID.get(number)
        if meaning is not None:
            yield Finding("gpu-xid", "fault", f"The kernel's log has Xid {number}: {line}", f"It is {meaning}.")
        else:
            yield Finding(
                "gpu-xid", "notice", f"The kernel's log has Xid {number}: {line}", "Mostly a program's fault."
            )


def _orphans(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for row in facts.get("gpu_processes", []):
        argv = [str(word) for word in row.get("argv") or []]
        if argv and row.get("server_pid") is None and re.match(r"(sglang|sgl|VLLM)::", argv[0]):
            yield Finding(
                "gpu-memory-held",
                "notice",
                f"Process {row['pid']} ({' '.join(argv)[:80]}) holds {row.get('memory_used_mib')} MiB of GPU memory, "
                "and the server that it worked for is gone.",
                f"If nobody needs it: diag server stop NAME {row['pid']} --adopt",
            )


def _links(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """NVLink between GPUs of the same board: the matrix of `nvidia-smi topo -m`."""
    gpus = facts.get("gpus", [])
    model = model_of(str(gpus[0].get("name") or "")) if len(gpus) > 1 else None
    if model is None or model.nvlinks is None:
        return
    pairs = topology(facts.get("gpu_topology") or "")
    wrong = {pair: link for pair, link in pairs.items() if link != f"NV{model.nvlinks}"}
    if wrong:
        (one, other), link = next(iter(wrong.items()))
        yield Finding(
            "gpu-links",
            "notice",
            f"{len(wrong)} of {len(pairs)} pairs of GPUs are not joined by {model.nvlinks} NVLinks "
            f"(GPU {one} to GPU {other}: {link}).",
            "Look at nvidia-smi nvlink -s and at the fabric manager; a slower path makes tensor parallelism slow.",
        )


def topology(matrix: str) -> dict[tuple[int, int], str]:
    """{(GPU, GPU): link} of each pair, from the matrix; empty where it cannot be read."""
    found = {}
    for line in re.sub(r"\x1b\[[\d;]*m", "", matrix).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        row = re.fullmatch(r"GPU(\d+)", cells[0])
        if row is None or len(cells) < 2 or cells[1].startswith("GPU"):
            continue
        for column, link in enumerate(cells[1:]):
            if column > int(row[1]) and re.fullmatch(r"NV\d+|SYS|NODE|PHB|PXB|PIX", link):
                found[int(row[1]), column] = link
    return found


def _open_servers(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Anybody who reaches the machine can use, and on most engines reconfigure, a server without a key."""
    for server in document.get("servers", []):
        argv = [str(word) for word in server.get("argv", [])]
        wide = [at for at in server.get("listening", []) if not re.match(r"127\.|::1:|\[::1\]", at)]
        if wide and not any(word.startswith(("--api-key", "--admin-api-key")) for word in argv):
            yield Finding(
                "server-open",
                "notice",
                f"The server on port {server.get('port')} (pid {server.get('pid')}) has no key, and is on {wide[0]}.",
                "If a firewall does not keep others out: --host 127.0.0.1, or --api-key.",
            )


def _inventory(document: Mapping[str, Any], expected: Expected) -> Iterator[Finding]:
    for what, wanted, found in _differences(document, expected):
        yield Finding(
            "not-as-expected",
            "fault",
            f"{what}: {found}; the inventory expects {wanted}.",
            "Mend the machine; or correct `expected` of this host in the inventory.",
        )


def _differences(document: Mapping[str, Any], expected: Expected) -> Iterator[tuple[str, object, object]]:
    facts = document["facts"]
    gpus = facts.get("gpus", [])
    if expected.gpu_count is not None and len(gpus) != expected.gpu_count:
        yield "number of GPUs", expected.gpu_count, len(gpus)
    if expected.gpu_name is not None:
        others = sorted({str(gpu.get("name")) for gpu in gpus if expected.gpu_name not in str(gpu.get("name"))})
        if others or not gpus:
            yield "GPUs", expected.gpu_name, ", ".join(others) or "none"
    driver = facts.get("driver")
    if expected.driver is not None and not str(driver or "").startswith(expected.driver):
        yield "driver", expected.driver, driver or "none"
    memory = facts.get("memory_bytes")
    if expected.memory_gib is not None and (memory is None or memory < expected.memory_gib * GIB):
        yield "memory", f"{expected.memory_gib:g} GiB", "not known" if memory is None else f"{memory / GIB:.1f} GiB"
    for disk in facts.get("disk", []):
        free = disk["free_bytes"]
        if expected.disk_free_gib is not None and free < expected.disk_free_gib * GIB:
            yield f"free space on {disk['path']}", f"{expected.disk_free_gib:g} GiB", f"{free / GIB:.1f} GiB"
    installed = _packages(document)
    for name, version in expected.packages.items():
        if installed.get(name) != version:
            yield f"package {name}", version, installed.get(name) or "not installed"


def _packages(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Of the engine's environment: the first that has one, else the first."""
    environments = document.get("environments", [])
    holding = [env for env in environments if {"sglang", "vllm"} & set(env["packages"])]
    return next((env["packages"] for env in [*holding, *environments]), {})
