"""Does the installed attention kernel compute what it should, and with what its backend tells it? Run both, and see.

`run({"site_packages": ..., "quick": ..., "gpu": ...})` calls the installed `extend_attention_fwd` with made-up verify
steps over a grid of shapes, and compares every row of every request with plain torch in float64 (`reference`). Outputs
are filled with NaN before, so a row that nobody computes shows. Then it takes the offsets that the installed backend
computes for steps of width D under a server setting S (`metadata`), runs the kernel with them, and says which rows go
wrong and through which of the offsets.

On a GPU the kernel is compiled as the server compiles it; without one, a smaller grid runs in Triton's interpreter.
A GPU that others use is left alone unless it is named.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import installed, metadata

SCHEMA = 1
FREE_MIB = 1024
"""A GPU on which less than this is in use, and no process computes, is free."""

# Per dtype of the pool: what a row may differ, relative to its norm. Rounding of the softmax's weights to that type is
# the largest part; a wrong mask bit in these steps moves a row by ten times as much.
TOLERANCE = {"float32": 1e-3, "float16": 4e-3, "bfloat16": 3e-2, "float8_e4m3fn": 0.15, "float8_e5m2": 0.3}

BATCHES, WIDTHS, PREFIXES = (1, 2, 3, 8), (1, 8, 17, 33), (0, 1, 127, 128, 4096)
HEAD_SIZES, GROUPS = ((64, 64), (128, 128), (192, 128), (576, 512)), (1, 3, 8)
DTYPES = (("float16", ""), ("bfloat16", ""), ("bfloat16", "float8_e4m3fn"))
TREES = ("chain", "tree", "padded")
MAX_LISTED = 40
MAX_DEATHS = 5
MAX_WORKERS = 6
"""Processes that share the GPU and, above all, the compiling."""

GUARD_ROWS = 64
FARTHEST = 1 << 20
"""Offsets beyond this are not tried: no memory is made that large."""


class Found(NamedTuple):
    """What was seen of one step. wrong, untouched: rows (tokens) that differ, and that were not written. died: what the
    GPU said when the kernel read or wrote where nothing is."""

    label: str
    error: float
    wrong: List[int]
    untouched: List[int]
    died: str = ""

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.untouched and not self.died


def run(args: Dict[str, Any], talk: Any = None) -> Dict[str, Any]:
    """One document. args: site_packages; quick: a small grid; gpu: its index, free or not; cpu: no GPU at all.

    Never raises for what the installed files do.
    """
    started = time.monotonic()
    site_packages = Path(args["site_packages"])
    real = args.get("real", "auto")
    gpus = [] if args.get("cpu") else visible_gpus()
    chosen, why = choose_gpu(gpus, args.get("gpu"))
    if args.get("gpu") is not None and chosen is None:
        return _refused(why)
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if chosen is None else str(chosen)
    if chosen is None:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    document: Dict[str, Any] = {"schema": SCHEMA, "gpu": chosen, "gpu_why": why, "interpreted": chosen is None}
    document.update(_version_and_file(site_packages))
    try:
        document.update(_checked(site_packages, real, document, bool(args.get("quick")), talk))
    except Exception as error:
        document.update(verdict="cannot_tell", why=metadata._said(error))
    document["seconds"] = round(time.monotonic() - started, 3)
    return document


def _refused(why: str) -> Dict[str, Any]:
    return {"error": {"kind": "precondition", "what": why, "next": "See nvidia-smi on the host."}}


# --- which GPU


class Gpu(NamedTuple):
    """number: as nvidia-smi counts them."""

    number: int
    name: str
    used_mib: int
    processes: int


def visible_gpus() -> List[Gpu]:
    """As nvidia-smi sees them; none where it does not answer within ten seconds."""
    try:
        listed = _nvidia_smi("--query-gpu=index,uuid,name,memory.used")
        busy = [line[0] for line in _nvidia_smi("--query-compute-apps=gpu_uuid")]
        return [Gpu(int(i), name, int(used), busy.count(uuid)) for i, uuid, name, used in listed]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _nvidia_smi(query: str) -> List[List[str]]:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=True).stdout
    return [[part.strip() for part in line.split(",")] for line in out.decode(errors="replace").splitlines() if line]


def choose_gpu(gpus: List[Gpu], asked: Optional[int]) -> Tuple[Optional[int], str]:
    """(index or None, why). A GPU that is in use is taken only if it was asked for."""
    if asked is not None:
        if any(gpu.number == asked for gpu in gpus):
            return asked, "GPU {} was asked for".format(asked)
        return None, "There is no GPU {}: {}.".format(
            asked, ", ".join(str(g.number) for g in gpus) or "none is visible"
        )
    if not gpus:
        return None, "no GPU is visible: the interpreter runs a smaller grid on the CPU"
    for gpu in gpus:
        if gpu.processes == 0 and gpu.used_mib < FREE_MIB:
            return gpu.number, "GPU {} ({}) is free".format(gpu.number, gpu.name)
    return None, "all {} GPUs are in use: the interpreter runs a smaller grid on the CPU".format(len(gpus))


# --- the installed files


def _ask_oracle(site_packages: Path, real: Any, start: int, say: Callable[[Dict[str, Any]], None]) -> None:
    """What the installed backend computes. There everything is interpreted, so it needs a process of its own."""
    os.environ.update(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, metadata.LIMIT_S)
    metadata._ready()
    say({"told": {"offsets": metadata.answer(site_packages, real)}})
    say({"end": True})


def _version_and_file(site_packages: Path) -> Dict[str, Any]:
    files = [installed._file_of(site_packages, name) for name in installed.EXTEND_ATTENTION]
    file = next((str(f) for f in files if f.is_file()), None)
    return {"package_version": metadata._version(site_packages), "file": file}


def arguments(function: Callable[..., Any], step: Any, out: Any) -> Dict[str, Any]:
    """The step as arguments of this release's `extend_attention_fwd`; those that it does not know are left out.

    Raises ValueError where it wants one that is not known here.
    """
    given = {
        "q_extend": step.q, "k_extend": step.k, "v_extend": step.v, "o_extend": out,
        "k_buffer": step.k_buffer, "v_buffer": step.v_buffer,
        "qo_indptr": step.qo_indptr, "kv_indptr": step.kv_indptr, "kv_indices": step.kv_indices,
        "custom_mask": step.custom_mask, "is_causal": True,
        "mask_indptr": step.mask_indptr, "mask_offsets": step.mask_indptr,
        "max_len_extend": step.max_extend_len, "k_scale": step.k_scale, "v_scale": step.v_scale,
        "sm_scale": step.sm_scale, "logit_cap": step.logit_cap,
        "skip_prefix_custom_mask": step.skip_prefix_custom_mask,
        "sliding_window_size": step.sliding_window_size, "window_kv_offsets": step.window_kv_offsets,
    }  # fmt: skip
    parameters = inspect.signature(function).parameters
    unknown = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in given]
    if unknown:
        raise ValueError("extend_attention_fwd wants {}, which is not known here".format(", ".join(unknown)))
    return {name: value for name, value in given.items() if name in parameters}


# --- the check


class _Seen:
    """One worker: what it said, over all the processes that it took."""

    def __init__(self, work: Callable[..., None], needed: bool = True) -> None:
        """work: called with the number of shapes that are done, and with what takes its lines. needed: without its
        answer there is none; else its end without one is an answer, too."""
        self.work, self.needed = work, needed
        self.found: List[Found] = []
        self.told: Dict[str, Any] = {}
        self.at = self.of = self.deaths = 0
        self.stream: Optional[BinaryIO] = None
        self._pid = 0
        self._start()

    def _start(self) -> None:
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _say_and_leave(functools.partial(self.work, self.at), writing)
        os.close(writing)
        # Unbuffered, so that select knows of every line that is there.
        self.stream = os.fdopen(reading, "rb", buffering=0)

    def take(self) -> None:
        """One line. Where the process ended instead: a new one behind the shape that killed it, or the end."""
        text = self.stream.readline() if self.stream is not None else b""
        line = json.loads(text) if text else {}
        if "error" in line and self.needed:
            raise RuntimeError(line["error"])
        if "error" in line:
            self.told["why"] = line["error"]
        if "case" in line:
            self.at, self.of = self.at + 1, line["of"]
            self.found += [Found(**line["case"])] if line["case"] is not None else []
        self.told.update(line.get("told", {}))
        if line.get("end") or (not text and not self.needed):
            self.stop()
        elif not text:
            self.stop()
            died = bool(self.found and self.found[-1].died)
            self.deaths += died
            if not died or self.deaths > MAX_DEATHS:
                raise RuntimeError("the process that runs the kernel ended without a word, in shape {}".format(self.at))
            self._start()

    def stop(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _checked(site_packages: Path, real: Any, document: Dict[str, Any], quick: bool, talk: Any) -> Dict[str, Any]:
    """What the check found, gathered from processes of their own: a kernel that reads where nothing is takes its
    process with it. Then a new one goes on behind that shape."""
    workers = 1 if document["interpreted"] else max(1, min(MAX_WORKERS, (os.cpu_count() or 1) // 2))
    common = (site_packages, real, document["interpreted"])
    # The engine's import is what takes longest, so that of the oracle's process goes on beside the others'.
    oracle = _Seen(functools.partial(_ask_oracle, site_packages, real), needed=False)
    seen = [oracle]
    seen += [_Seen(functools.partial(_work, *common, quick, part, workers)) for part in range(workers)]
    _gather(seen, talk)
    silent = {"verdict": "cannot_tell", "why": oracle.told.pop("why", "its process ended without a word")}
    offsets = oracle.told.get("offsets", silent)
    # The same file, and quicker: what is around the kernel does not matter to it.
    steps = _Seen(functools.partial(_step_work, site_packages, False, document["interpreted"], offsets))
    _gather([steps], None)
    found = [one for part in seen for one in part.found]
    told = {name: value for part in [steps, *seen] for name, value in part.told.items()}
    told["offsets"] = offsets
    tried = sum(part.at for part in seen)
    wrong = [one for one in found if not one.ok]
    return {
        **told,
        "cases": len(found),
        "skipped": tried - len(found),
        "wrong": [one._asdict() for one in wrong[:MAX_LISTED]],
        "wrong_cases": len(wrong),
        "worst": worst(found),
        **judge(len(found), len(wrong), told["steps"], offsets, shared(found)),
    }


def _gather(seen: List[_Seen], talk: Any) -> None:
    """Until every worker is through. Raises RuntimeError with what one said, or that it ended without a word."""
    try:
        _follow(seen, talk)
    finally:
        for one in seen:
            one.stop()


def _follow(seen: List[_Seen], talk: Any) -> None:
    done = 0
    while any(one.stream is not None for one in seen):
        ready, _, _ = select.select([one.stream for one in seen if one.stream is not None], [], [])
        for one in [one for one in seen if one.stream in ready]:
            before = one.at
            one.take()
            done += one.at - before
            if talk is not None and one.at > before and done % 200 == 0:
                talk.emit({"event": "progress", "done": done, "of": one.of})


def _say_and_leave(work: Callable[[Callable[[Dict[str, Any]], None]], None], writing: int) -> None:
    try:
        with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as stream:

            def say(line: Dict[str, Any]) -> None:
                stream.write(json.dumps(line) + "\n")

            try:
                work(say)
            except Exception as error:
                say({"error": metadata._said(error)})
    finally:
        os._exit(0)


def _work(
    site_packages: Path,
    real: Any,
    interpreted: bool,
    quick: bool,
    part: int,
    parts: int,
    start: int,
    say: Callable[[Dict[str, Any]], None],
) -> None:
    """A part of the grid, from its shape `start` on."""
    function, device = _ready_kernel(site_packages, real, interpreted, say)
    shapes = list(grid(device, quick, "k_scale" in inspect.signature(function).parameters))
    kinds = list(dict.fromkeys((shape.Lq, shape.dtype, shape.kv_dtype) for shape in shapes))
    mine = [s for s in shapes if kinds.index((s.Lq, s.dtype, s.kv_dtype)) % parts == part]
    for shape in mine[start:]:
        one = _kernel_case(function, shape, device)
        say({"case": None if one is None else one._asdict(), "of": len(shapes)})
        if one is not None and one.died:
            return
    say({"end": True})


def _step_work(
    site_packages: Path,
    real: Any,
    interpreted: bool,
    offsets: Dict[str, Any],
    start: int,
    say: Callable[[Dict[str, Any]], None],
) -> None:
    """The steps with the backend's own offsets."""
    needed = any(_off(case) for case in offsets.get("path_results", ()))
    steps: List[Dict[str, Any]] = []
    if needed:
        function, device = _ready_kernel(site_packages, real, interpreted, say)
        steps = list(through_offsets(function, offsets, device))
    say({"told": {"steps": steps}})
    say({"end": True})


