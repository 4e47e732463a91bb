"""Runs as their programs write them down, whole: a bisection to its culprit, and a playbook that began it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.records.journals import journal, line

BISECTION, PLAYBOOK = "20261129-120000-aaaaaa.find", "20261129-120000-aaaaaa"
HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m\u202e`` ``` {{ 7 * 7 }} & \ud800 @someone"
)

FACTORS = [
    {"name": "budget", "title": "tree budget", "how": "flag", "target": "--budget", "good": 7, "bad": 16},
    {"name": "topk", "title": "branching", "how": "flag", "target": "--topk", "good": 1, "bad": 4},
]
FACTS: dict[str, Any] = {
    "facts": {
        "os": "Debian GNU/Linux 12",
        "kernel": "6.1.0",
        "machine": "x86_64",
        "hostname": "secret-box",
        "user": "alice",
        "cpu": {"count": 96, "model": "EPYC"},
        "memory_bytes": 1 << 40,
        "gpus": [{"name": "NVIDIA H200", "memory_total_mib": 143771}] * 8,
        "driver": "580.1",
        "cuda": "13.0",
    },
    "environments": [
        {
            "python": "/home/alice/venv/bin/python",
            "python_version": "3.12.3",
            "site_packages": "/site",
            "packages": {"sglang": "0.5.12", "torch": "2.9.1", "triton": "3.5.0"},
        }
    ],
    "sources": [
        {
            "package": "sglang",
            "site_packages": "/site",
            "files": [{"path": "sglang/a.py", "integrity": "edited", "sha256": "0" * 64}],
        }
    ],
}


def text(prompt: str, how: str, garbled: bool, words: str, reference: str | None) -> dict[str, Any]:
    gaps = [0.0, 24.9, 0.1, 7.25, 0.3] if garbled else []
    return {
        "prompt": prompt,
        "how": how,
        "kind": "garbled" if garbled else "identical",
        "healthy": not garbled,
        "text": words,
        "reference": reference,
        "why": "token 1 is 24.9 nats below the best one there" if garbled else "token for token the same",
        "diverges_at": 1 if garbled else None,
        "worst_gap_nats": 24.9 if garbled else None,
        "worst_at": 1 if garbled else None,
        "accept_length": 2.5,
        "token_ids": [1, 2, 3, 4, 5],
        "gaps_nats": gaps,
        "pieces": ["A poem", "owners", "Write", " of", "\n<b>"] if garbled else [],
    }


def trial(number: int, budget: int, topk: int, words: str = "A poemownersWrite of\n<b>", at: float = 0.0) -> bytes:
    fails = budget == 16
    reference = "A poem of the sea,\nwide and green"
    texts = [
        text("poem", how, fails, words if fails else reference, reference if number > 1 else None)
        for how in ("alone", "together")
    ]
    argv = ["/home/alice/venv/bin/python", "-m", "sglang.launch_server", "--port", "{port}", "--budget", str(budget)]
    whole = {"attention_backend": "triton", "port": 30000 + number, "speculative_ddtree_budget": budget, "odd": None}
    changed = {"port": 30000 + number, **({"speculative_ddtree_budget": budget} if fails else {})}
    info = {"server_info": whole} if number in (1, 5) else {"server_info_changed": changed}
    return line(
        "trial",
        number=number,
        purpose=f"why {number} was made",
        config={"budget": budget, "topk": topk},
        effective={"budget": budget, "topk": topk, "mismatch": fails},
        outcome="fail" if fails else "pass",
        texts=texts,
        reason="2 of 2 texts" if fails else "every text healthy",
        warnings=[],
        start_s=20.0,
        total_s=30.0,
        details={"argv": argv, "env": {"HF_TOKEN": "***"}, "stopped": {"seconds": 2.0}, **info},
        host="gpu1",
        signature="garbled" if fails else "",
        at_unix=at or 1000.0 + 31 * number,
    )


def bisection(state: Path, run: str = BISECTION, words: str = "A poemownersWrite of\n<b>", **told: Any) -> Path:
    """Six trials to a culprit; `told` goes over what it says at the end."""
    document = {
        "schema": 1,
        "answer": [
            "CULPRIT   the verify step is not as wide as the backend's fixed count (budget + 1 != block_size)",
            "The output breaks where budget + 1 != block_size, whatever else is set; otherwise all is well.",
            "Nothing else in the plan explains the trials; 6 trials, 3.1 min on gpu1",
        ],
        "reasons": [
            {"label": "sufficient", "text": "the good configuration fails with it alone (trial 4)"},
            {"label": "necessary", "text": "the failing configuration is clean without it (trial 3)"},
        ],
        "next": ["diag fix apply gpu1 mask-indptr --diff    (shows the patch, touches nothing)"],
        "verdict": "culprit",
        "culprit": {
            "name": "budget=16",
            "title": "tree budget (budget=16)",
            "factors": {"budget": 16},
            "relation": "and",
            "predicate": None,
            "confidence": 1.0,
        },
        "sufficient": [4],
        "necessary": [3],
        "held_out": [],
        "cleared": {"topk": 4},
        "rates": None,
        "rejected": [{"name": "topk=4", "trial": 3, "why": "passed with it"}],
        "inseparable": [],
        "source": {
            "fault": "mask-indptr",
            "state": "present",
            "path": "/home/alice/projects/serving/november/attention/venv/lib64/python3.12/site-packages/sglang/a.py",
            "version": "sglang 0.5.12",
            "sha256": "ab" * 32,
            "sites": [{"line": 364, "symbol": "init_forward_metadata", "text": "    mask = a < b  # <script>"}],
        },
        **told,
    }
    shares = [("topk=4", 0.5), ("budget=16", 0.2), ("budget=16 and topk=4", 0.2)]
    later = [("budget=16", 0.6), ("budget=16 and topk=4", 0.4)]
    start = {
        "hosts": ["gpu1"],
        "host": "gpu1",
        "plan": "",
        "plan_name": "ddtree-garble",
        "title": "16 garbles, 7 does not",
        "engine": "sglang",
        "factors": FACTORS,
        "derived": [{"name": "mismatch", "title": "", "when": "budget + 1 != 8"}],
        "suite": {"name": "garble", "max_new_tokens": 40, "prompts": [{"name": "poem", "text": "Write a poem"}]},
    }
    return journal(
        state,
        run,
        line("start", run_id=run, **start),
        line("facts", host="gpu1", document=FACTS),
        trial(1, 7, 1),
        trial(2, 16, 4, words),
        line("outlook", after=2, standing=shares, rest=3, at_unix=1062.0),
        trial(3, 7, 4),
        line("outlook", after=3, standing=later, rest=2, at_unix=1093.0),
        trial(4, 16, 1, words),
        line("outlook", after=4, standing=[("budget=16", 1.0)], rest=2, at_unix=1124.0),
        line("interrupted", trials=4, at_unix=1125.0),
        line("resumed", trials=4, at_unix=1190.0),
        trial(5, 7, 4, at=1221.0),
        trial(6, 16, 4, words, at=1252.0),
        line("verdict", verdict=document["verdict"], culprit="budget=16", at_unix=1252.5),
        line("report", document=document, at_unix=1253.0),
    )


def playbook(state: Path, words: str = "A poemownersWrite of\n<b>", said: str = "as expected") -> Path:
    bisection(state, BISECTION, words)

    def step(name: str, kind: str, state: str, at: float, **result: Any) -> bytes:
        summary = f"{name}: {said}" if state == "done" else ""
        done = {
            "summary": summary,
            "values": {},
            "exit_code": 0,
            "document": None,
            "said": [said],
            "run": None,
            **result,
        }
        told = done if state != "begun" else None
        return line("step", id=name, step=kind, host="gpu1", state=state, seconds=9.0, at_unix=at, why="", result=told)

    return journal(
        state,
        PLAYBOOK,
        line("start", program="playbook", run_id=PLAYBOOK, name="ddtree-garble", title="the story", hosts=["gpu1"]),
        step("look", "probe.host", "begun", 1001.0),
        step("look", "probe.host", "done", 1010.0, exit_code=1, document={"host": "gpu1", **FACTS}),
        step("find", "bisect", "done", 1260.0, exit_code=1, run=BISECTION),
        line("change", id="c1", host="gpu1", step="mend", what=f"fix mask-indptr {said}", undo={"do": "fix.revert"}),
        step("mend", "fix.apply", "done", 1290.0),
        step("again", "bisect", "failed", 1300.0, exit_code=3),
        step("later", "note", "skipped", 1300.0),
        line("undone", host="gpu1", change="c1", by="failure", at_unix=1310.0),
        line(
            "verdict",
            verdict="failed",
            why="again: it cannot be told",
            answer=["FAILED   again: it cannot be told", "5 steps on gpu1, all undone"],
            exit_code=3,
            at_unix=1320.0,
        ),
    )
