"""Ask a suite of a running server, one by one and all at once, and have a server score what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx

from diag.serving.client import Client, Prompt
from diag.verdict.answers import Answer, Asked
from diag.verdict.compare import Score
from diag.verdict.prompts import Suite
from diag.verdict.reference import LEAST_TOKENS, Margin, calibrate

Say = Callable[[str], None]

SPECULATES = ("speculative_algorithm", "speculative_config")
"""What a server's effective configuration names where it speculates."""
ROUNDED_PROMPTS, ROUNDED_TOKENS = 8, 16
"""Prompts of a suite, and new tokens of each, that a server's rounding is measured on."""


def ask(client: Client, suite: Suite, max_new_tokens: int, say: Say | None = None) -> list[Asked]:
    """Every prompt alone, then all of them at the same moment: some faults need company, some need none."""
    prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts]
    asked = []
    for number, prompt in enumerate(prompts, 1):
        if say is not None:
            say(f"prompt {number}/{len(prompts)} ({prompt.name}), alone")
        asked.append(Asked("alone", client.generate(prompt, max_new_tokens)))
    if len(prompts) > 1:
        if say is not None:
            say(f"{len(prompts)} prompts at once")
        together = client.generate_together(prompts, max_new_tokens)
        asked.extend(Asked("together", answer) for answer in together)
    return asked


class Scoring:
    """Scores the answers to a suite by one server, which is asked once for the token ids of each prompt."""

    def __init__(self, client: Client, suite: Suite) -> None:
        self._client = client
        self._prompts = {p.name: Prompt(p.name, suite.rendered(p)) for p in suite.prompts}
        self._ids: dict[str, list[int] | None] = {}

    def __call__(self, answer: Answer, rival: tuple[int, int] | None = None) -> list[Score] | None:
        """None where the server does not report log-probabilities."""
        if answer.prompt not in self._ids:
            self._ids[answer.prompt] = self._client.tokenize(self._prompts[answer.prompt])
        ids = self._ids[answer.prompt]
        return self._client.score(ids, answer.token_ids, rival) if ids else None


def margin(client: Client, suite: Suite, healthy: Iterable[Answer]) -> Margin:
    """As the scores and the rounding of a server have it that is known to be good. healthy: its own answers."""
    score = Scoring(client, suite)
    scores = [score(answer) or [] for answer in healthy if answer.token_ids and not answer.error]
    enough = sum(map(len, scores)) >= LEAST_TOKENS
    return calibrate(scores, rounding(client, suite) if enough else ())


def rounding(client: Client, suite: Suite) -> list[float]:
    """Nats between what decode, in company, and prefill, alone, make of each token that this server emits; [] where it
    does not tell. A server that speculates is not asked: log-probabilities are another path there, or none."""
    try:
        effective = client.server_info()
    except httpx.HTTPError:  # it is gone, which its answers tell
        return []
    if any(effective.get(name) for name in SPECULATES):
        return []
    prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts[:ROUNDED_PROMPTS]]
    with ThreadPoolExecutor(len(prompts)) as pool:
        decoded = list(pool.map(lambda prompt: client.decoded(prompt, ROUNDED_TOKENS), prompts))
    score, found = Scoring(client, suite), []
    for answer, told in decoded:
        scores = score(answer) or [] if told else []
        found += [abs(a + b.surprise_nats) for a, b in zip(told, scores) if b.surprise_nats is not None]
    return found