def _ready_kernel(
    site_packages: Path, real: Any, interpreted: bool, say: Callable[[Dict[str, Any]], None]
) -> Tuple[Callable[..., Any], str]:
    import torch

    torch.set_num_threads(1)
    device = "cpu" if interpreted else "cuda"
    module, really = installed.load_extend_attention(site_packages, real)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu (Triton interpreter)"
    say({"told": {"device": name, "torch": torch.__version__, "real_import": really}})
    return module.extend_attention_fwd, device


def grid(device: str, quick: bool, fp8: bool) -> Iterator[Any]:
    """The shapes. The tree turns from case to case, so that each meets every other value."""
    from .step import Shape

    dtypes = DTYPES if fp8 else DTYPES[:2]
    axes: Tuple[Tuple[Any, ...], ...]
    if device == "cpu" and quick:
        axes = (HEAD_SIZES[:2], DTYPES[:1], (1, 3), (17,), (1, 3), (1, 40))
    elif device == "cpu":
        axes = (HEAD_SIZES, DTYPES[:1], (1, 3), (1, 17), (1, 3), (0, 1, 127))
    elif quick:
        axes = (HEAD_SIZES, dtypes, (3,), (8, 17), (1, 3), (0, 128, 4096))
    else:
        axes = (HEAD_SIZES, dtypes, GROUPS, WIDTHS, BATCHES, PREFIXES)
    # What has a kernel compiled for it comes outermost.
    for at, ((Lq, Lv), (dtype, kv_dtype), group, width, bs, prefix) in enumerate(itertools.product(*axes)):
        kv_heads = 1 if Lq > 256 else 2
        yield Shape(bs, width, prefix, group * kv_heads, kv_heads, Lq, Lv, dtype, kv_dtype, TREES[at % 3], telling=True)


