"""The injection into vLLM's prefix cache, on a small module that hands out blocks as the releases do."""

from __future__ import annotations

import pytest

from diag.errors import FileNotAsExpected
from diag.fixes.inject_null_block import MARK, put_in, state

NOW = "self.create_kv_cache_blocks(computed_blocks)"
BEFORE_0_11 = "KVCacheBlocks(computed_blocks)"


def module(handed_out: str, ending: str = "\n") -> str:
    lines = (
        "KVCacheBlocks = tuple",
        "class KVCacheManager:",
        "    class block_pool:",
        "        null_block = 'null'",
        "    def create_kv_cache_blocks(self, blocks):",
        "        return tuple(blocks)",
        "    def get_computed_blocks(self, request):",
        "        computed_blocks, num_new_computed_tokens = request",
        f"        return {handed_out}, num_new_computed_tokens",
        "",
    )
    return ending.join(lines)


def hit(text: str) -> object:
    """What a hit of two blocks hands out."""
    names: dict[str, object] = {}
    exec(text, names)  # a module of this file
    return names["KVCacheManager"]().get_computed_blocks(([["first", "second"]], 32))  # type: ignore[operator]


@pytest.mark.parametrize("handed_out", [NOW, BEFORE_0_11])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_hit_begins_with_the_null_block_and_nothing_else_changes(handed_out: str, ending: str) -> None:
    text = module(handed_out, ending)
    assert state(text).state == "present"
    assert hit(text) == ((["first", "second"],), 32)
    changed = put_in(text)
    assert hit(changed) == ((["null", "second"],), 32)
    assert state(changed).state == "fixed"
    kept = [line for line in changed.split(ending) if MARK not in line]
    assert ending.join(kept) == text


@pytest.mark.parametrize("text", ["", "return 1\n", module("blocks"), module(NOW) + module(NOW)])
def test_another_text_is_refused(text: str) -> None:
    assert state(text).state == "not_applicable"
    with pytest.raises(FileNotAsExpected):
        put_in(text)


def test_twice_is_refused() -> None:
    with pytest.raises(FileNotAsExpected):
        put_in(put_in(module(NOW)))
