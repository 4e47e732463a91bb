"""The oracle: does the installed Triton backend compute right offsets for a verify step? Run it, and see.

`run({"site_packages": ..., "real": "auto"})` calls the installed backend's own metadata builders with made-up
batches, for a grid of server settings S and widths D of the verify step, and compares what comes back with plain
arithmetic. No server, no model, no GPU. Where D == S nothing can show and everything must be right: these cases
prove that this release is understood. The verdict is about D != S, which is what a draft tree brings.

verdict: `right`; `wrong`: some case with D != S is wrong while those with D == S are right; `cannot_tell`: this
release (or this interpreter) is not understood, and `why` says what happened.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import installed

SCHEMA = 1

# (server setting S, width D of the verify step)
SETTINGS = ((8, 8), (17, 17), (8, 17), (17, 8), (4, 5))
PREFIX_LENS = (7, 19, 3, 12)
ROWS = (2, 0, 4, 1)
PATHS = ("eager", "graph")
LIMIT_S = 60.0


def run(args: Dict[str, Any], talk: Any = None) -> Dict[str, Any]:
    """The answer for one folder, or {"results": [...]} for several, each then in a process of its own.

    args: site_packages: the folder that holds `sglang`, or a list of such folders; real: true (import the engine
    itself), "auto" (try to, else stand-ins), false (stand-ins); limit_s: for each of several; text: run this as the
    backend file, with the other files of that folder around it, instead of the one that is there (one folder only).
    Never raises for what the installed file does.
    """
    # Triton reads this when it is first imported, and torch may import it.
    if "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    given = args["site_packages"]
    real = args.get("real", "auto")
    if isinstance(given, str):
        text = args.get("text")
        return answer(Path(given), real) if text is None else _instead(Path(given), text)
    limit_s = float(args.get("limit_s", LIMIT_S))
    _ready()  # once, before the processes part
    return {"results": [_apart(functools.partial(answer, Path(folder), real), limit_s) for folder in given]}


def _instead(site_packages: Path, text: str) -> Dict[str, Any]:
    """The answer for `text` in place of the installed backend file, which is not touched."""
    with tempfile.TemporaryDirectory(prefix="diag-oracle-") as scratch:
        for module in installed.REAL_MODULES:
            name = module.replace(".", "/") + ".py"
            copy = Path(scratch, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if name == installed.BACKEND_FILE:
                copy.write_bytes(text.encode("utf-8", "surrogatepass"))
            elif (site_packages / name).is_file():
                copy.write_bytes((site_packages / name).read_bytes())
        return dict(answer(Path(scratch), False), package_version=_version(site_packages))


def answer(site_packages: Path, real: Any) -> Dict[str, Any]:
    started = time.monotonic()
    notes: List[Dict[str, Any]] = []
    document: Dict[str, Any] = {
        "schema": SCHEMA,
        "package_version": _version(site_packages),
        "file": installed.BACKEND_FILE,
        "real_import": False,
        "uses_triton": False,
        "path_results": [],
        "notes": notes,
    }
    try:
        document.update(_answer(site_packages, real, notes))
    except BaseException as error:  # the installed file may do anything, and that is then the answer
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "TimeLimit":
            raise
        document.update(_cannot_tell(_said(error)))
    document["seconds"] = round(time.monotonic() - started, 3)
    return document


def _version(site_packages: Path) -> Optional[str]:
    """From the name of the dist-info folder; None for a source tree."""
    for folder in sorted(site_packages.glob("sglang-*.dist-info")):
        return folder.name[len("sglang-") : -len(".dist-info")]
    return None


def _cannot_tell(why: str, summary: str = "") -> Dict[str, Any]:
    return {"verdict": "cannot_tell", "why": why, "summary": summary or why}


def _said(error: BaseException) -> str:
    text = "{}: {}".format(type(error).__name__, error)
    return text.splitlines()[0][:500]


def _ready() -> Optional[str]:
    """Import torch. Why that is not possible, or None."""
    try:
        import torch
    except Exception as error:
        return "torch cannot be imported by {} ({}).".format(sys.executable, _said(error))
    torch.set_num_threads(1)
    return None


def _answer(site_packages: Path, real: Any, notes: List[Dict[str, Any]]) -> Dict[str, Any]:
    file = site_packages / installed.BACKEND_FILE
    if not file.is_file():
        return _cannot_tell("{} is not in {}.".format(installed.BACKEND_FILE, site_packages))
    if not re.search(r"target_verify", file.read_text(encoding="utf-8", errors="replace"), re.IGNORECASE):
        return _cannot_tell("The backend has no target-verify step in this release: there is nothing to compute.")
    missing = _ready()
    if missing is not None:
        return _cannot_tell(missing)
    module, really = _load(site_packages, real, notes)
    results = _all_cases(module, notes)
    if installed.uses_triton() and (broken := _interpreter_error(results)) is not None:
        # Triton 3.6 beside NumPy 2.5, say: that is nothing that the installed file could help.
        notes.append({"note": "no_interpreter", "text": "Triton's interpreter does not work here: " + broken})
        os.environ["DIAG_NO_TRITON"] = "1"
        module, really = _load(site_packages, False, notes)
        results = _all_cases(module, notes)
    document = judge(results)
    document.update(path_results=results, real_import=really, uses_triton=installed.uses_triton())
    return document


def _interpreter_error(results: List[Dict[str, Any]]) -> Optional[str]:
    """What Triton's interpreter said of itself, if it failed where nothing else could."""
    errors = [str(case.get("error", "")) for case in results if case["S"] == case["D"]]
    return next((error for error in errors if error.startswith("InterpreterError")), None)


