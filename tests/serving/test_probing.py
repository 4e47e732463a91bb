"""`diag probe prompts` against small servers of the tests' own, over real HTTP: an SGLang one and an OpenAI one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from diag.cli.probe_prompts import prompts
from diag.errors import HostUnreachable, PreconditionFailed, UsageError
from diag.serving.endpoint import opened
from diag.serving.probing import probe
from diag.verdict.prompts import Suite

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "probe-prompts.json"
SUITE = Suite.model_validate(
    {
        "schema": 1,
        "name": "small",
        "ways": ["flushed", "alone", "again", "chat", "together"],
        "sizes": [3],
        "prompts": [
            {"name": "days", "text": "Monday, Tuesday,", "expect": "Wednesday"},
            {"name": "who", "user": "Who are you?", "absent": "canary"},
        ],
    }
)
GOOD = " Wednesday, and then the library is open again for everybody who wants to read."


@dataclass
class Fake:
    """text: what is answered to every prompt. gaps: of its three tokens, when somebody scores them."""

    text: str = GOOD
    ids: tuple[int, ...] = (11, 12, 13)
    gaps: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict)
    sglang: bool = True
    chat_tokens: int = 9
    key: str | None = None
    info: dict[str, Any] = field(default_factory=lambda: {"version": "0.5.12", "dtype": "bfloat16"})
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append(path)
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny"}]}
        if path == "/v1/completions":
            return 200, {"choices": [{"text": self.text, "finish_reason": "stop"}]}
        if path == "/v1/chat/completions":
            usage = {"prompt_tokens": self.chat_tokens}
            return 200, {"choices": [{"message": {"content": self.text}, "finish_reason": "stop"}], "usage": usage}
        if self.sglang and path == "/server_info":
            return 200, self.info
        if self.sglang and path == "/generate":
            return 200, self.generated(body)
        return 404, {}

    def generated(self, body: dict[str, Any]) -> dict[str, Any]:
        if not body.get("return_logprob"):
            meta = {"finish_reason": {"type": "length"}, "cached_tokens": 0}
            return {"text": self.text, "output_ids": list(self.ids), "meta_info": meta}
        ids = body.get("input_ids") or [1, 2, 3]
        gaps = self.gaps.get(tuple(ids[-3:]), (0.0, 0.0, 0.0))
        gaps = (*([0.0] * (len(ids) - 3)), *gaps)
        own = [[-0.5 - gap, token, None] for gap, token in zip(gaps, ids)]
        top = [[[-0.5, 5, None], [-0.5, self.ids[1], None], [-0.5, self.ids[0], None]] for _ in ids]
        return {"text": "", "meta_info": {"input_token_logprobs": own, "input_top_logprobs": top}}


@pytest.fixture
def served() -> Iterator[Callable[[Fake], str]]:
    servers = []

    def start(fake: Fake) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self.reply({})

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.reply(json.loads(raw or b"{}"))

            def reply(self, body: dict[str, Any]) -> None:
                wanted = None if fake.key is None else f"Bearer {fake.key}"
                code, document = fake.answer(self.path, body)
                if wanted is not None and self.headers.get("Authorization") != wanted:
                    code, document = 401, {}
                sent = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_every_way_is_asked_and_all_of_it_is_judged(served: Callable[[Fake], str]) -> None:
    said: list[str] = []
    with opened(served(Fake())) as endpoint:
        found = probe(endpoint, SUITE, say=said.append)
    hows = [answer.how for answer in found.answers]
    assert hows == ["flushed", "flushed", "alone", "alone", "again", "again", "chat", *["together, 3"] * 3]
    assert {answer.verdict for answer in found.answers} == {"healthy"}
    assert (found.kind, found.model) == ("sglang", "tiny")
    assert (found.summary.rate.garbled, found.summary.rate.tried) == (0, 10)
    assert [sign.id for sign in found.signs] == ["no-cache-hit"]
    assert said[0] == "small: flushed"


def test_a_server_without_log_probabilities_is_judged_by_its_texts(served: Callable[[Fake], str]) -> None:
    with opened(served(Fake(sglang=False, text="!" * 64))) as endpoint:
        found = probe(endpoint, SUITE)
    assert found.kind == "openai"
    assert {answer.verdict for answer in found.answers} == {"garbled"}
    assert {e.rule for a in found.answers for e in a.evidence} >= {"character-run", "expected"}


def test_the_reference_accuses_what_reads_well(served: Callable[[Fake], str]) -> None:
    fluent = Fake(ids=(11, 77, 13), text=GOOD.replace("open", "closed"))
    good = Fake(gaps={(11, 77, 13): (0.0, 6.0, 0.0)})
    with opened(served(fluent)) as endpoint, opened(served(good)) as reference:
        found = probe(endpoint, SUITE, reference=reference)
    scored = [answer for answer in found.answers if answer.how != "chat"]
    assert {answer.verdict for answer in scored} == {"garbled"}
    assert {answer.evidence[0].rule for answer in scored} == {"reference"}
    assert found.margin.calibrated is False


def test_a_near_tie_is_healthy_even_where_it_looks_odd(served: Callable[[Fake], str]) -> None:
    odd = 'wis__ ;;’_ wis__ ;;-() wis Wednesday strugg-COS- {:. wis :") unnecess;;-();'
    near = Fake(ids=(11, 77, 13), text=odd)
    good = Fake(gaps={(11, 77, 13): (0.0, 0.1, 0.0)})
    with opened(served(near)) as endpoint, opened(served(good)) as reference:
        found = probe(endpoint, SUITE, reference=reference)
    assert {answer.verdict for answer in found.answers if answer.how != "chat"} == {"healthy"}


def test_the_cheap_leads_are_said(served: Callable[[Fake], str]) -> None:
    wrong = Fake(text=GOOD + " And more", chat_tokens=14, info={"version": "1", "dtype": "float16"})
    with opened(served(wrong)) as endpoint, opened(served(Fake())) as reference:
        found = probe(endpoint, SUITE, reference=reference)
    (chat,) = [answer for answer in found.answers if answer.how == "chat"]
    assert (chat.verdict, chat.evidence[0].rule) == ("garbled", "chat-template")
    assert chat.evidence[0].numbers == {"prompt_tokens": 14, "reference_prompt_tokens": 9}
    states = {lead.id: lead.state for lead in found.leads}
    assert states == {
        "chat-template": "found",
        "detokeniser": "found",
        "sampling": "excluded",
        "dtype": "found",
        "max-tokens": "excluded",
    }
    assert {answer.verdict for answer in found.answers if answer.how == "alone"} == {"garbled"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(prompts, list(arguments), standalone_mode=False)


def test_the_document_and_a_run_as_reference(served: Callable[[Fake], str], tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    suite.write_text('schema: 1\nname: own\nprompts:\n  - {name: days, text: "Monday,", expect: "Wednesday"}\n')
    url = served(Fake())
    done = run(url, "--suite", str(suite), "--json")
    assert done.return_value == 0
    document = json.loads(done.stdout)
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(document)) == []
    earlier = tmp_path / "run.json"
    earlier.write_text(done.stdout)
    other = served(Fake(text=" Wednesday \x1b[2J is another thing altogether.", ids=(9, 9, 9)))
    again = run(other, "--suite", str(suite), "--reference", str(earlier))
    assert again.return_value == 1
    assert "own (sglang, tiny)" not in again.output
    assert "\x1b" not in again.output
    assert "garbled" in again.output


def test_the_key_comes_from_the_environment(served: Callable[[Fake], str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = served(Fake(key="sesame"))
    for name in ("DIAG_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(HostUnreachable, match="wants a key"), opened(url):
        pass
    monkeypatch.setenv("DIAG_API_KEY", "sesame")
    with opened(url) as endpoint:
        assert endpoint.kind == "sglang"


def test_nobody_there() -> None:
    with pytest.raises(HostUnreachable, match="does not answer"), opened("http://127.0.0.1:9"):
        pass


def test_a_server_of_another_kind(served: Callable[[Fake], str]) -> None:
    class Other(Fake):
        def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return 404, {}

    with pytest.raises(PreconditionFailed, match="neither"), opened(served(Other())):
        pass


@pytest.mark.parametrize("text", ["", "{", '{"answers": []}', '{"answers": [{"how": "alone"}]}', "[]"])
def test_what_is_no_run_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    done = run("http://127.0.0.1:9", "--reference", str(path))
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("lab:http", "is no port"),
        ("http://lab:99999", "99999 is no port"),
        ("http://", "no host"),
        ("ftp://lab", "not http"),
        ("./lab", "names no host"),
        ("", "names no host"),
        ("http://[::", "no URL"),
    ],
)
def test_a_target_that_is_none(target: str, why: str) -> None:
    with pytest.raises(UsageError, match=why), opened(target):
        pass


def test_a_server_is_no_reference_of_its_own_and_a_run_is_one_of_its_suite(tmp_path: Path) -> None:
    done = run("http://127.0.0.1:9", "--reference", "http://127.0.0.1:9/")
    assert "its own reference" in str(done.exception)
    path = tmp_path / "run.json"
    answer = {"how": "alone", "prompt": "of-another-suite", "text": "", "token_ids": [], "finish_reason": ""}
    path.write_text(json.dumps({"answers": [answer]}))
    assert "no prompt of the suite 'smoke'" in str(run("http://127.0.0.1:9", "--reference", str(path)).exception)
