"""Asking a suite and judging what comes back, against a client that is scripted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from diag.serving.client import Prompt
from diag.serving.suites import Scoring, ask
from diag.verdict.answers import Answer, Asked, references
from diag.verdict.compare import Score, TextVerdict
from diag.verdict.judging import Judge
from diag.verdict.prompts import Suite

ASK = Suite.model_validate(
    {
        "schema": 1,
        "name": "s",
        "prompts": [{"name": "a", "text": "A", "expect": "^ok"}, {"name": "b", "text": "B"}],
    }
)


@dataclass
class FakeClient:
    """scores: by emitted tokens; None: the server reports no log-probabilities."""

    scores: dict[tuple[int, ...], list[Score]] | None = None
    tokenized: list[str] = field(default_factory=list)
    rivals: list[tuple[int, int] | None] = field(default_factory=list)

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        return Answer(prompt.name, text=prompt.text.lower(), token_ids=(max_new_tokens,))

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        return [self.generate(prompt, max_new_tokens) for prompt in prompts]

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        self.tokenized.append(prompt.name)
        return None if self.scores is None else [1]

    def score(
        self, ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None
    ) -> list[Score] | None:
        self.rivals.append(rival)
        return None if self.scores is None else self.scores.get(tuple(emitted))


def judge(client: FakeClient) -> Judge:
    return Judge(ASK, Scoring(client, ASK))  # type: ignore[arg-type]


def asked(prompt: str, *ids: int, text: str = "ok", error: str = "") -> Asked:
    return Asked("alone", Answer(prompt, text=text, token_ids=ids, error=error))


def test_each_alone_then_all_at_once_and_it_says_so() -> None:
    said: list[str] = []
    answers = ask(FakeClient(), ASK, 9, said.append)  # type: ignore[arg-type]
    assert [(a.how, a.answer.prompt, a.answer.token_ids) for a in answers] == [
        ("alone", "a", (9,)),
        ("alone", "b", (9,)),
        ("together", "a", (9,)),
        ("together", "b", (9,)),
    ]
    assert said == ["prompt 1/2 (a), alone", "prompt 2/2 (b), alone", "2 prompts at once"]
    assert {name: a.text for name, a in references(answers).items()} == {"a": "a", "b": "b"}


def test_one_prompt_has_no_company() -> None:
    one = ASK.model_copy(update={"prompts": ASK.prompts[:1]})
    assert [a.how for a in ask(FakeClient(), one, 9)] == ["alone"]  # type: ignore[arg-type]


GOOD = {"a": Answer("a", text="ok", token_ids=(1, 2, 3))}


@pytest.mark.parametrize(
    ("answer", "scores", "kind", "at", "rival"),
    [
        (asked("a", 1, 2, 3), None, "identical", None, None),
        (asked("a", 1, 4, 3), None, "garbled", 1, None),
        (asked("a", 1, 4), [Score(0.0), Score(0.1, 0.05)], "near_tie", 1, (1, 2)),
        (asked("a", 1, 4), [Score(0.0), Score(6.0, 0.0)], "garbled", 1, (1, 2)),
        (asked("a", 1, 2), [Score(0.0), Score(0.0)], "garbled", 2, (2, 3)),
        (asked("a", 1, 2, 3, 4), [Score(0.0)] * 4, "garbled", 3, None),
        (asked("a"), None, "garbled", 0, None),
        (asked("a", error="HTTP 500"), None, "no_answer", None, None),
    ],
)
def test_against_a_reference(
    answer: Asked, scores: list[Score] | None, kind: str, at: int | None, rival: tuple[int, int] | None
) -> None:
    client = FakeClient(None if scores is None else {answer.answer.token_ids: scores})
    (verdict,) = judge(client).against([answer], GOOD)
    assert (verdict.kind, verdict.diverges_at, verdict.reference) == (kind, at, "ok")
    assert client.rivals in ([], [rival])
    if scores is not None:
        assert verdict.worst_gap_nats == max(score.gap_nats for score in scores)


@pytest.mark.parametrize(
    ("answer", "scores", "kind"),
    [
        (asked("a", 1), [Score(0.0)], "plausible"),
        (asked("a", 1, text="no"), [Score(0.0)], "wrong"),
        (asked("a", 1), [Score(3.0)], "garbled"),
        (asked("a", 1, text="no"), None, "wrong"),
        (asked("b", 1, text="anything"), None, "plausible"),
        (asked("a", text=""), None, "garbled"),
        (asked("a", text="ok"), None, "plausible"),
        (asked("a", error="no answer: refused"), None, "no_answer"),
    ],
)
def test_unaided(answer: Asked, scores: list[Score] | None, kind: str) -> None:
    client = FakeClient(None if scores is None else {answer.answer.token_ids: scores})
    (verdict,) = judge(client).unaided([answer])
    assert (verdict.kind, verdict.reference) == (kind, None)


def test_a_prompt_is_tokenized_once() -> None:
    client = FakeClient({(1,): [Score(0.0)]})
    judge(client).unaided([asked("a", 1), asked("a", 1), asked("b", 1)])
    assert client.tokenized == ["a", "b"]


STOPPED = {name: Answer(name, text="ok", token_ids=(1, 2, 9), finish_reason="stop") for name in ("a", "b")}


def test_an_answer_that_stops_without_the_token_that_ends_one_is_scored_with_it() -> None:
    early = Asked("alone", Answer("a", text="o", token_ids=(1, 4), finish_reason="stop"))
    client = FakeClient({(1, 4, 9): [Score(0.0), Score(0.0, 0.0), Score(7.0)]})
    (verdict,) = judge(client).against([early], STOPPED)
    assert (verdict.kind, verdict.worst_gap_nats, verdict.worst_at) == ("garbled", 7.0, 2)
    cut = Asked("alone", Answer("a", text="o", token_ids=(1, 4), finish_reason="length"))
    (verdict,) = judge(FakeClient({(1, 4): [Score(0.0), Score(0.0, 0.0)]})).against([cut], STOPPED)
    assert verdict.kind == "near_tie"


def test_right_ids_and_another_text_are_the_detokeniser() -> None:
    wrong = Asked("alone", Answer("a", text="xy", token_ids=(1, 2, 3)))
    (verdict,) = judge(FakeClient()).against([wrong], GOOD)
    assert verdict.kind == "garbled"
    assert "detokeniser" in verdict.why
    cut = Asked("alone", Answer("a", text="o\ufffd", token_ids=(1, 2, 3)))
    assert judge(FakeClient()).against([cut], GOOD)[0].kind == "identical"


def test_the_gap_and_the_text_of_every_token_go_with_the_verdict() -> None:
    scores = [Score(0.0, piece=" a"), Score(0.12345, 0.05, piece="b")]
    (verdict,) = judge(FakeClient({(1, 4): scores})).against([asked("a", 1, 4)], GOOD)
    assert (verdict.gaps_nats, verdict.pieces) == ((0.0, 0.123), (" a", "b"))
    assert TextVerdict.from_json(verdict.to_json()) == verdict
    (untold,) = judge(FakeClient({(1, 4): [Score(0.0), Score(0.1, 0.05)]})).against([asked("a", 1, 4)], GOOD)
    assert untold.pieces == ()
    older = {name: value for name, value in untold.to_json().items() if name not in ("gaps_nats", "pieces")}
    assert TextVerdict.from_json(older).gaps_nats == ()
