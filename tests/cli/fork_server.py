"""Runs `diag` commands in forked processes, one after the other: everything is imported once, here.

Standard input: a line of JSON a command, {"arguments": [...], "folder": "..."}. Standard output: its process id when
it has begun, and a line when it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

IMPORTED = (
    *("cli.bisect", "bisect.session", "bisect.refine", "bisect.bayesian", "report.bisect"),
    *("cli.playbook", "playbook.run", "report.playbook", "probe", "report.host", "source.inspection", "report.source"),
    *("fixes.transaction", "serving.probing", "hosts.local"),
)


def run(arguments: list[str], folder: str) -> None:
    """In `folder`, with its state there and nothing to see of it."""
    os.chdir(folder)
    os.environ.update(DIAG_STATE_DIR=f"{folder}/state", DIAG_CONFIG_DIR=f"{folder}/config")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    from diag.cli import main

    try:
        main(arguments)
    finally:
        os._exit(0)


def serve() -> None:
    for name in IMPORTED:
        importlib.import_module(f"diag.{name}")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(request["arguments"], request["folder"])
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    serve()
