"""Which garbled outputs can be seen to be garbled? Told by a reader that knows none of our rules.

The reader is the lab's model, undamaged, shown the text alone: not the prompt, not the token ids, not whether the
server was broken. At each token it says how far that token is below the one that it would have expected (nats, 10 at
most). A text's oddness is the highest mean of any twelve tokens in a row. It is visibly garbled where that is above
what 99.7 % of the same model's clean outputs for the tuning prompts have: this reader tells it from healthy text at the
0.3 % of false alarms that the look of a text is allowed. The rule was written down before it was applied to anything,
and is applied to all outputs, found or missed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import verdict_outputs

STRETCH, MOST_NATS = 12, 10.0
CLEAN_BELOW = 0.997
LONGEST = 512
"""Tokens of a text that are read."""

_BEFORE = "<|im_start|>assistant\n"


def oddness(model: Path, cache: Path, texts: Sequence[str]) -> list[float]:
    """Of each text, in nats; what was read once is kept in the cache."""
    kept = cache / "reader.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    known = {row["text"]: row["odd"] for row in rows}
    missing = [text for text in dict.fromkeys(texts) if _name(text) not in known]
    if missing:
        reader = verdict_outputs.loaded(model, "float32")
        with kept.open("a") as out:
            for text in missing:
                known[_name(text)] = _read(reader, text)
                out.write(json.dumps({"text": _name(text), "odd": round(known[_name(text)], 4)}) + "\n")
                out.flush()
    return [known[_name(text)] for text in texts]


def limit(model: Path, cache: Path, wanted: int = 900) -> float:
    """Nats above which a text is visibly garbled."""
    clean = verdict_outputs.outputs(model, cache, wanted)
    return float(np.quantile(oddness(model, cache, [row["text"] for row in clean]), CLEAN_BELOW))


def _name(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _read(reader: tuple[Any, Any, Any], text: str) -> float:
    torch, tokenizer, model = reader
    before = tokenizer(_BEFORE, add_special_tokens=False)["input_ids"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:LONGEST]
    if not ids:
        return 0.0
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([before + ids]).to(model.device)).logits[0, len(before) - 1 : -1].cpu()
    gaps = (logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]).clamp(max=MOST_NATS).numpy()
    sums = np.concatenate([[0.0], np.cumsum(gaps)])
    stretch = min(STRETCH, len(ids))
    return float((sums[stretch:] - sums[:-stretch]).max()) / STRETCH
