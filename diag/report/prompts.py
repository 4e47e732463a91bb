"""What `diag probe prompts` found: as a page and as a document, which is also what --reference reads again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from diag.report.text import one_line
from diag.report.texts import STYLES
from diag.serving.probing import Probe

SHOWN = 100
TELLING = (
    *("version", "attention_backend", "dtype", "kv_cache_dtype", "disable_cuda_graph", "disable_radix_cache"),
    *("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk", "tp_size"),
    *("enforce_eager", "speculative_config", "enable_prefix_caching", "async_scheduling", "tensor_parallel_size"),
)
"""What of the effective configuration stands on the page and in the document."""


def document(found: Probe) -> dict[str, Any]:
    return {
        "schema": 1,
        "endpoint": found.endpoint,
        "kind": found.kind,
        "model": found.model,
        "suite": found.suite,
        "reference": found.reference,
        "verdict": verdict(found),
        "summary": found.summary.to_json(),
        "margin": found.margin.to_json(),
        "effective": _effective(found.effective),
        "leads": [lead.to_json() for lead in found.leads],
        "telemetry": [asdict(sign) for sign in found.signs],
        "answers": [answer.to_json() for answer in found.answers],
    }


def verdict(found: Probe) -> str:
    """healthy, garbled, suspect or unknown, of the whole endpoint."""
    if found.summary.rate.garbled:
        return "garbled"
    if not found.summary.rate.tried:
        return "unknown"
    leading = any(lead.state == "found" and lead.id in ("chat-template", "detokeniser") for lead in found.leads)
    counted = any(sign.severity == "suspect" for sign in found.signs)
    return "suspect" if found.summary.suspect or leading or counted else "healthy"


def exit_code(found: Probe) -> int:
    return {"garbled": 1, "healthy": 0}.get(verdict(found), 3)


def page(found: Probe) -> Iterator[tuple[str, str]]:
    """(style, line)."""
    against = f", against {found.reference}" if found.reference is not None else ""
    yield "bold", f"{found.endpoint} ({found.kind}, {found.model or 'model not told'}): suite {found.suite}{against}"
    for answer in found.answers:
        if answer.verdict == "healthy":
            continue
        yield STYLES[answer.verdict], f"  {answer.verdict:8} {answer.prompt} ({answer.how})"
        for each in answer.evidence[:3]:
            yield "", f"           {each.rule}: {one_line(each.why, 240)}"
        yield "dim", f"           {one_line(answer.text, SHOWN) or '(empty)'}"
    yield "", ""
    for lead in found.leads:
        yield "yellow" if lead.state == "found" else "", f"  {lead.id}: {lead.state}. {lead.what}"
    for sign in found.signs:
        yield "yellow" if sign.severity == "suspect" else "", f"  {sign.id}: {sign.what}"
    if found.reference is not None:
        yield "", f"  margin: {found.margin.nats:.3g} nats, {found.margin.why}"
    yield "", ""
    yield from _total(found)


def _total(found: Probe) -> Iterator[tuple[str, str]]:
    total, rate = found.summary, found.summary.rate
    said = verdict(found)
    if not rate.tried:
        yield STYLES[said], f"{said}: no answer could be judged"
        return
    line = f"{said}: {rate.garbled} of {rate.tried} answers garbled"
    if rate.garbled:
        yield STYLES[said], f"{line} (95 %: {rate.low:.1%} to {rate.high:.1%})"
        yield (
            "",
            f"{total.to_exclude} clean requests would exclude this rate at 95 %, spread over starts of the server.",
        )
    else:
        yield STYLES[said], line
        yield "", f"Excluded at 95 %: a fault that garbles more than {total.excluded:.1%} of requests like these."
    if total.suspect or total.unknown:
        yield "", f"{total.suspect} suspect, {total.unknown} could not be judged."


def _effective(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in TELLING if name in info}
