"""Real releases of SGLang: one of each shape of the fault, and what is known of each (docs/fixes.md)."""

from __future__ import annotations

from functools import cache

from diag.source import wheels

PATH = "sglang/srt/layers/attention/triton_backend.py"

# Lines of (qo_indptr, seq_mask_len, max_extend_len), as an editor shows them in the released file.
LINES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "0.4.3": ((124, 125, 266, 267, 341, 342), (146, 147, 285, 360), (152, 288)),
    "0.4.8": ((232, 233, 449, 450, 585, 586), (254, 255, 469, 604), (260, 472)),
    "0.5.9": ((307, 308, 569, 570, 722, 723), (347, 348, 606, 757), (353, 609)),
    "0.5.12": ((364, 365, 642, 643, 802, 803), (404, 405, 685, 843), (410, 688)),
    "0.5.13": ((377, 378, 644, 645), (413, 683, 684), (689, 930)),
    "0.5.16": ((455, 456, 786, 787), (491, 824, 825), (830, 1074)),
    "0.5.17": ((479, 480, 820, 821), (517, 858, 859), (864, 1112, 1117)),
    "0.5.21": ((579, 580, 931, 932), (614, 969, 970), (975, 1242)),
    "0.5.23": ((605, 606, 1012, 1013), (641, 1052, 1053), (1058, 1329)),
}
DEFINED = {
    "0.4.3": 63,
    "0.4.8": 101,
    "0.5.9": 87,
    "0.5.12": 110,
    "0.5.13": 129,
    "0.5.16": 162,
    "0.5.17": 171,
    "0.5.21": 216,
    "0.5.23": 227,
}
PRESENT = ("0.4.3", "0.4.8", "0.5.9", "0.5.12", "0.5.13", "0.5.16")
FIXED = ("0.5.17", "0.5.21", "0.5.23")
BEFORE = "0.4.1.post7"


@cache
def source(version: str) -> str:
    """triton_backend.py of one release, as released."""
    return wheels.read(wheels.fetch("sglang", version), PATH).decode("utf-8")
