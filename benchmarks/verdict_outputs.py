"""Outputs of the lab's model, made once and kept in the cache: clean ones at several lengths and temperatures, and
damaged ones, where the attention's output is now and then another layer's, another request's, noise or nothing.

The model's own library decodes them: no server, no speculation, no fault. What it writes is what a healthy server of
this model writes; at temperature 1 a model of 135M parameters writes poorly, and that is not the server's fault.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

TEMPERATURES = (0.0, 0.4, 0.8, 1.0)
LENGTHS = (12, 40, 112)
BATCH = 100

TASKS = (
    "Write a short poem about {}.",
    "Explain in three sentences what {} is.",
    "List seven words that have to do with {}.",
    "Write a Python function that has something to do with {}.",
    "Give a JSON object with four fields that describes {}.",
    "Write a Markdown table with three rows about {}.",
    "Tell a story for children about {}.",
    "Write a letter to a friend about {}.",
    "Ecris trois phrases sur {}.",
    "Escribe tres frases sobre {}.",
    "Schreibe drei Sätze über {}.",
    "What are the advantages and the disadvantages of {}?",
)
TOPICS = (
    "the ocean", "bread", "a bicycle", "winter", "numbers", "an old lighthouse", "music", "a garden",
    "trains", "the moon", "a library", "rain", "volcanoes", "chess", "honey", "a market", "glass",
    "the human heart", "maps", "friendship", "electricity", "a wooden boat", "coffee", "birds",
    "mathematics",
)  # fmt: skip


def outputs(model: Path, cache: Path, wanted: int = 1200) -> list[dict[str, Any]]:
    """[{"prompt", "text", "token_ids", "temperature", "max_new_tokens", "finish_reason"}], from the cache if there."""
    kept = cache / "clean-outputs.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    there = len(kept.read_text().splitlines()) if kept.is_file() else 0
    if there < wanted:
        with kept.open("a") as out:  # what was made before an interruption is kept
            for each in islice(_made(model, there // BATCH * BATCH), wanted - there):
                out.write(json.dumps(each) + "\n")
                out.flush()
    return [json.loads(line) for line in kept.read_text().splitlines()][:wanted]


def _made(model_dir: Path, begin: int) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(begin)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    questions = [task.format(topic) for topic in TOPICS for task in TASKS]
    for number in range(begin, 10**6, BATCH):
        temperature = TEMPERATURES[number // BATCH % len(TEMPERATURES)]
        length = LENGTHS[number // BATCH // len(TEMPERATURES) % len(LENGTHS)]
        asked = [questions[(number + k) % len(questions)] for k in range(BATCH)]
        chats = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in asked]
        batch = tokenizer(chats, return_tensors="pt", padding=True)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=length, **sampling)
        for question, row in zip(asked, out[:, batch["input_ids"].shape[1] :].tolist()):
            ends = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            yield {
                "prompt": question,
                "text": tokenizer.decode(row[:ends], skip_special_tokens=True),
                "token_ids": row[:ends],
                "temperature": temperature,
                "max_new_tokens": length,
                "finish_reason": "stop" if row[ends - 1] == tokenizer.eos_token_id else "length",
            }


def damaged(model: Path, cache: Path, batches: int = 24) -> list[dict[str, Any]]:
    """[{"prompt", "text", "ids", "gaps"}]: gaps in nats, by the undamaged model, teacher-forced."""
    kept = cache / "damaged.jsonl"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = "".join(json.dumps(each) + "\n" for each in _damaged(model, batches))
        kept.with_suffix(".new").write_text(made)
        kept.with_suffix(".new").replace(kept)
    return [json.loads(line) for line in kept.read_text().splitlines()]


def _damaged(model_dir: Path, batches: int, size: int = 32) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(7)
    rng = random.Random(7)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    damage = _Damage(torch)
    layers = model.model.layers
    for number, layer in enumerate(layers):
        layer.self_attn.register_forward_hook(damage.hook(number))
    questions = [task.format(topic) for topic in TOPICS for task in TASKS]
    for _ in range(batches):
        asked = [rng.choice(questions) for _ in range(size)]
        chats = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in asked]
        batch = tokenizer(chats, return_tensors="pt", padding=True)
        prompt = batch["input_ids"].shape[1]
        with torch.inference_mode():
            damage.begin(rng, len(layers))
            out = model.generate(**batch, max_new_tokens=rng.choice([40, 80, 96]), do_sample=False)
            damage.layers = frozenset()
            seen = torch.cat([batch["attention_mask"], torch.ones(size, out.shape[1] - prompt, dtype=torch.long)], 1)
            places = (seen.cumsum(1) - 1).clamp(min=0)
            logits = model(input_ids=out, attention_mask=seen, position_ids=places).logits
            scores = logits[:, prompt - 1 : -1].log_softmax(-1)
        gaps = scores.max(-1).values - scores.gather(2, out[:, prompt:, None])[..., 0]
        for question, row, gap in zip(asked, out[:, prompt:].tolist(), gaps.tolist()):
            ends = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            text = tokenizer.decode(row[:ends], skip_special_tokens=True)
            yield {"prompt": question, "text": text, "ids": row[:ends], "gaps": gap[:ends]}


class _Damage:
    """Replaces the output of some layers' attention for some tokens, from some step on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.layers: frozenset[int] = frozenset()

    def begin(self, rng: random.Random, layers: int) -> None:
        self.layers = frozenset(rng.sample(range(layers), rng.choice([layers // 4, layers // 2, layers, layers])))
        self.start, self.share = rng.choice([0, 0, 5, 15, 30]), rng.choice([0.2, 0.4, 0.6, 1.0])
        self.kind, self.noise = rng.choice(["layer", "layer", "zero", "swap", "noise", "both"]), rng.choice([0.7, 1, 2])
        self.step = 0

    def hook(self, number: int) -> Any:
        torch = self._torch

        def replace(_module: Any, _arguments: Any, out: Any) -> Any:
            good = out[0]
            if not self.layers or good.shape[1] != 1:
                self.before = good[:, -1:].clone()
                return out
            if number == 0:
                self.step += 1
                self.hit = (torch.rand(good.shape[0], 1, 1) < self.share) & (self.step > self.start)
            bad = {
                "layer": self.before,
                "both": self.before.roll(1, 0),
                "swap": good.roll(1, 0),
                "zero": torch.zeros_like(good),
                "noise": good + torch.randn_like(good) * good.std() * self.noise,
            }[self.kind]
            self.before = torch.where(self.hit, bad, good) if number in self.layers else good
            return (self.before, *out[1:])

        return replace
