"""Facts about this machine. Everything that may hang (nvidia-smi, dmesg) runs in threads under a limit of its own."""

from __future__ import annotations

import csv
import os
import platform
import pwd
import re
import shutil
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _proc

Json = Dict[str, Any]

LIMIT_S = 10.0
GPU_FIELDS = {  # of --query-gpu: our name
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "pci_bus_id",
    "driver_version": "driver",
    "memory.total": "memory_total_mib",
    "memory.used": "memory_used_mib",
    "utilization.gpu": "utilization_percent",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "persistence_mode": "persistence_mode",
    "mig.mode.current": "mig_mode",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "compute_cap": "compute_capability",
    "ecc.mode.current": "ecc_mode",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "retired_pages.pending": "retired_pages_pending",
    "power.limit": "power_limit_w",
    "clocks.sm": "clock_sm_mhz",
    "clocks.max.sm": "clock_sm_max_mhz",
    "clocks_throttle_reasons.active": "throttle_reasons",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "pcie.link.gen.max": "pcie_gen_max",
}
# Older drivers do not know all of them: what one of some years ago knows, and what every driver does.
_FIELDS = (list(GPU_FIELDS), list(GPU_FIELDS)[:14], list(GPU_FIELDS)[:7])
_NUMBERS = ("index", "_mib", "_percent", "_c", "_w", "_mhz", "corrected", "pid", "_width", "_max", "correctable")
_REMAPPED = ("correctable", "uncorrectable", "pending", "failure")
_SLURM = re.compile(r"SLURM_(JOB_ID|JOB_NODELIST|JOB_PARTITION|STEP_ID|PROCID|NTASKS|NNODES|NODEID|GPUS_ON_NODE)$")


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """{} -> {"facts": {...}, "unknown": [{what, why}]}: os, kernel, machine, hostname, cpu {model, count},
    memory_bytes, memory_available_bytes, disk [{path, total_bytes, free_bytes}], gpus [{GPU_FIELDS}],
    gpu_processes [{pid, gpu_uuid, memory_used_mib}], remapped_rows [{gpu_uuid, correctable, uncorrectable, pending,
    failure}], gpu_topology, driver, cuda (what the driver supports), cuda_toolkit, xid [kernel log lines], clock_utc,
    clock_unix, uptime_s, user, is_root, container, slurm {variable: value}, env."""
    return Facts().collect()


