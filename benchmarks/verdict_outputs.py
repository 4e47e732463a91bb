"""Outputs of the lab's model, made once and kept in the cache: clean ones at several lengths and temperatures, and
damaged ones, where the attention's output is now and then another layer's, another request's, noise or nothing.

The model's own library decodes them: no server, no speculation, no fault. What it writes is what a healthy server of
this model writes; at temperature 1 a model of 135M parameters writes poorly, and that is not the server's fault.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

MORE_TASKS = (
    "Write an email to a colleague about {}.",
    "Explain {} to a child of six years.",
    "What should everybody know about {}?",
    "Write a product review of {}.",
    "Write a short news report about {}.",
    "Give me five questions for a quiz about {}, with answers.",
    "Compare {} with something else.",
    "Write a Python class that models {}.",
    "Write an SQL table and two queries for {}.",
    "Write a JavaScript function concerning {}.",
    "Write a recipe that somehow involves {}.",
    "Make a plan for a week that has to do with {}.",
    "Describe a day in the life of somebody who works with {}.",
    "What are common mistakes with {}?",
    "Write a limerick about {}.",
    "Translate into French: I like {}.",
    "Erkläre in zwei Sätzen, was {} bedeutet.",
    "Explica brevemente la historia de {}.",
    "Write the beginning of a mystery novel about {}.",
    "Write an XML document that describes {}.",
    "List the pros and cons of {} as bullet points.",
    "How would a scientist talk about {}?",
    "Write a speech of thanks that mentions {}.",
    "Solve this: a shop sells {} for 12 dollars each. What do seven cost?",
)
MORE_TOPICS = (
    "apples", "a sailing boat", "the stock market", "bees", "castles", "dinosaurs", "an elevator", "fog", "gravity",
    "a hospital", "ice cream", "jazz", "kites", "lightning", "a museum", "newspapers", "oil paint", "a parrot",
    "quilts", "robots", "sand", "a telescope", "umbrellas", "violins", "whales", "yoga", "zoos", "a passport",
    "running shoes", "the calendar", "dreams", "a forest fire", "gold", "horses", "an island", "justice", "a keyboard",
    "lemons", "magnets", "nuclear power", "owls", "poetry", "the railway", "a school bus", "theatre", "a volcano",
    "water", "a birthday", "the brain", "cheese", "democracy", "an engine", "flags", "a grandmother", "hats",
)  # fmt: skip

EXAM_TASKS = (
    "Describe {} to somebody who has never heard of it.",
    "Write a dialogue between two neighbours about {}.",
    "Give four numbered tips for people who care about {}.",
    "Summarise in one paragraph the history of {}.",
    "Write a shell script whose comments mention {}.",
    "Write an HTML page with a heading and a list about {}.",
    "Invent a product name and a slogan for {}.",
    "Write a YAML file that configures {}.",
    "Was ist das Wichtigste an {}?",
    "Qu'est-ce qui est important dans {} ?",
    "Why do people argue about {}?",
    "Write a haiku about {} and explain it.",
)
EXAM_TOPICS = (
    "a lost umbrella", "tomatoes", "the night bus", "mountains", "an orchestra", "sleep", "photography", "rivers",
    "a broken clock", "snow", "the internet", "a bakery", "elephants", "philosophy", "bridges", "tea", "earthquakes",
    "football", "an old radio", "prime numbers", "the desert", "vaccines", "a lighthouse keeper", "mirrors", "taxes",
)  # fmt: skip


@dataclass(frozen=True)
class Questions:
    """Prompts, and the names of the files in the cache that hold what was made of them."""

    prompts: tuple[str, ...]
    clean: str
    damaged: str
    seed: int


TUNE = Questions(
    tuple(task.format(topic) for topic in TOPICS for task in TASKS), "clean-outputs.jsonl", "damaged.jsonl", 7
)
EXAM = Questions(
    tuple(task.format(topic) for topic in EXAM_TOPICS for task in EXAM_TASKS),
    "exam-outputs.jsonl",
    "exam-damaged.jsonl",
    8,
)
MORE = tuple(
    Questions(
        tuple(task.format(topic) for topic in MORE_TOPICS for task in MORE_TASKS)[number::4],
        f"clean-more-{number}.jsonl",
        f"damaged-more-{number}.jsonl",
        80 + number,
    )
    for number in range(4)
)
"""TUNE, and MORE of it: what rules may be tuned on. EXAM: other prompts, which only the benchmark asks."""


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def outputs(model: Path, cache: Path, wanted: int, asked: Questions = TUNE) -> list[dict[str, Any]]:
    """[{"prompt", "text", "token_ids", "temperature", "max_new_tokens", "finish_reason"}], from the cache if there."""
    kept = cache / asked.clean
    kept.parent.mkdir(parents=True, exist_ok=True)
    there = len(kept.read_text().splitlines()) if kept.is_file() else 0
    if there < wanted:
        with kept.open("a") as out:  # what was made before an interruption is kept
            for each in islice(_made(model, asked, there // BATCH * BATCH), wanted - there):
                out.write(json.dumps(each) + "\n")
                out.flush()
    return [json.loads(line) for line in kept.read_text().splitlines()][:wanted]


def _made(model_dir: Path, asked: Questions, begin: int) -> Iterator[dict[str, Any]]:
    torch, tokenizer, model = loaded(model_dir, "bfloat16")
    torch.manual_seed(asked.seed * 10**6 + begin)
    for number in range(begin, 10**6, BATCH):
        temperature = TEMPERATURES[number // BATCH % len(TEMPERATURES)]
        length = LENGTHS[number // BATCH // len(TEMPERATURES) % len(LENGTHS)]
        questions = [asked.prompts[(number + k) % len(asked.prompts)] for k in range(BATCH)]
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        for question, ids in zip(questions, _generated(torch, tokenizer, model, questions, length, sampling)):
            yield {
                "prompt": question,
                "text": tokenizer.decode(ids, skip_special_tokens=True),
                "token_ids": ids,
                "temperature": temperature,
                "max_new_tokens": length,
                "finish_reason": "stop" if ids[-1] == tokenizer.eos_token_id else "length",
            }


def scored(model_dir: Path, cache: Path, wanted: int, asked: Questions) -> list[dict[str, Any]]:
    """The clean outputs of temperature 0, which were made in bfloat16 and in company, as the same model scores them in
    float32 and alone, teacher-forced: a healthy run by the scores of another healthy run.

    [{"prompt", "gaps"}], gaps in nats.
    """
    rows = [row for row in outputs(model_dir, cache, wanted, asked) if row["temperature"] == 0]
    kept = cache / f"scored-{asked.clean}"
    there = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    if len(there) < len(rows):
        torch, tokenizer, model = loaded(model_dir, "float32")
        with kept.open("a") as out:
            for row in rows[len(there) :]:
                prompt = tokenizer(chat(row["prompt"]), return_tensors="pt")["input_ids"]
                ids = torch.tensor([row["token_ids"]])
                with torch.inference_mode():
                    seen = torch.cat([prompt, ids], 1).to(model.device)
                    logits = model(input_ids=seen).logits[0, prompt.shape[1] - 1 : -1].cpu()
                gaps = logits.max(-1).values - logits.gather(1, ids[0][:, None])[:, 0]
                there.append({"prompt": row["prompt"], "gaps": [round(gap, 4) for gap in gaps.tolist()]})
                out.write(json.dumps(there[-1]) + "\n")
                out.flush()
    return there


def loaded(model_dir: Path, dtype: str) -> tuple[Any, Any, Any]:
    """(torch, tokenizer, model); on a GPU where there is one, which takes minutes where two cores take hours."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).eval()
    return torch, tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu")


