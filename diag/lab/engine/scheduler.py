"""Continuous batching on one thread: prefill what has arrived, then one decode or tree-verify step for all.

Requests come in on a queue from any thread and are answered through a callback. Greedy decoding only: with a
lossless verify step the text then equals plain greedy decoding token by token, which is what the lab is for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from diag.lab.engine.args import ServerArgs
from diag.lab.engine.attention import RequestPlan, plan_decode, plan_extend
from diag.lab.engine.backend import InstalledBackend, VerifyInput
from diag.lab.engine.draft import propose
from diag.lab.engine.faults import Fault, Stage
from diag.lab.engine.model import Model
from diag.lab.engine.tree import DraftTree, accept_greedy, flat_custom_mask, pad_tree


@dataclass
class Request:
    """One request, from prompt ids to finished output.

    logprob_start_len: first prompt position to report, or None for no log-probabilities at all.
    """

    input_ids: list[int]
    max_new_tokens: int
    on_done: Callable[[Request], None]
    ignore_eos: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int = 0
    output_ids: list[int] = field(default_factory=list)
    input_logprobs: list[LogProb] = field(default_factory=list)
    output_logprobs: list[LogProb] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    verify_steps: int = 0
    cached_tokens: int = 0
    error: str | None = None
    # scheduler state: row of req_to_token, and the pool slots whose K and V are committed
    row: int = -1
    slots: list[int] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    finished_at: float = 0.0

    @property
    def context(self) -> list[int]:
        return self.input_ids + self.output_ids


@dataclass(frozen=True)
class LogProb:
    """Log-probability of one token at its position, and the best tokens there. `value` None: nothing precedes it."""

    token: int
    value: float | None
    top: tuple[tuple[float, int], ...] = ()


@dataclass
class Counters:
    """What the verify steps really did, for /server_info: the proof that the path under test was exercised."""

    verify_steps: int = 0
    graph_replays: int = 0
    padded_rows: int = 0
    padded_verify_steps: int = 0
    branching_verify_steps: int = 0
    max_batch_size: int = 0
    draft_nodes: int = 0
    accepted_tokens: int = 0
    verified_requests: int = 0


class Scheduler:
    """Owns the model, the pools and the backend; everything that touches them runs on its one thread."""

    def __init__(
        self,
        args: ServerArgs,
        model: Model,
        backend: InstalledBackend,
        req_to_token: torch.Tensor,
        fault: Fault | None = None,
    ) -> None:
        self.args, self.model, self.backend = args, model, backend
        self.req_to_token, self.fault = req_to_token, fault or Fault()
        self.counters = Counters()
        self._free_rows = list(range(req_to_token.shape[0]))
        self._free_slots = list(range(1, args.num_slots))  # slot 0 takes the writes of padding, as in SGLang
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._running: list[Request] = []
        if args.draft_token_num is not None and not args.disable_cuda_graph:
            backend.capture_verify_graphs(args.max_running_requests, args.draft_token_num, args.context_length)
        threading.Thread(target=self._run, name="scheduler", daemon=True).start()

    def submit(self, request: Request) -> None:
        self._waiting.put(request)

    def _run(self) -> None:
        while True:
            arrived = self._arrivals()
            batch = arrived or self._running
            try:
                if arrived:
                    self._prefill(arrived)
                elif self.args.draft_token_num is not None:
                    self._verify(list(self._running), self.args.draft_token_num)
                else:
                    self._decode(list(self._running))
            except Exception as error:  # a fault of the installed file must fail requests, not hang them
                for request in list(batch):
                    request.error = f"{type(error).__name__}: {error}"
                    self._finish(request, {"type": "abort", "message": request.error})

    def _arrivals(self) -> list[Request]:
        """Requests to prefill now; blocks only when there is nothing else to do."""
        arrived: list[Request] = []
        while self._free_rows:
            try:
                arrived.append(self._waiting.get(block=not arrived and not self._running))
            except queue.Empty:
                break
            arrived[-1].row = self._free_rows.pop()
            if len(arrived) == 1 and not self._running:
                time.sleep(self.args.batch_wait_s)  # requests sent together should be batched together
        return arrived

    # one step each

    def _prefill(self, batch: list[Request]) -> None:
        lens = [len(r.input_ids) for r in batch]
        slots = self._take_slots(sum(lens))
        at = 0
        for request, length in zip(batch, lens):
            self._commit(request, slots[at : at + length])
            at += length
        prefixes = [self._reused(request) for request in batch]
        extends = [length - prefix for length, prefix in zip(lens, prefixes)]
        metadata = self.backend.extend(self._rows(batch), prefixes, extends)
        logits = self._forward(
            [token for r, prefix in zip(batch, prefixes) for token in r.input_ids[prefix:]],
            [position for length, prefix in zip(lens, prefixes) for position in range(prefix, length)],
            [slot for r, prefix in zip(batch, prefixes) for slot in r.slots[prefix:]],
            plan_extend(metadata, sum(extends)),
            own_rows=True,
            stage="prefill",
        )
        self._running.extend(batch)
        self._swap(batch)
        at = 0
        for request, length in zip(batch, extends):
            rows = logits[at : at + length]
            at += length
            if request.logprob_start_len is not None:
                request.input_logprobs = _prompt_logprobs(request, rows)
            self.fault.keep(self.model, request.input_ids, request.slots)
            self._emit(request, [int(rows[-1].argmax())], rows[-1:])

    def _reused(self, request: Request) -> int:
        """Tokens of the prompt that are not computed again; log-probabilities of the prompt need all of it."""
        if request.logprob_start_len is not None:
            return 0
        request.cached_tokens = self.fault.reused(request.input_ids)
        self.fault.restore(self.model, request.slots[: request.cached_tokens])
        return request.cached_tokens

    def _swap(self, batch: list[Request]) -> None:
        if self.fault.swapped([request.slots for request in batch]):
            for request in batch:
                slots = torch.tensor(request.slots, dtype=torch.int32)
                self.req_to_token[request.row, : len(slots)] = slots

    def _decode(self, batch: list[Request]) -> None:
        slots = self._take_slots(len(batch))
        for request, slot in zip(batch, slots):
            self._commit(request, [slot])
        seq_lens = torch.tensor([len(r.slots) for r in batch])
        metadata = self.backend.decode(self._rows(batch), seq_lens)
        logits = self._forward(
            [r.output_ids[-1] for r in batch],
            [len(r.slots) - 1 for r in batch],
            slots,
            plan_decode(metadata),
            own_rows=False,
            stage="decode",
        )
        for request, row in zip(batch, logits):
            self._emit(request, [int(row.argmax())], row[None])

    def _verify(self, batch: list[Request], draft_token_num: int) -> None:
        """Draft a tree for each request, run all rows of all trees in one forward pass, keep what the target chose."""
        width = draft_token_num
        trees = [propose(r.context, budget=width - 1, topk=self.args.speculative_eagle_topk) for r in batch]
        prefix_lens = [len(r.slots) for r in batch]
        rows = [pad_tree(tree, prefix, width) for tree, prefix in zip(trees, prefix_lens)]
        spec_info = VerifyInput(width, flat_custom_mask([r.visible for r in rows], prefix_lens))
        slots = self._take_slots(width * len(batch))
        graph = not self.args.disable_cuda_graph
        step = (self._rows(batch), torch.tensor(prefix_lens), spec_info)
        if graph:
            metadata = self.backend.replay_verify(*step, stale_mask=self.fault.stale_mask())
        else:
            metadata = self.backend.verify(*step)
        logits = self._forward(
            torch.cat([r.tokens for r in rows]),
            torch.cat([r.positions for r in rows]),
            slots,
            plan_extend(metadata, width * len(batch)),
            own_rows=True,
            stage="verify",
        )
        best = logits.argmax(dim=-1).tolist()
        for i, (request, tree) in enumerate(zip(batch, trees)):
            own = slice(i * width, (i + 1) * width)
            self._accept(request, tree, best[own], slots[own], logits[own])
        self._count(trees, width, graph)

    def _accept(self, request: Request, tree: DraftTree, best: list[int], slots: list[int], logits: Any) -> None:
        accepted, bonus = accept_greedy(tree, best)
        request.verify_steps += 1
        keep = [slots[row] for row in accepted]
        self._free_slots.extend(slot for slot in slots if slot not in keep)
        self._commit(request, keep)
        self.counters.accepted_tokens += len(accepted)
        self._emit(request, [tree.tokens[row] for row in accepted[1:]] + [bonus], logits[accepted])

    def _count(self, trees: Sequence[DraftTree], width: int, graph: bool) -> None:
        c = self.counters
        c.verify_steps += 1
        c.graph_replays += graph
        padding = sum(width - 1 - tree.nodes for tree in trees)
        c.padded_rows += padding
        c.padded_verify_steps += padding > 0
        c.branching_verify_steps += any(tree.branches for tree in trees)
        c.max_batch_size = max(c.max_batch_size, len(trees))
        c.draft_nodes += sum(tree.nodes for tree in trees)
        c.verified_requests += len(trees)

    # the pieces that steps share

    def _forward(
        self, tokens: Any, positions: Any, slots: list[int], plans: list[RequestPlan], *, own_rows: bool, stage: Stage
    ) -> torch.Tensor:
        at = torch.as_tensor(positions)
        return self.model.forward(
            torch.as_tensor(tokens),
            at,
            torch.tensor(slots),
            self.fault.plans(plans, at.tolist(), stage),
            own_rows=own_rows,
            damage=self.fault.damage(at.tolist(), len(plans), stage),
        )

    def _rows(self, batch: list[Request]) -> torch.Tensor:
        return torch.tensor([r.row for r in batch])

    def _take_slots(self, n: int) -> list[int]:
        if n > len(self._free_slots):
            raise RuntimeError(f"the KV pool is full: {n} slots wanted, {len(self._free_slots)} free")
        taken, self._free_slots = self._free_slots[:n], self._free_slots[n:]
        return taken

    def _commit(self, request: Request, slots: list[int]) -> None:
        at = len(request.slots)
        self.req_to_token[request.row, at : at + len(slots)] = torch.tensor(slots, dtype=torch.int32)
        request.slots.extend(slots)

    def _emit(self, request: Request, tokens: list[int], logits: torch.Tensor) -> None:
        """Append tokens until a stop; logits: one row for each token, the row that chose it."""
        for token, row in zip(tokens, logits):
            request.output_ids.append(token)
            if request.logprob_start_len is not None:
                request.output_logprobs.append(_logprob(token, row, request.top_logprobs_num))
            ends = token in self.args.eos_token_ids or self.fault.ends(request.output_ids)
            if ends and not request.ignore_eos:
                return self._finish(request, {"type": "stop", "matched": token})
            if len(request.output_ids) >= request.max_new_tokens:
                return self._finish(request, {"type": "length", "length": request.max_new_tokens})
            if len(request.context) >= self.args.context_length - (self.args.draft_token_num or 1):
                return self._finish(request, {"type": "length", "length": len(request.output_ids)})
        return None

    def _finish(self, request: Request, reason: dict[str, Any]) -> None:
        request.finish_reason = reason
        request.finished_at = time.monotonic()
        if request in self._running:
            self._running.remove(request)
        self._free_slots.extend(request.slots)
        if request.row >= 0:
            self._free_rows.append(request.row)
        request.on_done(request)


def _logprob(token: int, logits: torch.Tensor, top: int) -> LogProb:
    logprobs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(logprobs, top) if top > 0 else None
    pairs = tuple(zip(best.values.tolist(), best.indices.tolist())) if best is not None else ()
    return LogProb(token, float(logprobs[token]), pairs)


def _prompt_logprobs(request: Request, logits: torch.Tensor) -> list[LogProb]:
    """As SGLang's input_token_logprobs: position i is scored by the row before it; position 0 has no score."""
    start = request.logprob_start_len or 0
    scored = []
    for position in range(start, len(request.input_ids)):
        token = request.input_ids[position]
        if position == 0:
            scored.append(LogProb(token, None))
        else:
            scored.append(_logprob(token, logits[position - 1], request.top_logprobs_num))
    return scored