def _load(site_packages: Path, real: Any, notes: List[Dict[str, Any]]) -> Tuple[Any, bool]:
    if real is True or real == "auto":
        try:
            return installed.import_backend(site_packages), True
        except Exception as error:
            if real is True:
                raise
            notes.append({"note": "stand_ins", "text": "The engine itself cannot be imported: " + _said(error)})
    module = installed.load_backend(site_packages)
    for name, why in installed.replaced().items():
        notes.append({"note": "replaced", "text": "{} cannot be executed alone: {}".format(name, why)})
    if not installed.uses_triton():
        text = "Index kernels run in plain torch: triton is not there, or was imported before it could interpret."
        notes.append({"note": "no_triton", "text": text})
    return module, False


# --- the cases


def _all_cases(module: Any, notes: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    from . import builder

    results = []
    for setting, width in SETTINGS:
        for path in PATHS:
            try:
                made: Any = builder.Builder(module, setting)
            except Exception as error:
                made = error
            for size in range(1, len(ROWS) + 1):
                batch = builder.Batch(list(PREFIX_LENS[:size]), list(ROWS[:size]), width)
                results.append(_case(made, path, setting, batch))
            if path == "graph":
                notes.extend(_mask_buffer(made, setting, width))
    return results


def _case(made: Any, path: str, setting: int, batch: Any) -> Dict[str, Any]:
    from . import builder

    result: Dict[str, Any] = {"path": path, "bs": len(batch.rows), "S": setting, "D": batch.width, "fields": {}}
    try:
        if isinstance(made, Exception):
            raise made
        got = getattr(made, path)(batch)
    except Exception as error:
        result["error"] = _said(error)
        return result
    for name, want in builder.wanted(batch).items():
        value = got[name]
        if name == "mask_indptr" and isinstance(value, list):
            value = value[: len(want)]
        result["fields"][name] = {"ok": value == want, "got": value, "want": want}
    return result


def _mask_buffer(made: Any, setting: int, width: int) -> List[Dict[str, Any]]:
    """A note where the buffer for graph masks cannot hold the masks of a full batch near the context's end."""
    from . import builder

    cells = None if isinstance(made, Exception) else made.mask_buffer_cells()
    # The last of the context's tokens are the tree itself.
    needed = builder.MAX_BS * width * builder.CONTEXT_LEN
    if cells is None or cells >= needed:
        return []
    text = "The mask buffer of captured graphs has {} cells; {} requests of full length need {} (S={}, D={}).".format(
        cells, builder.MAX_BS, needed, setting, width
    )
    return [{"note": "mask_buffer", "S": setting, "D": width, "cells": cells, "needed": needed, "text": text}]


# --- the verdict


def judge(results: List[Dict[str, Any]]) -> Dict[str, Any]:
    """verdict, why and summary over all cases; pure."""
    doubts: List[str] = []
    faults: Dict[str, List[str]] = {}
    for path in PATHS:
        cases = [result for result in results if result["path"] == path]
        control = [case for case in cases if case["S"] == case["D"]]
        tests = [case for case in cases if case["S"] != case["D"]]
        puzzling = [case for case in control if not _is_right(case)]
        wrong = [case for case in tests if _wrong_fields(case)]
        failed = [case for case in tests if "error" in case]
        if puzzling or not control:
            doubts.append(_doubt(path, puzzling))
        elif wrong:
            faults.setdefault(_fault(wrong), []).append(path)
        elif failed:
            doubts.append("{} path: {} raises {}".format(path, _named(failed[0]), failed[0]["error"]))
    if faults:
        summary = "; ".join("{} path {}".format(" and ".join(paths), fault) for fault, paths in faults.items())
        why = "Offsets are wrong where the verify step is not as wide as the server setting, and right where it is."
        return {"verdict": "wrong", "why": why, "summary": summary + "".join("; " + doubt for doubt in doubts)}
    if doubts:
        return _cannot_tell("; ".join(doubts))
    why = "Every offset is as computed independently, for equal and for unequal widths."
    return {"verdict": "right", "why": why, "summary": "eager and graph path right, {} cases".format(len(results))}


def _is_right(case: Dict[str, Any]) -> bool:
    return "error" not in case and not _wrong_fields(case)


def _wrong_fields(case: Dict[str, Any]) -> List[str]:
    return [name for name, field in case["fields"].items() if not field["ok"]]


def _named(case: Dict[str, Any]) -> str:
    return "bs={bs} S={S} D={D}".format(**case)


def _doubt(path: str, puzzling: List[Dict[str, Any]]) -> str:
    if not puzzling:
        return "{} path: no case was run".format(path)
    first = puzzling[0]
    what = first.get("error") or "{} not as expected".format(", ".join(_wrong_fields(first)))
    text = "{} path: this release is not understood here: with equal widths ({}) already: {}"
    return text.format(path, _named(first), what)


def _fault(wrong: List[Dict[str, Any]]) -> str:
    """`from bs=1 on: qo_indptr; from bs=2 on also: mask_indptr`."""
    first: Dict[str, int] = {}
    for case in wrong:
        for name in _wrong_fields(case):
            first[name] = min(case["bs"], first.get(name, case["bs"]))
    by_size: Dict[int, List[str]] = {}
    for name in sorted(first):
        by_size.setdefault(first[name], []).append(name)
    sizes = sorted(by_size)
    return "; ".join(
        "from bs={} on{}: {}".format(size, "" if size == sizes[0] else " also", ", ".join(by_size[size]))
        for size in sizes
    )


# --- several folders


def _apart(work: Callable[[], Dict[str, Any]], limit_s: float) -> Dict[str, Any]:
    """work() in a forked process: what one file leaves in the interpreter must not change the answer on the next."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work_and_leave(work, writing, limit_s)
    os.close(writing)
    status = -1
    try:
        with os.fdopen(reading, encoding="utf-8") as stream:
            text = stream.read()
        _, status = os.waitpid(pid, 0)
    finally:
        if status == -1:  # we are told to stop
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return _nothing_came("The installed file was still running after {:g} s.".format(limit_s))
    if status != 0 or not text:
        return _nothing_came("The process that ran the installed file ended by status {}.".format(status))
    return dict(json.loads(text))


def _work_and_leave(work: Callable[[], Dict[str, Any]], writing: int, limit_s: float) -> None:
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            json.dump(work(), stream)
        status = 0
    finally:
        os._exit(status)


def _nothing_came(why: str) -> Dict[str, Any]:
    return dict(_cannot_tell(why), schema=SCHEMA, path_results=[], notes=[])