def _generated(
    torch: Any, tokenizer: Any, model: Any, questions: Sequence[str], length: int, sampling: dict[str, Any]
) -> list[list[int]]:
    """Token ids of each answer, up to and with the token that ends it."""
    batch = tokenizer([chat(q) for q in questions], return_tensors="pt", padding=True).to(model.device)
    with torch.inference_mode():
        out = model.generate(**batch, max_new_tokens=length, **sampling)
    return [_ended(row, tokenizer.eos_token_id) for row in out[:, batch["input_ids"].shape[1] :].tolist()]


def _ended(row: list[int], eos: int) -> list[int]:
    return row[: row.index(eos) + 1] if eos in row else row


def damaged(model: Path, cache: Path, batches: int = 24, asked: Questions = TUNE) -> list[dict[str, Any]]:
    """[{"prompt", "text", "ids", "gaps"}]: gaps in nats, by the undamaged model, teacher-forced."""
    kept = cache / asked.damaged
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = "".join(json.dumps(each) + "\n" for each in _damaged(model, asked, batches))
        kept.with_suffix(".new").write_text(made)
        kept.with_suffix(".new").replace(kept)
    return [json.loads(line) for line in kept.read_text().splitlines()]


def _damaged(model_dir: Path, asked: Questions, batches: int, size: int = 32) -> Iterator[dict[str, Any]]:
    torch, tokenizer, model = loaded(model_dir, "float32")
    torch.manual_seed(asked.seed)
    rng = random.Random(asked.seed)
    damage = _Damage(torch)
    layers = model.model.layers
    for number, layer in enumerate(layers):
        layer.self_attn.register_forward_hook(damage.hook(number))
    for _ in range(batches):
        questions = [rng.choice(asked.prompts) for _ in range(size)]
        batch = tokenizer([chat(q) for q in questions], return_tensors="pt", padding=True).to(model.device)
        prompt = batch["input_ids"].shape[1]
        with torch.inference_mode():
            damage.begin(rng, len(layers))
            out = model.generate(**batch, max_new_tokens=rng.choice([40, 80, 96]), do_sample=False)
            damage.layers = frozenset()
            seen = torch.cat([batch["attention_mask"], torch.ones_like(out[:, prompt:])], 1)
            places = (seen.cumsum(1) - 1).clamp(min=0)
            logits = model(input_ids=out, attention_mask=seen, position_ids=places).logits
            scores = logits[:, prompt - 1 : -1].log_softmax(-1)
        gaps = scores.max(-1).values - scores.gather(2, out[:, prompt:, None])[..., 0]
        for question, row, gap in zip(questions, out[:, prompt:].tolist(), gaps.tolist()):
            ids = _ended(row, tokenizer.eos_token_id)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            yield {"prompt": question, "text": text, "ids": ids, "gaps": gap[: len(ids)]}


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
                drawn = torch.rand(good.shape[0], 1, 1).to(good.device)
                self.hit = (drawn < self.share) & (self.step > self.start)
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
