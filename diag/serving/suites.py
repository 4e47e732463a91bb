"""Ask a suite of a running server, one by one and all at once, and have a server score what came back."""

from __future__ import annotations

from collections.abc import Callable

from diag.serving.client import Client, Prompt
from diag.verdict.answers import Answer, Asked
from diag.verdict.compare import Score
from diag.verdict.prompts import Suite

Say = Callable[[str], None]


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
