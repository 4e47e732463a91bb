"""Is this the same on every rank? Documents of several hosts, compared: versions, files, flags, environment.

Pure. A difference between ranks makes wrong text that no single host shows: one patched and the other not, say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What may differ between ranks of one server, or is nobody's choice.
_OWN_FLAGS = {"--node-rank", "--host", "--port", "--dist-init-addr", "--nccl-port", "--base-gpu-id", "--log-file"}
_OWN_VARIABLES = {
    *("CUDA_VISIBLE_DEVICES", "DIAG_RUN_ID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMPI_COMM_WORLD_RANK"),
    *("SLURM_PROCID", "SLURM_NODEID"),
}
ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """values: what each host has; ABSENT where it has none. matters: ranks of one server must not differ in it."""

    what: str
    values: Mapping[str, str]

    @property
    def matters(self) -> bool:
        return self.what.startswith(("package ", "file ", "server ", "python")) or " files " in self.what

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "matters": self.matters, "values": dict(self.values)}


def differences(documents: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """documents: host name to what probes/host.py answered. Empty: all alike in all that is compared."""
    told = {host: dict(_told(document)) for host, document in documents.items()}
    found = []
    for what in dict.fromkeys(name for one in told.values() for name in one):
        values = {host: one.get(what, ABSENT) for host, one in told.items()}
        if len(set(values.values())) > 1:
            found.append(Difference(what, values))
    return found


def _told(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    facts = document["facts"]
    for name in ("os", "kernel", "machine", "driver", "cuda", "cuda_toolkit", "container"):
        yield name, _text(facts.get(name))
    gpus = facts.get("gpus", [])
    yield "gpus", ", ".join(f"{len(names)} x {name}" for name, names in _counted(gpus)) or "none"
    for name in ("power_limit_w", "mig_mode", "ecc_mode", "pcie_width", "persistence_mode"):
        values = sorted({_text(gpu.get(name)) for gpu in gpus})
        if values:
            yield f"gpu {name}", ", ".join(values)
    for name, value in (facts.get("env") or {}).items():
        if name not in _OWN_VARIABLES:
            yield f"environment {name}", _text(value)
    yield from _packages(document)
    yield from _files(document)
    yield from _servers(document)


def _counted(gpus: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    names = [str(gpu.get("name")) for gpu in gpus]
    for name in dict.fromkeys(names):
        yield name, [other for other in names if other == name]


def _packages(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of the environments that hold an engine, or of the first one."""
    environments = document.get("environments", [])
    holding = [env for env in environments if {"sglang", "vllm"} & set(env["packages"])] or environments[:1]
    for number, env in enumerate(holding):
        label = "" if number == 0 else f" ({number + 1})"
        yield f"python{label}", _text(env.get("python_version"))
        for name, version in env["packages"].items():
            yield f"package {name}{label}", version


def _files(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for source in document.get("sources", []):
        for file in source["files"]:
            yield f"file {file['path']}", _text(file.get("sha256"))[:16]
        checked = source.get("record_checked") or {}
        for kind in ("edited", "missing", "unlisted"):
            if kind in checked:
                yield f"{source['package']} files {kind}", ", ".join(sorted(checked[kind])) or "none"


def _servers(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The n-th server of each host by start time, flag by flag."""
    servers = [server for server in document.get("servers", []) if not server.get("orphan")]
    yield "servers", str(len(servers))
    for number, server in enumerate(sorted(servers, key=lambda one: one.get("started_at_unix") or 0)):
        label = f"server {number + 1}"
        yield f"{label} engine", _text(server.get("engine"))
        for flag, value in flags([str(word) for word in server["argv"]]).items():
            if flag not in _OWN_FLAGS:
                yield f"{label} {flag}", value
        for name, value in (server.get("env") or {}).items():
            if name not in _OWN_VARIABLES:
                yield f"{label} environment {name}", _text(value)


def flags(argv: list[str]) -> dict[str, str]:
    """--name to its value; "set" for one without. Of a flag that is given twice the last counts, as in argparse."""
    found: dict[str, str] = {}
    at = 0
    while at < len(argv):
        name, equals, value = argv[at].partition("=")
        at += 1
        if not name.startswith("--"):
            continue
        words = [value] if equals else []
        while not equals and at < len(argv) and not argv[at].startswith("--"):
            words.append(argv[at])
            at += 1
        found[name] = " ".join(words) or "set"
    return found


def _text(value: object) -> str:
    return ABSENT if value is None else str(value)
