"""A laptop for in-process tests: answers events with messages, and keeps what it was told."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import Any

GONE = {"gone": True}  # put among the messages: the link ends here


class FakeTalk:
    def __init__(self, react: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._react = react

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        for message in self._react(event) if self._react else ():
            self.messages.put(message)

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        try:
            message = self.messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if message is GONE:
            raise EOFError
        return message

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]
