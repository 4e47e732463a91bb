"""vLLM's HTTP, spoken by the lab's server in its second personality: as far as this toolkit uses it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from diag.lab.engine.args import ServerArgs
from diag.lab.engine.args_vllm import STANDS_FOR
from diag.lab.engine.http import Api, BadRequest, json_object, openai_params, openai_reason
from diag.lab.engine.scheduler import LogProb, Request, Scheduler

Handler = Callable[[HttpRequest], Any]


class VllmApi(Api):
    def __init__(
        self, args: ServerArgs, scheduler: Scheduler, tokenizer: Any, config: dict[str, Any], developer: bool
    ) -> None:
        """config: what /server_info tells; developer: whether it is there (VLLM_SERVER_DEV_MODE=1)."""
        super().__init__(args, scheduler, tokenizer, STANDS_FOR, {})
        self._config, self._developer = config, developer

    def routes(self) -> list[tuple[str, str, Handler]]:
        developer: list[tuple[str, str, Handler]] = [
            ("GET", "/server_info", self.server_info),
            ("POST", "/reset_prefix_cache", self.flush_cache),
        ]
        return [
            ("GET", "/health", self.health),
            ("GET", "/version", self.version_of),
            ("GET", "/metrics", self.metrics),
            ("GET", "/v1/models", self.models),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/chat/completions", self.chat_completions),
            *(developer if self._developer else []),
        ]

    # state

    async def health(self, _: HttpRequest) -> Response:
        """That the engine lives; nothing is generated for it."""
        return Response(status_code=200)

    async def version_of(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": self.version})

    async def server_info(self, http: HttpRequest) -> Response:
        as_json = http.query_params.get("config_format") == "json"
        told = self._config if as_json else ", ".join(f"{k}={v!r}" for k, v in _flat(self._config).items())
        env = {name: value for name, value in os.environ.items() if name.startswith("VLLM_") and "KEY" not in name}
        return JSONResponse({"vllm_config": told, "vllm_env": env})

    async def metrics(self, _: HttpRequest) -> Response:
        counted, model = self.scheduler.counters, self.args.served_model_name
        labels = ",".join(f'{name}="{value}"' for name, value in self._config["cache_config"].items())
        lines = [f'vllm:cache_config_info{{engine="0",{labels}}} 1.0']
        if self.args.draft_token_num is not None:
            drafts, width = counted.verified_requests, self.args.draft_token_num - 1
            accepted = counted.accepted_tokens - drafts  # one token of each step is the model's own
            for name, value in (("drafts", drafts), ("draft_tokens", drafts * width), ("accepted_tokens", accepted)):
                lines.append(f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="{model}"}} {float(value)}')
        return PlainTextResponse("\n".join([*lines, ""]))

    async def tokenize(self, http: HttpRequest) -> Response:
        body = await json_object(http)
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise BadRequest("prompt: a string")
        ids = self.tokenizer.encode(prompt)
        return JSONResponse({"count": len(ids), "max_model_len": self.args.context_length, "tokens": ids})

    # generation

    async def completions(self, http: HttpRequest) -> Response:
        body = await json_object(http)
        self._named(body)
        prompts = self._ids_of(body.get("prompt"))
        best, own = body.get("prompt_logprobs"), body.get("logprobs")
        wanted = [number for number in (best, own) if number is not None]
        options: dict[str, Any] = {"logprob_start_len": 0, "top_logprobs_num": max(wanted)} if wanted else {}
        params = {**openai_params(body), "max_new_tokens": body.get("max_tokens", 16)}
        done = await asyncio.gather(*(self._run(ids, params, **options) for ids in prompts))
        choices = [self._choice(at, request, body) for at, request in enumerate(done)]
        return JSONResponse(self._openai("text_completion", "cmpl", choices, done))

    def _ids_of(self, prompt: Any) -> list[list[int]]:
        is_ids = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], str)
        return self._prompts({"input_ids" if is_ids else "text": prompt})[0]

    def _named(self, body: dict[str, Any]) -> None:
        if body.get("model", self.args.served_model_name) != self.args.served_model_name:
            raise BadRequest(f"The model `{body['model']}` does not exist.")

    def _choice(self, at: int, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        with_ids = bool(body.get("return_token_ids"))
        choice: dict[str, Any] = {
            "index": at,
            "text": self._text(request),
            "logprobs": None,
            "finish_reason": openai_reason(request),
            "token_ids": request.output_ids if with_ids else None,
            "prompt_token_ids": request.input_ids if with_ids else None,
            "prompt_logprobs": None,
        }
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = [self._entry(score) for score in request.input_logprobs]
        if body.get("logprobs") is not None:
            words = bool(body.get("return_tokens_as_token_ids"))
            choice["logprobs"] = {
                "tokens": [f"token_id:{s.token}" if words else self._piece(s.token) for s in request.output_logprobs],
                "token_logprobs": [s.value for s in request.output_logprobs],
            }
        return choice

    def _entry(self, score: LogProb) -> dict[str, Any] | None:
        """The best tokens and the prompt's own; nothing for the first one, which nothing precedes."""
        if score.value is None:
            return None
        found = {token: value for value, token in score.top} | {score.token: score.value}
        ranked = sorted(found.items(), key=lambda item: -item[1])
        return {
            str(token): {"logprob": value, "rank": rank, "decoded_token": self._piece(token)}
            for rank, (token, value) in enumerate(ranked, 1)
        }


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """As older versions print it: the fields that count, without their sections."""
    sections = ("model_config", "cache_config", "parallel_config", "scheduler_config")
    flat = {name: value for section in sections for name, value in config[section].items()}
    return {"speculative_config": config["speculative_config"], **flat}
