"""Servers that are scripted, for the shell around the search: everything but the processes is real."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from diag import journal
from diag.bisect import bench as benches
from diag.bisect import plan, run
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.bench import ServerBench, fills_for
from diag.bisect.decision import Next
from diag.bisect.early import ends_alike
from diag.bisect.executor import Inline
from diag.bisect.expr import Value
from diag.bisect.link import Link
from diag.bisect.run import Result
from diag.bisect.trial import Trial
from diag.hosts.inventory import Host
from diag.journal import Journal
from diag.serving.client import Answer, Prompt
from diag.serving.server import Launch, Progress, Server
from diag.verdict.compare import Score

GOOD, BAD = {"a": 0, "b": 0}, {"a": 1, "b": 1}

PLAN = """\
schema: 1
kind: bisect
name: two
command: "{python} serve --port {port}"
env: {FIXED: "1"}
factors:
  a: {flag: --a, good: 0, bad: 1}
  b: {env: B, good: 0, bad: 1}
"""


@dataclass
class FakeClient:
    """Emits [1, 2, 3], or [1, 9, 9] where the configuration is garbled; scores 9 as bad as it is."""

    garbled: bool
    info: Mapping[str, Any] = field(default_factory=dict)
    gone: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None
    flushed: list[bool] = field(default_factory=list)

    def asking(self, sampling: Mapping[str, Any], concurrency: int | None = None) -> FakeClient:
        return dataclasses.replace(self, sampling=sampling, concurrency=concurrency)

    def flush_cache(self) -> None:
        self.flushed.append(True)

    def ids(self, max_new_tokens: int) -> tuple[int, ...]:
        return (1, 9, 9) if self.garbled else (1, 2, 3)

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        if self.gone:
            return Answer(prompt.name, error="no answer: refused")
        ids = self.ids(self.sampling.get("max_new_tokens", max_new_tokens))
        return Answer(prompt.name, text=" ".join(map(str, ids)), token_ids=ids)

    def decoded(self, prompt: Prompt, max_new_tokens: int) -> tuple[Answer, list[float]]:
        return self.generate(prompt, max_new_tokens), []

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        return [self.generate(prompt, max_new_tokens) for prompt in prompts]

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        return None if self.gone else [5, 6]

    def score(self, ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None) -> list[Score]:
        return [Score(20.0 if token == 9 else 0.0) for token in emitted]

    def server_info(self) -> dict[str, Any]:
        if self.gone:
            raise httpx.ConnectError("refused")
        return dict(self.info)


class Wire:
    """A connection that nothing goes over."""

    def close(self) -> None: ...


Script = Callable[[dict[str, Value], int], FakeClient]


@dataclass
class Bench:
    """A run whose servers are scripted: `script(config, start)` gives the client, or raises what a start raises."""

    plan: plan.Plan
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    events: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    stopped: Callable[[dict[str, Value]], dict[str, Any]] = lambda config: {"stopped": True, "left": []}
    journal: Journal | None = None
    done: list[Trial] = field(default_factory=list)

    def serve(self, script: Script) -> None:
        """From now on servers are these."""

        @contextlib.contextmanager
        def start(
            transport: object, launch: Launch, on_progress: Callable[[Progress], None] | None = None
        ) -> Iterator[Server]:
            config = self.config_of(launch)
            self.launches.append(launch)
            self.events.append(f"start {len(self.launches)}, journal has {self.kinds().count('trial')}")
            client = script(config, len(self.launches))
            if on_progress is not None:
                on_progress(Progress("waiting", 1.0, "loading weights"))
            server = Server(port=1, pid=2, ready_after_s=3.0, client=client)  # type: ignore[arg-type]
            try:
                yield server
            finally:
                self.events.append(f"stop {len(self.launches)}")
                server.stopped.update(self.stopped(config))

        self.monkeypatch.setattr(benches, "start", start)
        self.monkeypatch.setattr(benches, "held", lambda transport, doing, run, gpus: contextlib.nullcontext())
        self.monkeypatch.setattr(benches, "DEATH_WAIT_S", 0.0)

    def run(self, script: Script) -> Result:
        self.serve(script)
        self.journal = Journal.create(self.folder)
        host = Host(name="box", address="local", python="/py")
        with self.journal:
            fills = fills_for(self.plan, host, {})
            bench = ServerBench(self.plan, Link(host, lambda host: Wire()), self.journal.run_id, self, fills)
            search = BayesianSearch(self.plan.space, deterministic=True, max_trials=self.plan.spec.max_trials)
            executor = Inline(bench, "box")
            start = {"host": "box", "plan": self.plan.text}
            space = self.plan.space
            early = partial(ends_alike, space)
            return run.run(search, executor, self.journal, self, good=space.good, start=start, ends_early=early)

    def config_of(self, launch: Launch) -> dict[str, Value]:
        return {"a": int(launch.argv[launch.argv.index("--a") + 1]), "b": int(launch.env["B"])}

    def entries(self) -> list[dict[str, Any]]:
        """Without what was held likely after each trial, see `outlooks`."""
        return [entry for entry in self._written() if entry["kind"] != "outlook"]

    def outlooks(self) -> list[dict[str, Any]]:
        return [entry for entry in self._written() if entry["kind"] == "outlook"]

    def _written(self) -> list[dict[str, Any]]:
        return journal.read(self.journal.path) if self.journal is not None else []

    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.entries()]

    # what a listener is told

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None:
        assert expected >= number
        self.events.append(f"announced {number}")

    def waits_for(self, what: str) -> None:
        assert what

    def outlook(self, leader: str, share: float, rest: int) -> None:
        assert 0 <= share <= 1
        assert rest >= 0

    def host_leaves(self, host: str, why: str) -> None:
        self.events.append(f"{host} leaves")

    def trial_done(self, trial: Trial) -> None:
        self.done.append(trial)
        self.events.append(f"done {trial.number}")