def _kernel_case(function: Callable[..., Any], shape: Any, device: str) -> Optional[Found]:
    """None where this release or GPU cannot run the shape at all (its own launch refuses)."""
    from . import reference
    from .step import made_up

    step = made_up(shape, seed=shape.bs * 1009 + shape.width * 31 + shape.prefix, device=device)
    try:
        out = _called(function, step)
    except Exception as error:
        return _not_run(shape, error)
    return compared(shape.label(), out, reference.attend(step), shape.kv_dtype or shape.dtype)


def _not_run(shape: Any, error: Exception) -> Optional[Found]:
    if type(error).__name__ in ("OutOfResources", "OutOfMemoryError"):
        return None
    if "CUDA error" in str(error):
        return Found(shape.label(), 0.0, [], [], metadata._said(error))
    raise error


def _called(function: Callable[..., Any], step: Any) -> Any:
    import torch

    # Rows behind the last, too: a kernel that is told wrong may write there.
    rows = max(step.out_shape[0], int(step.qo_indptr.max())) + GUARD_ROWS
    out = torch.full((rows, *step.out_shape[1:]), float("nan"), dtype=step.q.dtype, device=step.q.device)
    out = out[: step.out_shape[0]]
    function(**arguments(function, step, out))
    if out.device.type == "cuda":
        torch.cuda.synchronize()  # what the kernel did wrong shows here, and not in the next thing that is computed
    return out


