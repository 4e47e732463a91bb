"""SGLang's HTTP, as far as this toolkit and a person with curl use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from diag.lab.engine.args import ServerArgs
from diag.lab.engine.scheduler import Request, Scheduler


class BadRequest(ValueError):
    """Answered with 400 and its text."""


class Api:
    def __init__(self, args: ServerArgs, scheduler: Scheduler, tokenizer: Any, version: str, plan: dict[str, Any]):
        """plan: what the server says about itself besides its arguments (installed file, its hash, index kernels)."""
        self.args, self.scheduler, self.tokenizer, self.version, self.plan = args, scheduler, tokenizer, version, plan
        self.started_at = time.time()
        self._asked = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route(path, _guarded(handler), methods=[method]) for method, path, handler in self.routes()],
        )

    def routes(self) -> list[tuple[str, str, Callable[[HttpRequest], Any]]]:
        return [
            ("GET", "/health", self.health_generate),
            ("GET", "/health_generate", self.health_generate),
            ("GET", "/server_info", self.server_info),
            ("GET", "/get_server_info", self.server_info),
            ("GET", "/model_info", self.model_info),
            ("GET", "/get_model_info", self.model_info),
            ("GET", "/v1/models", self.models),
            ("POST", "/generate", self.generate),
            ("POST", "/flush_cache", self.flush_cache),
            ("GET", "/flush_cache", self.flush_cache),
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/chat/completions", self.chat_completions),
        ]

    # state

    async def health_generate(self, _: HttpRequest) -> Response:
        """200 only after one token has really been generated."""
        request = await self._run(self.tokenizer.encode("Hi"), {"max_new_tokens": 1})
        return Response(status_code=200 if request.error is None else 503)

    async def server_info(self, _: HttpRequest) -> Response:
        counters = vars(self.scheduler.counters)
        steps = counters["verified_requests"]
        state = {
            "avg_spec_accept_length": counters["accepted_tokens"] / steps if steps else None,
            "verify": counters,
        }
        return JSONResponse(
            {**self.args.to_json(), "version": self.version, "started_at_unix": self.started_at, **self.plan}
            | {"internal_states": [state]}
        )

    async def model_info(self, _: HttpRequest) -> Response:
        return JSONResponse({"model_path": self.args.model_path, "is_generation": True})

    async def models(self, _: HttpRequest) -> Response:
        model = {"id": self.args.served_model_name, "object": "model", "max_model_len": self.args.context_length}
        return JSONResponse({"object": "list", "data": [model]})

    async def flush_cache(self, _: HttpRequest) -> Response:
        return PlainTextResponse("Cache flushed.\n")

    # generation

    async def generate(self, http: HttpRequest) -> Response:
        body = await json_object(http)
        prompts, single = self._prompts(body)
        params = body.get("sampling_params") or {}
        each = params if isinstance(params, list) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise BadRequest(f"{len(prompts)} prompts but {len(each)} sampling_params")
        wants = body.get("return_logprob") or False
        start = body.get("logprob_start_len", -1)
        options = [
            {
                "logprob_start_len": (len(ids) - 1 if start < 0 else start) if wants else None,
                "top_logprobs_num": body.get("top_logprobs_num", 0) if wants else 0,
            }
            for ids in prompts
        ]
        with_text = bool(body.get("return_text_in_logprobs"))
        done = await asyncio.gather(*(self._run(p, s, **o) for p, s, o in zip(prompts, each, options, strict=True)))
        answers = [self._generate_answer(request, with_text) for request in done]
        return JSONResponse(answers[0] if single else answers)

    async def completions(self, http: HttpRequest) -> Response:
        body = await json_object(http)
        prompts, _ = self._prompts({"text": body.get("prompt")})
        done = await asyncio.gather(*(self._run(ids, openai_params(body)) for ids in prompts))
        choices = [
            {"index": i, "text": self._text(r), "logprobs": None, "finish_reason": openai_reason(r)}
            for i, r in enumerate(done)
        ]
        return JSONResponse(self._openai("text_completion", "cmpl", choices, done))

    async def chat_completions(self, http: HttpRequest) -> Response:
        body = await json_object(http)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages: a list with at least one message is needed")
        try:
            rendered = self.scheduler.fault.rendered(messages)
            if rendered is None:
                rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # the template is data of the model; whatever it raises is the request's fault
            raise BadRequest(f"messages: the chat template refused them: {error}") from None
        done = [await self._run(self.tokenizer.encode(rendered), openai_params(body))]
        choices = [
            {
                "index": 0,
                "message": {"role": "assistant", "content": self._text(done[0])},
                "logprobs": None,
                "finish_reason": openai_reason(done[0]),
            }
        ]
        return JSONResponse(self._openai("chat.completion", "chatcmpl", choices, done))

    def _openai(self, kind: str, prefix: str, choices: list[dict[str, Any]], done: list[Request]) -> dict[str, Any]:
        self._asked += 1
        prompt, completion = sum(len(r.input_ids) for r in done), sum(len(r.output_ids) for r in done)
        return {
            "id": f"{prefix}-{self._asked}",
            "object": kind,
            "created": int(time.time()),
            "model": self.args.served_model_name,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }

    def _prompts(self, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
        """(token ids of every prompt, whether a single one was asked for) from `text` or `input_ids`."""
        text, ids = body.get("text"), body.get("input_ids")
        if (text is None) == (ids is None):
            raise BadRequest("exactly one of text and input_ids is needed")
        if text is not None:
            texts = [text] if isinstance(text, str) else text
            if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
                raise BadRequest("text: a string or a list of strings")
            prompts = [self.tokenizer.encode(t) for t in texts]
            single = isinstance(text, str)
        else:
            if not isinstance(ids, list) or not ids:
                raise BadRequest("input_ids: a list of token ids, or a list of such lists")
            single = bool(ids) and isinstance(ids[0], int)
            prompts = [ids] if single else ids
        limit = self.args.context_length - (self.args.draft_token_num or 1) - 1
        for prompt in prompts:
            if not prompt or not all(isinstance(i, int) and 0 <= i < self.scheduler.model.vocab_size for i in prompt):
                raise BadRequest("input_ids: non-empty lists of token ids inside the vocabulary")
            if len(prompt) > limit:
                raise BadRequest(f"the prompt has {len(prompt)} tokens; at most {limit} fit")
        return prompts, single

    async def _run(self, input_ids: list[int], params: dict[str, Any], **more: Any) -> Request:
        if params.get("temperature", 0) not in (0, 0.0, None):
            raise BadRequest("temperature: this server decodes greedily; send 0")
        max_new_tokens = params.get("max_new_tokens", 128)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise BadRequest("max_new_tokens: a whole number of at least 1")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Request] = loop.create_future()

        def answer(request: Request) -> None:
            if not answered.done():  # the client may have gone
                answered.set_result(request)

        def on_done(request: Request) -> None:
            loop.call_soon_threadsafe(answer, request)

        request = Request(
            input_ids=list(input_ids),
            max_new_tokens=max_new_tokens,
            ignore_eos=bool(params.get("ignore_eos", False)),
            on_done=on_done,
            **more,
        )
        self.scheduler.submit(request)
        return await answered

    # answers

    def _piece(self, token: int) -> str:
        piece: str = self.tokenizer.decode([token])
        return piece

    def _text(self, request: Request) -> str:
        ids = self.scheduler.fault.detokenised(request.output_ids, self.scheduler.model.vocab_size)
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _generate_answer(self, request: Request, with_text: bool) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "finish_reason": request.finish_reason,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(request.output_ids),
            "cached_tokens": request.cached_tokens,
            "e2e_latency": request.finished_at - request.started_at,
        }
        if self.args.draft_token_num is not None:
            meta["spec_verify_ct"] = request.verify_steps
            # The first token comes from the prefill; every other from a verify step.
            drafted = len(request.output_ids) - 1
            meta["spec_accept_length"] = drafted / request.verify_steps if request.verify_steps else None
        if request.logprob_start_len is not None:
            for side, scores in (("input", request.input_logprobs), ("output", request.output_logprobs)):
                piece = self._piece if with_text else _no_text
                meta[f"{side}_token_logprobs"] = [[s.value, s.token, piece(s.token)] for s in scores]
                meta[f"{side}_top_logprobs"] = [[[v, t, piece(t)] for v, t in s.top] or None for s in scores]
        return {"text": self._text(request), "output_ids": request.output_ids, "meta_info": meta}


def _no_text(token: int) -> None:
    return None


def openai_params(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("stream"):
        raise BadRequest("stream: this server does not stream")
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    params = {"temperature": body.get("temperature", 0), "ignore_eos": body.get("ignore_eos", False)}
    return params if limit is None else {**params, "max_new_tokens": limit}


def openai_reason(request: Request) -> str:
    return (request.finish_reason or {}).get("type", "stop")


async def json_object(http: HttpRequest) -> dict[str, Any]:
    try:
        body = await http.json()
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _guarded(handler: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    async def guarded(http: HttpRequest) -> Response:
        try:
            answer: Response = await handler(http)
        except BadRequest as error:
            return JSONResponse({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, 400)
        return answer

    return guarded


def with_eos(args: ServerArgs, tokenizer: Any) -> ServerArgs:
    """The token that ends an answer is the tokenizer's business."""
    return replace(args, eos_token_ids=(tokenizer.eos_token_id,))
