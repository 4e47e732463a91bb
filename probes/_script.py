"""Requests that are known before the server is: asked in order, where the laptop cannot ask itself.

A script is a list of groups; the requests of a group are under way at the same time. Of a request: id, method, path,
body, `only` (a reference that must be there, else it is left out) and `unless` (references that must not be there, or
be false, null, empty). In a body, {"$": OP, "of": [...]} stands for
what earlier answers hold, each a reference [id, dotted path]; `*` in a path is each item of a list:

    ids     their lists, one after another          start   the length of them all less one, and not below 0
    value   the first one's value
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

Json = Dict[str, Any]

REQUEST_TIMEOUT_S = 300.0
MOST_BYTES = 16 << 20
"""Of one answer; what is beyond that is cut off, and then it is no JSON."""


class Missing(Exception):
    """A reference to something that no answer holds."""


class Asker:
    """Asks the server at `port` of this machine. `stopped` ends it before the next request."""

    def __init__(self, port: int, stopped: threading.Event) -> None:
        self._port = port
        self._stopped = stopped
        self._documents: Dict[str, Any] = {}

    def ask(self, groups: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> List[Json]:
        """groups: [{say, at_once, requests}] -> in order, what came of each request that could be made: {id, method,
        path, body, status, text, seconds}; with {error} in the place of status and text where nothing came."""
        done: List[Json] = []
        for group in groups:
            say(str(group.get("say") or ""))
            requests = [made for each in group["requests"] for made in self._made(each)]
            if not requests or self._stopped.is_set():
                continue
            with ThreadPoolExecutor(max(1, min(len(requests), int(group.get("at_once") or 1)))) as pool:
                done += list(pool.map(self._asked, requests))
        return done

    def _made(self, request: Mapping[str, Any]) -> List[Json]:
        """Filled in; [] where what it needs is not there."""
        try:
            if request.get("only"):
                self._look(request["only"])
            if any(self._is_set(reference) for reference in request.get("unless") or []):
                return []
            return [dict(request, body=self._filled(request.get("body")))]
        except Missing:
            return []

    def _is_set(self, reference: Any) -> bool:
        with contextlib.suppress(Missing):
            return bool(self._look(reference))
        return False

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict) and "$" in value:
            return self._worked_out(value["$"], value["of"])
        if isinstance(value, dict):
            return {name: self._filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        return value

    def _worked_out(self, what: str, references: Sequence[Any]) -> Any:
        found = [self._look(reference) for reference in references]
        if what == "value":
            return found[0]
        if not all(isinstance(each, list) and each for each in found):
            raise Missing
        ids = [token for each in found for token in each]
        return ids if what == "ids" else max(len(ids) - 1, 0)

    def _look(self, reference: Any) -> Any:
        name, path = reference
        return looked_up(self._documents.get(name), path.split(".") if path else [])

    def _asked(self, request: Json) -> Json:
        begun = time.monotonic()
        told: Json = {name: request.get(name) for name in ("id", "method", "path", "body")}
        try:
            status, text = self._exchange(request)
        except (OSError, http.client.HTTPException) as error:
            return dict(told, error=str(error) or type(error).__name__, seconds=_since(begun))
        with contextlib.suppress(ValueError):
            self._documents[request["id"]] = json.loads(text) if status == 200 else None
        return dict(told, status=status, text=text, seconds=_since(begun))

    def _exchange(self, request: Json) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_TIMEOUT_S)
        with contextlib.closing(link):
            body: Optional[bytes] = None if request["body"] is None else json.dumps(request["body"]).encode("utf-8")
            link.request(request["method"], request["path"], body, {"Content-Type": "application/json"})
            answer = link.getresponse()
            return answer.status, answer.read(MOST_BYTES).decode("utf-8", "replace")


def looked_up(document: Any, path: Sequence[str]) -> Any:
    """The value at a path into JSON. Raises Missing where there is none, or null."""
    for at, part in enumerate(path):
        if part == "*":
            items = document if isinstance(document, list) else []
            return [looked_up(item, path[at + 1 :]) for item in items]
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            raise Missing
    if document is None:
        raise Missing
    return document


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 3)