def compared(label: str, out: Any, want: Any, dtype: str) -> Found:
    """Row by row: the largest error of any of its heads, relative to that head's norm."""
    import torch

    got = out.double()
    untouched = torch.isnan(got).all(dim=-1).any(dim=-1)
    error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-6)
    error = torch.where(torch.isnan(error), torch.full_like(error, float("inf")), error).amax(dim=-1)
    wrong = (error > TOLERANCE[dtype]) & ~untouched
    seen = error[~untouched]
    worst_error = float(seen.max()) if seen.numel() else 0.0
    return Found(label, worst_error, _listed(wrong), _listed(untouched))


def _listed(rows: Any) -> List[int]:
    return [int(i) for i in rows.nonzero().flatten().tolist()]


def worst(found: List[Found]) -> Dict[str, float]:
    """Largest error by dtype of q and of the pool, over the rows that are right or wrong, not those left out."""
    out: Dict[str, float] = {}
    for one in found:
        kind = ", ".join(one.label.split(", ")[4:-1])
        out[kind] = max(out.get(kind, 0.0), one.error if one.error != float("inf") else 1e9)
    return out


def shared(found: List[Found]) -> str:
    """What all wrong shapes have in common and not all right ones: where to look. Empty if there is nothing."""
    wrong = [_traits(one.label) for one in found if not one.ok]
    right = [_traits(one.label) for one in found if one.ok]
    if not wrong:
        return ""
    alike = [
        trait for trait in wrong[0] if all(trait in one for one in wrong) and not all(trait in one for one in right)
    ]
    if not alike:
        return ""
    such = len(wrong) + sum(all(trait in one for trait in alike) for one in right)
    return "All of them: {}; {} of {} such shapes are wrong.".format(", ".join(alike), len(wrong), such)


