"""The lab's server: SGLang's HTTP, lossless speculation, and the fault that comes from the installed file alone.

The table of configurations is the acceptance test of the lab: what garbles before the fix, and that all of it is
token for token plain greedy decoding after it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from diag.fixes import catalogue, transaction
from diag.hosts import http, inventory
from diag.hosts.transport import Transport, connect
from diag.lab.layout import Lab, model_dir
from diag.serving import server
from diag.serving.client import Client, Prompt

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

NEW_TOKENS = 24
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    Prompt("poem", CHAT.format("Write a short poem about the ocean.")),
    Prompt("weekdays", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"),
    Prompt("cycle", "a1 b2 c3 d4 e5 f6 a1 b2 c3 d4 e5 f6 a1 b2"),
]
TREE = ("--speculative-algorithm", "DDTREE", "--speculative-num-draft-tokens", "8")
# name -> (flags, garbled before the fix)
TABLE = {
    "budget 7, topk 1": (("--speculative-ddtree-budget", "7", "--speculative-eagle-topk", "1"), False),
    "budget 7, topk 4": (("--speculative-ddtree-budget", "7", "--speculative-eagle-topk", "4"), False),
    "budget 16, topk 4": (("--speculative-ddtree-budget", "16", "--speculative-eagle-topk", "4"), True),
    "budget 16, topk 1": (("--speculative-ddtree-budget", "16", "--speculative-eagle-topk", "1"), True),
    "budget 16, topk 1, no graph": (
        ("--speculative-ddtree-budget", "16", "--speculative-eagle-topk", "1", "--disable-cuda-graph"),
        True,
    ),
}
MASK_INDPTR = catalogue.get("mask-indptr")


@pytest.fixture(scope="module")
def transport(lab: Lab) -> Iterator[Transport]:
    with connect(inventory.load().get("lab")) as opened:
        yield opened


@contextmanager
def serving(lab: Lab, transport: Transport, *flags: str) -> Iterator[server.Server]:
    argv = (str(lab.python), "-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}", *flags)
    launch = server.Launch(argv=argv, run_id=f"test-{secrets.token_hex(4)}", ready_timeout_s=120)
    with server.start(transport, launch) as running:
        yield running
    assert running.stopped["left"] == []
    assert running.stopped["port_free"] is True


@pytest.fixture(scope="module")
def greedy() -> dict[str, tuple[int, ...]]:
    """What the model itself says: transformers' own greedy decoding, none of our code."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model = AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir())
    texts = {}
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt.text)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False)
        texts[prompt.name] = tuple(out[0, ids.shape[1] :].tolist())
    return texts


