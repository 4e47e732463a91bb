"""A real Chromium without a window, spoken to over the pipe of its developer tools; nothing is installed for it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE_S = 60.0

# It looks for the pipes at 3 and 4; copies out of the way first, since one may be where the other is to go.
_BESIDE = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@dataclass
class Browser:
    """One command at a time; what it says unasked is kept in `events`."""

    to: int
    back: int
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return dict(told["result"])
            self.events.append(told)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.back], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser says nothing")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    @contextlib.contextmanager
    def page(self, file: Path, width: int, scheme: str) -> Iterator[Page]:
        """The file as it looks at this width, in a light or a dark scheme."""
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", session, features=media)
        self.events.clear()
        self.call("Page.navigate", session, url=file.as_uri())
        self.wait_for("Page.loadEventFired")
        yield Page(self, session)
        self.call("Target.closeTarget", targetId=target)


@dataclass(frozen=True)
class Page:
    browser: Browser
    session: str

    def value(self, expression: str) -> Any:
        told = self.browser.call("Runtime.evaluate", self.session, expression=expression, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(str(told["exceptionDetails"]))
        return told["result"].get("value")

    def complaints(self) -> list[str]:
        """What a person would see in its console: logs, errors, what the content policy refused."""
        told = [event for event in self.browser.events if event.get("sessionId") == self.session]
        names = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"])[:500] for event in told if event["method"] in names]

    def requests(self) -> list[str]:
        told = [event for event in self.browser.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in told]

    def screenshot(self, to: Path) -> None:
        shot = self.browser.call("Page.captureScreenshot", self.session, captureBeyondViewport=True)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def opened(program: str, profile: Path) -> Iterator[Browser]:
    theirs, to = os.pipe()
    back, answers = os.pipe()
    command = [sys.executable, "-c", _BESIDE, str(theirs), str(answers), program, *FLAGS, f"--user-data-dir={profile}"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, pass_fds=(theirs, answers), start_new_session=True, **quiet)  # type: ignore[call-overload]
    os.close(theirs)
    os.close(answers)
    browser = Browser(to, back)
    try:
        yield browser
        with contextlib.suppress(OSError):
            browser.call("Browser.close")
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        child.wait()
        os.close(to)
        os.close(back)
