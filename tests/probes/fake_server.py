"""A stand-in for an inference server: answers /health on the given port, and has workers as nasty as asked.

    fake_server.py PORT [--workers N] [--name NAME] [--die CODE] [--unhealthy] [--flood BYTES] [--api-key KEY]
                   [--after FILE]

PORT "-": told on standard input. FILE: what it waits for, as an engine that loads its model does, before it listens.
SIGUSR1 ends it with exit code 7. A worker double-forks into a session of its own, ignores TERM, HUP and INT,
renames itself and overwrites its environment and command line as setproctitle does, and prints its pid.
"""

from __future__ import annotations

import argparse
import ctypes
import http.server
import os
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_NAME = 15


def rename(name: str) -> None:
    """What setproctitle does on Linux: new comm, and argv and environ in memory are overwritten."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    field = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(field[45]), int(field[48])  # arg_start, env_end
    title = name.encode().ljust(end - start, b"\0")[: end - start]
    ctypes.memmove(start, title, len(title))


def say(line: str) -> None:
    """One write a line: several processes share the pipe, and unbuffered `print` would write the end apart."""
    os.write(1, f"{line}\n".encode())


def nasty_worker(name: str) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    say(f"worker {os.getpid()}")
    rename(name)
    while True:
        time.sleep(0.1)


class Handler(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=lambda word: int(input() if word == "-" else word))
    parser.add_argument("--die", type=int)
    parser.add_argument("--unhealthy", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--name", default="sglang::scheduler")
    parser.add_argument("--flood", type=int, default=0, help="bytes to print before serving")
    parser.add_argument("--api-key")
    parser.add_argument("--after", type=Path)
    args = parser.parse_args()
    say(f"args {args}")
    for _ in range(args.workers):
        nasty_worker(args.name)
    for at in range(args.flood // 100):
        say(f"{at:099d}")
    if args.die is not None:
        say("Traceback: \x1b[31mno such \x07 device")
        sys.exit(args.die)
    while args.after is not None and not args.after.exists():
        time.sleep(0.01)
    Handler.status = 503 if args.unhealthy else 200
    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    say("serving")
    threading.Thread(target=server.serve_forever).start()
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
