"""What a host says of itself, in lines; and what was in force on its servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diag.records.runs import TrialRow
from diag.report.fields import TELLING

PACKAGES = (
    *("sglang", "vllm", "torch", "triton", "transformers", "flashinfer-python", "sgl-kernel", "flash-attn", "xgrammar"),
    *("numpy", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"),
)
"""Of an environment's hundreds those that an issue is asked for."""

OWN = {"port", "nccl_port", "random_seed", "dist_init_addr", "last_gen_throughput", "started_at_unix"}
"""What every start has anew."""

MAX_CHANGED = 40


def of_host(host: str, document: Mapping[str, Any], python: str | None = None) -> dict[str, Any]:
    """document: as diag.probe has it from the host, or parts of it. python: the interpreter that it is about, if known.
    lines: [label, value] pairs."""
    lines = dict.fromkeys(_lines(document, python))
    return {"host": host, "lines": [[label, value] for label, value in lines]}


def _lines(document: Mapping[str, Any], python: str | None) -> Iterator[tuple[str, str]]:
    facts = document.get("facts") or {}
    yield "system", " · ".join(str(facts[name]) for name in ("os", "kernel", "machine") if facts.get(name))
    cpu = facts.get("cpu") or {}
    if cpu:
        yield "cpu", f"{cpu.get('count')} × {cpu.get('model') or 'unknown'}"
    if facts.get("memory_bytes"):
        yield "memory", f"{facts['memory_bytes'] / 2**30:.0f} GiB"
    gpus = facts.get("gpus") or []
    for name in dict.fromkeys(str(gpu.get("name")) for gpu in gpus):
        own = [gpu for gpu in gpus if str(gpu.get("name")) == name]
        yield "gpu", f"{len(own)} × {name}, {own[0].get('memory_total_mib')} MiB"
    if not gpus:
        yield "gpu", "none"
    for label, name in (
        ("driver", "driver"),
        ("cuda", "cuda"),
        ("toolkit", "cuda_toolkit"),
        ("container", "container"),
    ):
        if facts.get(name):
            yield label, str(facts[name])
    environments = _about(document.get("environments") or [], python)
    for environment in environments:
        yield from _environment(environment)
    where = {environment.get("site_packages") for environment in environments}
    sources = document.get("sources") or []
    for source in [one for one in sources if one.get("site_packages") in where] or sources:
        odd = [file for file in source["files"] if file.get("integrity") not in ("pristine", None)]
        for file in odd:
            yield "file", f"{file['path']}: {file['integrity']}"
        if not odd and source["files"]:
            yield "files", f"{source['package']}: the {len(source['files'])} looked at are as in the wheel's RECORD"
    if document.get("left_out"):
        yield "left out", f"too large to keep: {', '.join(document['left_out'])}"


def _about(environments: Sequence[Mapping[str, Any]], python: str | None) -> list[Mapping[str, Any]]:
    """The one of this interpreter; else those that hold an engine; else all."""
    own = [one for one in environments if python is not None and one.get("python") == python]
    engines = [one for one in environments if {"sglang", "vllm"} & set(one.get("packages") or {})]
    return own or engines or list(environments)


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    packages = environment.get("packages") or {}
    if packages:
        told = [f"{name} {packages[name]}" for name in PACKAGES if name in packages]
        yield "python", f"{environment.get('python_version')} ({environment.get('python')})"
        yield "packages", ", ".join(told) or f"{len(packages)} packages"


def in_force(shown: Sequence[TrialRow], bodies: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What a healthy and a failing server said of their configuration: the telling fields, and what differs between
    the two. None where that was not recorded."""
    infos = {row.number: _info(bodies, row.number, shown) for row in shown}
    good = next((row.number for row in shown if row.outcome == "pass" and infos[row.number]), None)
    bad = next((row.number for row in shown if row.outcome == "fail" and infos[row.number]), None)
    number = bad or good
    if number is None:
        return None
    told, healthy = infos[number], infos[good] if good is not None else {}
    both = {name for name in (*told, *healthy) if _last(name) not in OWN} if healthy and bad else set()
    names = sorted(name for name in both if told.get(name) != healthy.get(name))
    return {
        "trial": number,
        "telling": {name: value for name, value in told.items() if _last(name) in TELLING and value is not None},
        "differs": [[name, healthy.get(name), told.get(name)] for name in names[:MAX_CHANGED]],
    }


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _info(bodies: Mapping[int, Mapping[str, Any]], number: int, shown: Sequence[TrialRow]) -> dict[str, Any]:
    """The first trial of each host in a session has it whole, later ones only what differs from that."""
    host = next(row.host for row in shown if row.number == number)
    whole: dict[str, Any] = {}
    for row in shown:
        if row.host == host and row.number <= number:
            whole = dict(_details(bodies, row.number).get("server_info") or whole)
    changed = _details(bodies, number).get("server_info_changed") or {}
    return {**whole, **changed} if whole or changed else {}


def _details(bodies: Mapping[int, Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    return (bodies[number].get("details") or {}) if number in bodies else {}
