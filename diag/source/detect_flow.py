"""Verdicts over what the mask is read and written with (`diag.source.mask_flow`). Pure functions of a file's text.

Each says present, fixed, not_applicable or unknown, with the lines, and never raises.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from diag.source.detect import BOM, Detection, Site
from diag.source.mask_flow import MASK, OFFSETS, Flow, Sink, follow
from diag.source.syntax import Unreadable, split_lines, walk
from diag.source.verify_width import Role


def _judged(text: str, name: str, judge: Callable[[Flow, Sequence[str]], Detection]) -> Detection:
    try:
        found = follow(text.removeprefix(BOM), name)
    except Unreadable as error:
        return Detection("unknown", (), f"{error}.")
    if not found.over.mentions_verify:
        return Detection("not_applicable", (), f"{name} has no target-verify branch in this release.")
    return judge(found, split_lines(text))


# --- reads of the mask (flashattention, xpu) ----------------------------------------------------------------------


def detect_reads(text: str, name: str) -> Detection:
    """Is the tree read out of the flat mask with the server setting as its row length?"""
    return _judged(text, name, _judge_reads)


def _judge_reads(found: Flow, lines: Sequence[str]) -> Detection:
    name = found.over.name
    if not found.reads:
        if MASK not in _attributes(found):
            return Detection("not_applicable", (), f"{name} reads no tree mask in this release.")
        return Detection("unknown", (), f"{name} mentions {MASK}, but no read of it at a computed index was seen.")
    sites = _sites(found, found.reads, lines, "custom_mask")
    strange = [read for read in found.reads if not read.leaves]
    if strange:
        return Detection(
            "unknown", sites, f"{_places(strange)}: it was not recognised which width the tree mask is read with."
        )
    return _verdict(
        found.reads,
        sites,
        present="the tree mask is read with the server setting as its width",
        fixed="Every read of the tree mask uses the verify step's own width.",
    )


# --- stores into the offsets (aiter, CUDA graphs) -----------------------------------------------------------------


def detect_graph_stores(text: str, name: str) -> Detection:
    """Are the mask offsets of the CUDA-graph path computed from the server setting? The eager path has its own."""
    return _judged(text, name, _judge_stores)


def _judge_stores(found: Flow, lines: Sequence[str]) -> Detection:
    name = found.over.name
    if not found.stores:
        if OFFSETS not in _attributes(found):
            return Detection("not_applicable", (), f"{name} has no offsets of a tree mask in this release.")
        return Detection("unknown", (), f"{name} mentions {OFFSETS}, but no computation of it was recognised.")
    sites = _sites(found, found.stores, lines, "seq_mask_len")
    strange = [store for store in found.stores if not store.leaves]
    if strange:
        return Detection("unknown", sites, f"{_places(strange)}: it was not recognised where the width comes from.")
    graph = [store for store in found.stores if "graph" in store.method]
    if not graph:
        return Detection("unknown", sites, f"{name} has mask offsets, but none in a method for CUDA graphs.")
    return _verdict(
        [*graph, *(store for store in found.stores if store not in graph and store.from_setting)],
        sites,
        present="the mask offsets are computed with the server setting as the width",
        fixed="The mask offsets of the CUDA-graph path use the verify step's own width.",
    )


# --- the buffer that holds the mask under CUDA graphs -------------------------------------------------------------

# Sizes that grow with the batch and the context alone, and those that count the rows of a captured graph.
_WITHOUT_WIDTH = {"max_bs", "bs", "batch_size", "max_batch_size", "max_context_len", "context_len"}
_ROWS = {"max_num_tokens", "max_num_token", "num_tokens"}


def detect_buffer(text: str, name: str) -> Detection:
    """Is the buffer for the mask under CUDA graphs made for the server setting's width, or for none?"""
    return _judged(text, name, _judge_buffer)


def _judge_buffer(found: Flow, lines: Sequence[str]) -> Detection:
    name = found.over.name
    if not found.buffers:
        if not any("mask" in attribute and "graph" in attribute for attribute in _attributes(found)):
            return Detection("not_applicable", (), f"{name} keeps no buffer for a tree mask in this release.")
        return Detection("unknown", (), f"{name} has a mask for CUDA graphs, but where it is made was not recognised.")
    sites = _sites(found, found.buffers, lines, "mask_buffer")
    reasons = [(sink, _size(sink)) for sink in found.buffers]
    strange = [sink for sink, (state, _) in reasons if state == "unknown"]
    if strange:
        names = ", ".join(sorted(set.union(*(sink.names for sink in strange))))
        return Detection("unknown", sites, f"{_places(strange)}: the size is of {names}, which tells no width.")
    wrong = [(sink, why) for sink, (state, why) in reasons if state == "present"]
    if not wrong:
        return Detection("fixed", sites, "The mask buffer is made for the verify step's own width.")
    why = "; ".join(f"{_places([sink])}: {why}" for sink, why in wrong)
    if len(wrong) < len(reasons):
        return Detection("unknown", sites, f"Partly fixed: {why}.")
    return Detection("present", sites, f"{why}.")


def _size(sink: Sink) -> tuple[str, str]:
    if sink.from_setting:
        return "present", "the mask buffer is made for the server setting's width"
    if sink.leaves:
        return "fixed", ""
    if sink.names & _ROWS and sink.names <= _ROWS | _WITHOUT_WIDTH:
        return "present", "the mask buffer is made for the rows of the captured graph, not of the widest verify step"
    if sink.names and sink.names <= _WITHOUT_WIDTH:
        return "present", "the mask buffer is made without any width"
    return "unknown", ""


# --- shared -------------------------------------------------------------------------------------------------------


def _attributes(found: Flow) -> set[str]:
    """Names of all attributes that the class uses, of whatever object."""
    nodes = (node for method in found.over.methods.values() for node in walk(method))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _verdict(sinks: Sequence[Sink], sites: tuple[Site, ...], *, present: str, fixed: str) -> Detection:
    wrong = [sink for sink in sinks if sink.from_setting]
    if not wrong:
        return Detection("fixed", sites, fixed)
    if len(wrong) == len(sinks):
        return Detection("present", sites, f"{_places(wrong)}: {present}.")
    right = [sink for sink in sinks if not sink.from_setting]
    return Detection(
        "unknown", sites, f"Partly fixed: {_places(right)} uses the verify step's own width, {_places(wrong)} does not."
    )


def _places(sinks: Sequence[Sink]) -> str:
    return ", ".join(f"{sink.method} (line {sink.node.lineno})" for sink in sinks)


def _sites(found: Flow, sinks: Sequence[Sink], lines: Sequence[str], role: Role) -> tuple[Site, ...]:
    """Where the setting is read, then each place with the widths that go into it, one site a line."""
    name = found.over.name
    sites: dict[int, Site] = {}
    for method, node in found.over.definitions:
        sites.setdefault(
            node.lineno, Site(f"{name}.{method}", node.lineno, lines[node.lineno - 1], "definition", "server")
        )
    marked = []
    for sink in sinks:
        places = [(sink.method, sink.node.lineno, sink.from_setting or not sink.leaves)]
        places += [(leaf.method, leaf.node.lineno, leaf.sources == {"server"}) for leaf in sink.leaves]
        for method, line, wrong in places:
            marked.append(Site(f"{name}.{method}", line, lines[line - 1], role, "server" if wrong else "verify"))
    for site in sorted(marked, key=lambda site: (site.line, site.source)):
        sites.setdefault(site.line, site)
    return tuple(sites.values())
