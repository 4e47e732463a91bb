"""An injection: what a fork with a tree budget of its own does to the backend, made in one line, to be taken back."""

from __future__ import annotations

import re

from diag.fixes.entry import Fix
from diag.fixes.injection import inject
from diag.source.detect import BOM, Detection, Site, detect
from diag.source.syntax import split_lines
from diag.source.verify_width import CLASS

COUNT = 8
MARK = "# pinned by diag fix apply inject-pinned-count"
_LINE = re.compile(r"\s*self\.num_draft_tokens\s*=[^=]")


def state(text: str) -> Detection:
    """fixed: the count is pinned. present: it is the server's, and mask-indptr would follow it. Never raises."""
    body = text.removeprefix(BOM)
    pinned = [(n, line) for n, line in enumerate(split_lines(body), 1) if MARK in line]
    if pinned:
        sites = tuple(Site(f"{CLASS}.__init__", n, line.rstrip("\r\n"), "definition", "server") for n, line in pinned)
        return Detection("fixed", sites, f"the backend counts {COUNT} draft tokens whatever the server was told")
    found = detect(text)
    if found.state != "present":
        why = f"mask-indptr is {found.state.replace('_', ' ')} here, so a pinned count would show nothing"
        return Detection("unknown" if found.state == "unknown" else "not_applicable", (), why)
    definitions = tuple(site for site in found.sites if site.role == "definition")
    if len(definitions) != 1 or _LINE.match(definitions[0].text) is None:
        return Detection("unknown", definitions, "the line that reads the server's count is not there exactly once")
    return Detection("present", definitions, "the backend counts what the server was told, not a number of its own")


def pin(text: str) -> str:
    """The text with that line changed. Raises FileNotAsExpected where `state` is not present."""
    needs = "It needs a release in which mask-indptr is present: 0.4.3 to 0.5.16."
    return inject(text, state(text), needs, lambda line: [f"{line[: line.index('=') + 1]} {COUNT}  {MARK}"])


FIX = Fix(
    id="inject-pinned-count",
    title="Injection: the Triton backend counts 8 draft tokens, whatever the server was told",
    story=(
        "Not a fix: it makes the fault mask-indptr show on a stock server. A fork whose draft tree has a budget of its "
        "own leaves the backend with the block size while a verify step is wider; this pins the backend's count to 8 "
        "in the same way. With --speculative-num-draft-tokens 8 nothing changes; with 17 the output garbles."
    ),
    why="To try the tool, or a fix, on a real engine: with a cause that is known.",
    do=("Apply it to an installation that serves nobody.", "Take it back: diag fix revert HOST inject-pinned-count"),
    package="sglang",
    file="sglang/srt/layers/attention/triton_backend.py",
    cls=CLASS,
    affected="0.4.3 to 0.5.16",
    fixed_in="nothing: it is made, not found",
    backends=("triton",),
    severity="notice",
    detect=state,
    mend=pin,
    kind="injection",
)
