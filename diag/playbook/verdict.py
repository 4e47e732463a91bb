"""What a run amounts to: one word, one sentence and an exit code, of each host and of all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diag.hosts.parity import Difference, differences
from diag.playbook.ended import Ended, HostEnd
from diag.playbook.kind import Result
from diag.playbook.load import Book

Word = Literal["done", "found", "failed", "inconclusive", "unreachable"]

WORST = (1, 5, 2, 4, 3, 0)
"""Exit codes: what is said of several hosts, or of several steps, is the first of these that one of them has."""


@dataclass(frozen=True)
class Verdict:
    """step: that it comes from, None where it is no step's."""

    word: Word
    why: str
    exit_code: int
    step: str | None = None


def of_host(book: Book, host: HostEnd) -> Verdict:
    if host.error is not None:
        word: Word = "unreachable" if host.error.exit_code == 4 else "failed"
        return Verdict(word, host.error.what, host.error.exit_code)
    past = host.past
    failed = host.end.failed if host.end is not None else None
    if failed is not None:
        return Verdict("failed", past.failed[failed].summary, past.failed[failed].exit_code, failed)
    if host.end is not None and host.end.left:
        change, why = host.end.left[0]
        return Verdict("failed", f"not everything could be given back: {change.what}: {why}", 5)
    told: Mapping[str, Result] = {**past.results, **past.failed}
    if book.answer is not None and book.answer in told:
        return _of_step(book.answer, told[book.answer])
    codes = {step: result.exit_code for step, result in told.items()}
    worst = next((step for code in WORST for step in codes if codes[step] == code), None)
    if worst is None or codes[worst] == 0:
        return Verdict("done", "nothing wrong was found" if not book.changes else "every step is done", 0)
    return _of_step(worst, told[worst])


def _of_step(step: str, result: Result) -> Verdict:
    words: dict[int, Word] = {0: "done", 1: "found", 3: "inconclusive", 4: "unreachable"}
    return Verdict(words.get(result.exit_code, "failed"), result.summary, result.exit_code, step)


def of_run(ended: Ended) -> Verdict:
    """The worst of its hosts; of several, also what they differ in."""
    verdicts = {host.host: of_host(ended.book, host) for host in ended.hosts}
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    worst = min(verdicts.items(), key=lambda item: WORST.index(item[1].exit_code))
    matter = [each for each in compared(ended) if each.matters]
    if matter and worst[1].exit_code != 1:
        return Verdict("found", f"the hosts differ in {', '.join(each.what for each in matter[:3])}", 1)
    same = sum(verdict.exit_code == worst[1].exit_code for verdict in verdicts.values())
    why = worst[1].why if worst[1].exit_code == 0 else f"{worst[0]}: {worst[1].why}"
    return Verdict(worst[1].word, f"{same} of {len(verdicts)} hosts: {why}", worst[1].exit_code, worst[1].step)


def compared(ended: Ended) -> list[Difference]:
    """In what hosts differ that should be alike, where a probe.host step has looked at them all."""
    step = next((step.id for step in ended.book.all_steps if step.kind.name == "probe.host"), None)
    documents: dict[str, Mapping[str, Any]] = {}
    for host in ended.hosts:
        result = host.past.results.get(step) if step is not None else None
        if result is not None and result.document is not None:
            documents[host.host] = result.document
    return differences(documents) if len(documents) > 1 else []
