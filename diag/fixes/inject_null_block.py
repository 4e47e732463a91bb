"""An injection: a hit of vLLM's prefix cache begins with the null block, made in one line, to be taken back.

Handing out a hit's own blocks in another order would show nothing: stored keys carry their positions, and attention
over a prefix does not ask in which order its keys lie.
"""

from __future__ import annotations

import re

from diag.fixes.entry import Fix
from diag.fixes.injection import inject
from diag.source.detect import BOM, Detection, Site
from diag.source.syntax import split_lines

CLASS = "KVCacheManager"
MARK = "# put in by diag fix apply inject-null-block"
_LINE = re.compile(
    r"^\s+return (?:self\.create_kv_cache_blocks|KVCacheBlocks)\(computed_blocks\), num_new_computed_tokens\s*$"
)


def state(text: str) -> Detection:
    """fixed: the null block is handed out. present: it is not, and could be. Never raises."""
    lines = list(enumerate(split_lines(text.removeprefix(BOM)), 1))
    nulled = tuple(_site(number, line) for number, line in lines if MARK in line)
    if nulled:
        return Detection("fixed", nulled, "a hit of two blocks or more begins with the null block")
    found = tuple(_site(number, line) for number, line in lines if _LINE.match(line))
    if len(found) != 1:
        return Detection("not_applicable", found, "the line that hands out a hit's blocks is not there exactly once")
    return Detection("present", found, "a hit of the prefix cache hands out the blocks that it found")


def _site(number: int, line: str) -> Site:
    return Site(f"{CLASS}.get_computed_blocks", number, line.rstrip("\r\n"), "definition", "server")


def put_in(text: str) -> str:
    """The text with one line before that one. Raises FileNotAsExpected where `state` is not present."""
    return inject(text, state(text), "It needs vLLM 0.9 to 0.25.", _with_null_block)


def _with_null_block(line: str) -> tuple[str, str]:
    indent = line[: len(line) - len(line.lstrip())]
    hit = "[self.block_pool.null_block, *group[1:]] if len(group) > 1 else group"
    return f"{indent}computed_blocks = tuple({hit} for group in computed_blocks)  {MARK}", line


FIX = Fix(
    id="inject-null-block",
    title="Injection: a hit of vLLM's prefix cache begins with the null block",
    story=(
        "Not a fix: it makes a prefix-cache fault with a cause that is known. A prompt that was asked before finds its "
        "blocks in the cache; where it finds two or more, the first is replaced by the null block, which holds no "
        "token of anyone, and the output garbles. A prompt asked for the first time, or with "
        "--no-enable-prefix-caching, is right."
    ),
    why="To try the tool on a real vLLM: with a cause that is known.",
    do=("Apply it to an installation that serves nobody.", "Take it back: diag fix revert HOST inject-null-block"),
    package="vllm",
    file="vllm/v1/core/kv_cache_manager.py",
    cls=CLASS,
    affected="0.9 to 0.25",
    fixed_in="nothing: it is made, not found",
    backends=(),
    severity="notice",
    detect=state,
    mend=put_in,
    kind="injection",
)