def _traits(label: str) -> List[str]:
    """The parts of a shape's label, the number of heads apart from their size."""
    parts = []
    for part in label.split(", "):
        count, of, size = part.partition(" heads of ")
        parts += ["{} heads".format(count), "heads of {}".format(size)] if of else [part]
    return parts


# --- with the offsets that the installed backend computes

FIELDS = ("qo_indptr", "kv_indptr", "kv_indices", "mask_indptr", "max_extend_len")


def through_offsets(function: Callable[..., Any], offsets: Dict[str, Any], device: str) -> Iterator[Dict[str, Any]]:
    """For each case in which the backend's offsets are not what they should be: which rows the kernel gets wrong by
    them, and which of the offsets, put right alone, mend how many."""
    for case in offsets.get("path_results", ()):
        off = _off(case)
        if off:
            yield dict(step_through(function, case, off, device), path=case["path"])


def _off(case: Dict[str, Any]) -> List[str]:
    fields = case.get("fields") or {}
    return [name for name in FIELDS if name in fields and not fields[name]["ok"]]


def step_through(function: Callable[..., Any], case: Dict[str, Any], off: List[str], device: str) -> Dict[str, Any]:
    """One such case. alone: rows that go wrong if this offset alone is as the backend computed it."""
    from . import reference

    right = _step_of(case, (), device)
    want = reference.attend(right)
    label = "bs {}, D {}, S {}".format(case["bs"], case["D"], case["S"])
    found = compared(label, _called(function, _step_of(case, tuple(off), device)), want, "float16")
    alone = {}
    for name in off:
        one = compared(label, _called(function, _step_of(case, (name,), device)), want, "float16")
        alone[name] = len(one.wrong) + len(one.untouched)
    return {
        "bs": case["bs"], "S": case["S"], "D": case["D"], "rows": case["bs"] * case["D"], "off": off,
        "wrong": found.wrong, "untouched": found.untouched, "alone": alone, "cells": _audited(case, right),
    }  # fmt: skip