def answers(client: Client) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Token ids of every prompt, one by one and all at once."""
    alone = [client.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]
    together = client.generate_together(PROMPTS, NEW_TOKENS)
    assert not [a.error for a in (*alone, *together) if a.error]
    return {a.prompt: a.token_ids for a in alone}, {a.prompt: a.token_ids for a in together}


def test_plain_decoding_is_the_models_own_and_scores_itself(
    lab: Lab, transport: Transport, greedy: dict[str, tuple[int, ...]]
) -> None:
    with serving(lab, transport) as running:
        alone, together = answers(running.client)
        assert alone == greedy
        assert together == greedy
        ids = running.client.tokenize(PROMPTS[1])
        assert ids is not None
        scores = running.client.score(ids, greedy["weekdays"])
        assert scores is not None
        assert max(score.gap_nats for score in scores) < 0.001
        wrong = [*greedy["weekdays"][:3], 7, *greedy["weekdays"][4:]]
        worse = running.client.score(ids, wrong, rival=(3, greedy["weekdays"][3]))
        assert worse is not None
        assert worse[3].gap_nats > 1
        assert worse[3].rival_gap_nats == pytest.approx(0, abs=0.001)


@pytest.mark.parametrize("name", TABLE)
def test_before_the_fix(lab: Lab, transport: Transport, greedy: dict[str, tuple[int, ...]], name: str) -> None:
    flags, garbled = TABLE[name]
    with serving(lab, transport, *TREE, *flags) as running:
        alone, together = answers(running.client)
        info = running.client.server_info()
    verify = info["internal_states"][0]["verify"]
    assert verify["verify_steps"] > 0
    assert (verify["graph_replays"] > 0) is ("--disable-cuda-graph" not in flags)
    assert (verify["branching_verify_steps"] > 0) is ("4" in flags)
    assert verify["max_batch_size"] >= 2
    assert (alone != greedy) is garbled
    assert (together != greedy) is garbled
    if not garbled:
        assert alone == greedy


@pytest.fixture(scope="module")
def mended(lab: Lab, transport: Transport) -> Iterator[None]:
    before = transaction.inspect(transport, MASK_INDPTR)
    outcome = transaction.apply(transport, MASK_INDPTR, transaction.plan(MASK_INDPTR, before))
    assert outcome.changed
    yield
    now = transaction.inspect(transport, MASK_INDPTR)
    transaction.revert(transport, MASK_INDPTR, now)
    after = transaction.inspect(transport, MASK_INDPTR)
    assert (after.sha256, after.integrity) == (before.sha256, "pristine")


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("name", TABLE)
def test_after_the_fix(lab: Lab, transport: Transport, greedy: dict[str, tuple[int, ...]], name: str) -> None:
    with serving(lab, transport, *TREE, *TABLE[name][0]) as running:
        alone, together = answers(running.client)
        assert running.client.server_info()["internal_states"][0]["verify"]["verify_steps"] > 0
    assert alone == greedy
    assert together == greedy


def test_the_http_that_people_use(lab: Lab, transport: Transport) -> None:
    with serving(lab, transport, *TREE) as running, http.http_client(transport, running.port) as web:
        assert web.get("/health_generate").status_code == 200
        info = web.get("/server_info").json()
        assert (info["version"], info["draft_token_num"], info["attention_backend"]) == ("0.5.12", 8, "triton")
        assert info["attention_backend_file"].startswith(str(lab.site_packages))
        assert web.get("/get_model_info").json()["model_path"] == str(model_dir())
        assert web.post("/flush_cache").status_code == 200
        assert web.get("/v1/models").json()["data"][0]["max_model_len"] == 2048

        several = web.post("/generate", json=_generate(text=["One, two,", "A, B,"])).json()
        assert [len(each["output_ids"]) for each in several] == [4, 4]
        assert all(each["meta_info"]["spec_accept_length"] is not None for each in several)
        by_ids = web.post("/generate", json=_generate(input_ids=[42, 43, 44])).json()
        assert by_ids["meta_info"]["prompt_tokens"] == 3

        scored = web.post(
            "/generate",
            json={**_generate(text="One, two,"), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
        ).json()["meta_info"]
        assert scored["input_token_logprobs"][0][0] is None
        assert len(scored["input_token_logprobs"]) == scored["prompt_tokens"]
        assert len(scored["output_token_logprobs"]) == scored["completion_tokens"] == 4
        assert all(len(top) == 2 for top in scored["output_top_logprobs"])

        completed = web.post("/v1/completions", json={"prompt": "One, two,", "max_tokens": 4}).json()
        assert completed["choices"][0]["finish_reason"] == "length"
        assert completed["usage"]["completion_tokens"] == 4
        message = {"role": "user", "content": "Say hello."}
        chat = web.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 4}).json()
        assert chat["choices"][0]["message"]["role"] == "assistant"
        for path, body, said in WRONG:
            answer = web.post(path, json=body)
            assert answer.status_code == 400, (path, body, answer.text[:200])
            assert said in answer.json()["error"]["message"]
        assert web.post("/generate", content=b"{").status_code == 400
        assert web.get("/health").status_code == 200  # still there after all that


def _generate(**what: object) -> dict[str, object]:
    return {**what, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


WRONG = [
    ("/generate", {}, "exactly one of text and input_ids"),
    ("/generate", {"text": "a", "input_ids": [1]}, "exactly one of text and input_ids"),
    ("/generate", {"text": ""}, "non-empty"),
    ("/generate", {"text": 5}, "a string or a list of strings"),
    ("/generate", {"input_ids": []}, "a list of token ids"),
    ("/generate", {"input_ids": [[]]}, "non-empty"),
    ("/generate", {"input_ids": 3}, "a list of token ids"),
    ("/generate", {"input_ids": [10**9]}, "inside the vocabulary"),
    ("/generate", {"input_ids": [1] * 3000}, "at most"),
    ("/generate", {"text": "a", "sampling_params": {"temperature": 0.7}}, "decodes greedily"),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0}}, "at least 1"),
    ("/generate", {"text": ["a", "b"], "sampling_params": [{}]}, "2 prompts but 1 sampling_params"),
    ("/v1/chat/completions", {"messages": []}, "at least one message"),
    ("/v1/completions", {"prompt": "a", "stream": True}, "does not stream"),
]


def test_without_triton_the_index_kernel_is_plain_torch_and_the_text_the_same(
    lab: Lab, transport: Transport, greedy: dict[str, tuple[int, ...]]
) -> None:
    argv = (str(lab.python), "-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}", *TREE)
    launch = server.Launch(argv=argv, env={"DIAG_NO_TRITON": "1"}, run_id="test-plain", ready_timeout_s=120)
    with server.start(transport, launch) as running:
        assert "without triton" in running.client.server_info()["index_kernels"]
        alone, _ = answers(running.client)
    assert alone == greedy


def test_a_broken_installed_file_is_a_server_that_dies_with_its_traceback(lab: Lab, transport: Transport) -> None:
    file = lab.site_packages / MASK_INDPTR.file
    original = file.read_bytes()
    file.write_bytes(original.replace(b"def init_forward_metadata(self", b"def init_forward_metadata(self, ((", 1))
    try:
        with pytest.raises(server.DiagError) as died, serving(lab, transport):
            pytest.fail("a server came up on a file that Python cannot read")
    finally:
        file.write_bytes(original)
    assert died.value.kind == "server_died"
    assert any("SyntaxError" in line for line in died.value.details)


def test_a_request_to_a_port_nobody_listens_on_is_a_connect_error(lab: Lab, transport: Transport) -> None:
    with http.http_client(transport, 9) as web, pytest.raises(httpx.ConnectError):
        web.get("/health")