class _Asked(threading.Thread):
    """(output, why not) of something slow, asked from now on. (concurrent.futures takes longer to import than this.)"""

    def __init__(self, ask: Callable[[], Tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self._ask, self._answer = ask, ("", "it could not be asked")
        self.start()

    def run(self) -> None:
        self._answer = self._ask()

    def result(self) -> Tuple[str, str]:
        self.join()
        return self._answer


class Facts:
    """Started when made, so that the slow commands run while something else is looked at."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.has_driver = shutil.which("nvidia-smi") is not None
        self.asked: Dict[str, _Asked] = {}
        if self.has_driver:
            self.asked["dmesg"] = self._ask(["dmesg"], 3)
            self.asked["gpus"] = _Asked(lambda: _query_gpus(limit_s))
            self.asked["apps"] = self._ask(
                ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits"],
                limit_s,
            )
            remapped = ",".join(["gpu_uuid", *("remapped_rows." + name for name in _REMAPPED)])
            self.asked["rows"] = self._ask(
                ["nvidia-smi", "--query-remapped-rows=" + remapped, "--format=csv,noheader,nounits"], limit_s
            )
            self.asked["head"] = self._ask(["nvidia-smi"], limit_s)
            self.asked["topology"] = self._ask(["nvidia-smi", "topo", "-m"], limit_s)

    def _ask(self, argv: List[str], limit_s: float) -> _Asked:
        return _Asked(lambda: _proc.command(argv, limit_s))

    def collect(self) -> Json:
        unknown: List[Json] = []
        facts = {**_system(), **_memory(unknown), **self._gpu(unknown)}
        return {"facts": facts, "unknown": unknown}

    def _answer(self, name: str, what: str, unknown: List[Json]) -> str:
        said, why = self.asked[name].result()
        if why:
            unknown.append({"what": what, "why": why})
        return said

    def _gpu(self, unknown: List[Json]) -> Json:
        facts: Json = {"gpus": [], "gpu_processes": [], "gpu_topology": None, "driver": None, "cuda": None}
        facts.update(cuda_toolkit=_toolkit(), xid=[], remapped_rows=[])
        if not self.has_driver:
            unknown.append({"what": "GPUs", "why": "no NVIDIA driver seen (nvidia-smi is not on PATH)"})
            return facts
        facts["gpus"] = parse_gpus(self._answer("gpus", "GPUs", unknown))
        names = ["pid", "gpu_uuid", "memory_used_mib"]
        facts["gpu_processes"] = parse_csv(self._answer("apps", "processes on the GPUs", unknown), names)
        facts["remapped_rows"] = self._remapped(unknown)
        cuda = re.search(r"CUDA Version:\s*([\d.]+)", self._answer("head", "CUDA version of the driver", unknown))
        facts["cuda"] = cuda.group(1) if cuda else None
        facts["gpu_topology"] = self._answer("topology", "GPU topology", unknown).strip() or None
        facts["driver"] = facts["gpus"][0].get("driver") if facts["gpus"] else None
        log = self._answer("dmesg", "GPU errors (Xid) in the kernel log", unknown)
        facts["xid"] = [line.strip() for line in log.splitlines() if "NVRM: Xid" in line][-20:]
        return facts

    def _remapped(self, unknown: List[Json]) -> List[Json]:
        said, why = self.asked["rows"].result()
        if why:
            # A GPU without row remapping (before Ampere, or not of a data centre) has none that could fail.
            if not re.search("not supported|not a valid|not valid", why.lower()):
                unknown.append({"what": "remapped rows of the GPUs", "why": why})
            return []
        return parse_csv(said, ["gpu_uuid", *_REMAPPED])


# --- nvidia-smi -------------------------------------------------------------------------------------------


def _query_gpus(limit_s: float) -> Tuple[str, str]:
    """CSV with a first line of our making that names the columns; older drivers do not know all of them."""
    said = why = ""
    for fields in _FIELDS:
        said, why = _proc.command(
            ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"], limit_s
        )
        if not why:
            return ",".join(fields) + "\n" + said, ""
        if "not a valid field" not in why:
            break
    return said, why


def parse_gpus(table: str) -> List[Json]:
    """`_query_gpus`' table -> one dict a GPU, with our names."""
    head, _, rows = table.partition("\n")
    return parse_csv(rows, [GPU_FIELDS.get(field, field) for field in head.split(",")])


def parse_csv(rows: str, names: Sequence[str]) -> List[Json]:
    """Rows of `--format=csv,noheader,nounits`; [N/A] and the like are None; rows of another width are left out."""
    found = []
    for line in rows.splitlines():
        try:
            cells = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            continue
        if len(cells) == len(names):
            found.append({name: _cell(name, cell.strip()) for name, cell in zip(names, cells)})
    return found


def _cell(name: str, cell: str) -> object:
    if not cell or cell.startswith("[") or cell in ("N/A", "ERR!", "Unknown Error"):
        return None
    if name.endswith(_NUMBERS):
        try:
            number = float(cell)
        except ValueError:
            return None
        return int(number) if number == number // 1 else number
    return cell


def _toolkit() -> Optional[str]:
    found = re.search(
        rb'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([\d.]+)', _proc.read("/usr/local/cuda/version.json") or b""
    )
    return found.group(1).decode() if found else None


# --- the machine ------------------------------------------------------------------------------------------


def _system() -> Json:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', _proc.text(_proc.read("/etc/os-release") or b""), re.M))
    now = time.time()
    uptime = (_proc.read("/proc/uptime") or b"").split()
    return {
        "os": release.get("PRETTY_NAME") or platform.platform(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hostname": socket.gethostname(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count()},
        "disk": _disks(),
        "clock_utc": _proc.utc(now),
        "clock_unix": now,
        "uptime_s": float(uptime[0]) if uptime else None,
        "user": _user(),
        "is_root": os.geteuid() == 0,
        "container": _container(),
        "slurm": {name: value for name, value in sorted(os.environ.items()) if _SLURM.match(name)},
        "env": _proc.telling(os.environ),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _cpu_model() -> Optional[str]:
    found = re.search(rb"^(?:model name|Model|cpu model)\s*:\s*(.+)$", _proc.read("/proc/cpuinfo") or b"", re.M)
    if found:
        return _proc.text(found.group(1))
    return _proc.command(["sysctl", "-n", "machdep.cpu.brand_string"], 2)[0].strip() or None


def _memory(unknown: List[Json]) -> Json:
    sizes = {
        name.decode(): int(kib) << 10
        for name, kib in re.findall(rb"(\w+):\s+(\d+) kB", _proc.read("/proc/meminfo") or b"")
    }
    total = sizes.get("MemTotal")
    if total is None:
        said, why = _proc.command(["sysctl", "-n", "hw.memsize"], 2)
        total = int(said) if said.strip().isdecimal() else None
        if total is None:
            unknown.append({"what": "memory", "why": why or "neither /proc/meminfo nor sysctl tells"})
    return {"memory_bytes": total, "memory_available_bytes": sizes.get("MemAvailable")}


def _disks() -> List[Json]:
    found: Dict[int, Json] = {}
    for path in ("/", os.path.expanduser("~"), "/tmp", "/dev/shm"):
        try:
            usage, device = shutil.disk_usage(path), os.stat(path).st_dev
        except OSError:
            continue
        found.setdefault(device, {"path": path, "total_bytes": usage.total, "free_bytes": usage.free})
    return list(found.values())


def _container() -> Optional[str]:
    """What we run in, as far as it shows: docker, podman, kubernetes, lxc; null on a plain host."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path):
            return name
    found = re.search(rb"docker|kubepods|containerd|lxc|libpod", _proc.read("/proc/1/cgroup") or b"")
    return found.group().decode() if found else None