def _step_of(case: Dict[str, Any], wrong: Tuple[str, ...], device: str) -> Any:
    """The verify step of an oracle's case, with the offsets in `wrong` as the backend computed them."""
    import torch

    from .step import Shape, made_up

    prefix_lens = list(metadata.PREFIX_LENS[: case["bs"]])
    step = made_up(Shape(case["bs"], case["D"], 0, 4, 2, 64, 64, telling=True), 7, device, prefix_lens)
    given: Dict[str, Any] = {}
    for name in wrong:
        if name == "max_extend_len":
            given[name] = int(case["fields"][name]["got"] or 0)
        elif name == "kv_indices":
            # Slots of the oracle's page table; here what matters is which entries are not the right ones.
            got, want = case["fields"][name]["got"], case["fields"][name]["want"]
            at = {slot: i for i, slot in enumerate(want)}
            mine = step.kv_indices.tolist()
            given[name] = torch.tensor([mine[at[s]] if s in at else 0 for s in got], device=device)
        else:
            given[name] = torch.tensor(case["fields"][name]["got"], dtype=torch.int64, device=device)
    return _with_room(step, given)


def _with_room(step: Any, given: Dict[str, Any]) -> Any:
    """The step with these offsets, in memory that covers where they lead. Raises ValueError where that is too far."""
    from .step import roomy

    step = step._replace(**given)
    qo, kv, starts = (x.tolist() for x in (step.qo_indptr, step.kv_indptr, step.mask_indptr))
    if min(qo + kv + starts) < 0 or max(qo + kv + starts) > FARTHEST or qo != sorted(qo) or kv != sorted(kv):
        raise ValueError("offsets that lead anywhere: not run")
    widest, longest = (max(b - a for a, b in itertools.pairwise(x)) for x in (qo, kv))
    cells = max(starts) + (widest + 1) * (longest + widest)
    return roomy(step, max(qo) + GUARD_ROWS, cells, max(kv) + GUARD_ROWS)


def _audited(case: Dict[str, Any], right: Any) -> Dict[str, int]:
    """What mask_audit counts for these offsets: sums over all rows."""
    import torch

    from . import mask_audit

    device = right.q.device
    lens = torch.tensor(metadata.PREFIX_LENS[: case["bs"]], device=device)
    fields = case["fields"]
    covers = -(-int(fields["max_extend_len"]["got"] or case["D"]) // 64) * 64
    should = mask_audit.Offsets(lens, right.qo_indptr, right.mask_indptr, 1 << 20)
    starts = [int(x) for x in fields["mask_indptr"]["got"]][: case["bs"]]
    computed = mask_audit.Offsets(
        lens,
        torch.tensor(fields["qo_indptr"]["got"], device=device),
        torch.tensor(starts, device=device),
        covers,
    )
    found = mask_audit.audit(right.custom_mask, computed, should)
    return {name: int(value.sum()) for name, value in zip(mask_audit.Audit._fields, found)}


def judge(
    cases: int, wrong: int, through: List[Dict[str, Any]], offsets: Dict[str, Any], alike: str = ""
) -> Dict[str, Any]:
    """verdict: right, wrong or cannot_tell; why: a sentence for the kernel, with what its wrong shapes share, and one
    for what it is told. Pure."""
    if not cases:
        return {"verdict": "cannot_tell", "why": "No shape could be run."}
    kernel = (
        "The kernel is right in all {} shapes.".format(cases)
        if not wrong
        else "The kernel itself is wrong in {} of {} shapes. {}".format(wrong, cases, alike).rstrip()
    )
    harmed = [one for one in through if one["wrong"] or one["untouched"]]
    told = offsets.get("verdict")
    if harmed:
        names = sorted({name for one in harmed for name, rows in one["alone"].items() if rows})
        told_why = "Told by the installed backend it is wrong in {} verify steps, through {}.".format(
            len(harmed), ", ".join(names) or "several offsets at once"
        )
    elif told == "right":
        told_why = "The installed backend tells it the right offsets."
    elif through:
        told_why = "The offsets that the installed backend gets wrong change no row here."
    else:
        told_why = "What the installed backend tells it could not be found out: {}".format(offsets.get("why", ""))
    verdict = "wrong" if wrong or harmed else "right" if told == "right" or through else "cannot_tell"
    return {"verdict": verdict, "why": "{} {}".format(kernel, told_why)}


def main() -> None:
    args = {"site_packages": sys.argv[1], "quick": "--quick" in sys.argv, "cpu": "--cpu" in sys.argv}
    print(json.dumps(run(args), indent=1))


if __name__ == "__main__":
    main()
