"""The check of the installed kernel: on real releases and on spoiled copies of them, in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("the lab extra is not installed", allow_module_level=True)

import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jsonschema import Draft202012Validator

from diag import kernel_check
from diag.hosts import courier
from diag.hosts.inventory import LOCAL, Host
from diag.hosts.transport import connect
from diag.report import kernels as report
from diag.source import wheels
from kernels import differential, installed, metadata
from kernels.differential import Found, Gpu
from kernels.step import Shape

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SMALL = (Shape(1, 17, 1, 6, 2, 64, 64, "float16", telling=True), Shape(3, 5, 20, 2, 2, 64, 64, "float16", telling=True))


def unpacked(version: str, folder: Path) -> Path:
    """Of that release's wheel: the kernel, the backend, and what they compute with."""
    names = (*installed.REAL_MODULES, *installed.EXTEND_ATTENTION, *installed.BESIDE_EXTEND_ATTENTION)
    wanted = {name.replace(".", "/") + ".py" for name in names}
    with zipfile.ZipFile(wheels.fetch("sglang", version)) as archive:
        for name in archive.namelist():
            if name in wanted or name.endswith(".dist-info/METADATA"):
                archive.extract(name, folder)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shapes, and of the oracle's settings those of the story. The check's processes are forked, and see it."""
    monkeypatch.setattr(differential, "grid", lambda *args: iter(SMALL))
    monkeypatch.setattr(metadata, "SETTINGS", ((8, 8), (8, 17)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def check(folder: Path) -> dict[str, Any]:
    return json.loads(json.dumps(differential.run({"site_packages": str(folder), "real": False, "cpu": True})))


@pytest.mark.wheel
def test_a_release_with_the_fault(tmp_path: Path, small: None) -> None:
    seen = check(unpacked("0.5.12", tmp_path))
    assert (seen["verdict"], seen["package_version"], seen["cases"], seen["wrong_cases"]) == ("wrong", "0.5.12", 2, 0)
    assert "mask_indptr, qo_indptr" in seen["why"]
    one, two = (next(s for s in seen["steps"] if s["path"] == "eager" and s["bs"] == bs) for bs in (1, 2))
    # Nine rows of one request are never computed; of two requests the second is misread besides.
    assert one["untouched"] == list(range(8, 17))
    assert one["cells"]["not_computed"] == 9
    assert "mask_indptr" not in one["off"]
    assert two["alone"]["mask_indptr"] == 17
    schema = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "probe-kernels.json"
    Draft202012Validator(json.loads(schema.read_text())).validate(report.document(kernel_check.answer("here", seen)))
    page = [line for _, line in report.page(kernel_check.answer("here", seen))]
    assert page[0] == "sglang 0.5.12, extend_attention_fwd: WRONG"
    assert any(line.split()[:6] == ["eager", "1", "8", "17", "7", "of"] for line in page)


@pytest.mark.wheel
def test_a_release_whose_kernel_asks_its_neighbour_for_strides(tmp_path: Path, small: None) -> None:
    """0.5.13 to 0.5.15, where the neighbour was still in the old place."""
    seen = check(unpacked("0.5.13", tmp_path))
    assert (seen["verdict"], seen["cases"], seen["wrong_cases"]) == ("wrong", 2, 0)


@pytest.mark.wheel
@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
def test_a_mended_release_in_its_new_place(version: str, tmp_path: Path, small: None) -> None:
    seen = check(unpacked(version, tmp_path))
    assert seen["verdict"] == "right", seen["why"]
    assert "kernels/ops/attention" in seen["file"]
    assert seen["steps"] == []


MASK_READ = "                + cur_seq_len_prefix\n                + start_n"
IN_TREE = "mask_m = (cur_block_m * BLOCK_M + offs_m) < cur_seq_len_extend"
SPOILED = {
    "the mask is read a row too far on": (MASK_READ, "                + start_n"),
    "the scale is forgotten": ("            qk *= sm_scale * k_scale\n", "            qk *= k_scale\n"),
    "the last rows are left out": (IN_TREE, f"{IN_TREE} - 1"),
}


@pytest.mark.wheel
@pytest.mark.parametrize("what", SPOILED)
def test_a_kernel_that_is_wrong_by_itself(
    what: str, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "SETTINGS", ((8, 8),))  # the backend's own fault is not what is looked for
    folder = unpacked("0.5.12", tmp_path)
    file = folder / (installed.EXTEND_ATTENTION[0].replace(".", "/") + ".py")
    old, new = SPOILED[what]
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    seen = check(folder)
    assert seen["verdict"] == "wrong"
    assert seen["wrong_cases"] == 2
    if what == "the last rows are left out":
        assert seen["wrong"][0]["untouched"] == [16]
    lines = [line for _, line in report.page(kernel_check.answer("here", seen))]
    assert any("bs 3, D 5" in line for line in lines)


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.write_text("import nothing_of_that_name\n"), "nothing_of_that_name"),
        (lambda file: file.write_text("def extend_attention_fwd(q_extend, novelty): pass\n"), "novelty"),
        (lambda file: file.unlink(), "extend_attention.py: not in"),
        (lambda file: file.write_text("import os\nos._exit(3)\n"), "ended without a word"),
    ],
    ids=["does not import", "wants more", "is not there", "ends its process"],
)
def test_a_file_that_cannot_be_run_is_no_verdict(
    spoil: Callable[[Path], object], why: str, tmp_path: Path, small: None
) -> None:
    folder = unpacked("0.5.12", tmp_path)
    spoil(folder / (installed.EXTEND_ATTENTION[0].replace(".", "/") + ".py"))
    seen = check(folder)
    assert seen["verdict"] == "cannot_tell"
    assert why in seen["why"]
    assert kernel_check.answer("here", seen).exit_code == 3


@pytest.mark.wheel
def test_over_the_courier_nothing_of_ours_is_on_its_path(tmp_path: Path) -> None:
    """The kernels travel in memory; Triton compiles them all the same. A GPU that is not there is refused."""
    folder = unpacked("0.5.17", tmp_path)
    with connect(Host(name="here", address=LOCAL)) as transport:
        from diag.errors import PreconditionFailed

        args = {"site_packages": str(folder), "real": False, "gpu": 93}
        with pytest.raises(PreconditionFailed, match="There is no GPU 93"):
            courier.call(transport, "kernels.differential", args, python=sys.executable, timeout_s=60)


# --- injected faults of the offsets


def made(wrong: dict[str, Any], bs: int, width: int) -> dict[str, Any]:
    """A case as the oracle tells it, with these offsets in place of the right ones."""
    from kernels import builder

    rows, lens = list(metadata.ROWS[:bs]), list(metadata.PREFIX_LENS[:bs])
    want = builder.wanted(builder.Batch(lens, rows, width))
    got = {**want, **{name: change(want[name]) for name, change in wrong.items()}}
    fields = {name: {"ok": got[name] == want[name], "got": got[name], "want": want[name]} for name in want}
    return {"path": "eager", "bs": bs, "S": 8, "D": width, "fields": fields}


def of_eight(bs: int, width: int) -> dict[str, Any]:
    from kernels import builder

    batch = builder.Batch(list(metadata.PREFIX_LENS[:bs]), list(metadata.ROWS[:bs]), 8)
    return {name: lambda _, value=value: value for name, value in builder.wanted(batch).items()}


INJECTED: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "everything from the server's count": lambda bs, width: of_eight(bs, width),
    "mask_indptr from the server's count": lambda bs, width: {"mask_indptr": of_eight(bs, width)["mask_indptr"]},
    "mask_indptr one cell on": lambda bs, width: {"mask_indptr": lambda starts: [s + 1 for s in starts]},
    "mask_indptr without the tree's own square": lambda bs, width: {
        "mask_indptr": lambda starts: [s - i * width * width for i, s in enumerate(starts)]
    },
    "qo_indptr from the server's count": lambda bs, width: {"qo_indptr": of_eight(bs, width)["qo_indptr"]},
    "a prefix one token short": lambda bs, width: {"kv_indptr": lambda at: [*at[:-1], at[-1] - 1]},
    "slots in another order": lambda bs, width: {"kv_indices": lambda slots: slots[1:] + slots[:1]},
}
SILENT_ALONE = {"mask_indptr from the server's count", "mask_indptr without the tree's own square"}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    folder = unpacked("0.5.12", tmp_path_factory.mktemp("release"))
    try:
        return installed.load_extend_attention(folder, False)[0].extend_attention_fwd
    finally:
        installed._forget_engine()


@pytest.mark.wheel
@pytest.mark.parametrize("what", INJECTED)
def test_every_injected_fault_is_found(what: str, kernel: Callable[..., Any]) -> None:
    found = {}
    for bs in (1, 2):
        case = made(INJECTED[what](bs, 17), bs, 17)
        off = differential._off(case)
        step = differential.step_through(kernel, case, off, "cpu") if off else {"wrong": [], "untouched": []}
        found[bs] = bool(step["wrong"] or step["untouched"])
    if what == "slots in another order":
        # The sum over a prefix does not depend on the order of its tokens; across two requests it does.
        assert found == {1: False, 2: True}
    else:
        assert found == {1: what not in SILENT_ALONE, 2: True}


# --- pure


A, B, C = Gpu(0, "H200", 90_000, 2), Gpu(1, "H200", 3, 0), Gpu(2, "H200", 20_000, 0)


@pytest.mark.parametrize(
    ("gpus", "asked", "chosen"),
    [([A, B, C], None, 1), ([A, C], None, None), ([], None, None), ([A, B], 0, 0), ([A], 5, None), ([C], None, None)],
)
def test_a_gpu_in_use_is_taken_only_if_it_is_named(gpus: list[Gpu], asked: int | None, chosen: int | None) -> None:
    index, why = differential.choose_gpu(gpus, asked)
    assert index == chosen
    assert why


def test_gpus_as_nvidia_smi_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $1 in *index*) echo '0, GPU-a, NVIDIA H200, 81000'; echo '1, GPU-b, NVIDIA H200, 4';;"
        " *) echo GPU-a; echo GPU-a;; esac\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert differential.visible_gpus() == [Gpu(0, "NVIDIA H200", 81000, 2), Gpu(1, "NVIDIA H200", 4, 0)]
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert differential.visible_gpus() == []


def test_a_row_is_wrong_by_its_worst_head() -> None:
    want = torch.ones(3, 2, 4, dtype=torch.float64)
    out = want.to(torch.float16)
    out[1, 1] = 2
    out[2, 0] = float("nan")
    found = differential.compared("x", out, want, "float16")
    assert (found.wrong, found.untouched) == ([1], [2])
    assert found.error == 1
    assert differential.worst([Found("bs 1, D 1, prefix 0, 2/2 heads of 4, float16, tree", 0.5, [], [])]) == {
        "float16": 0.5
    }


@pytest.mark.parametrize(
    ("cases", "wrong", "harmed", "told", "verdict"),
    [
        (0, 0, False, "right", "cannot_tell"),
        (9, 0, False, "right", "right"),
        (9, 1, False, "right", "wrong"),
        (9, 0, True, "wrong", "wrong"),
        (9, 0, False, "cannot_tell", "cannot_tell"),
    ],
)
def test_judge(cases: int, wrong: int, harmed: bool, told: str, verdict: str) -> None:
    step = {"wrong": [1], "untouched": [], "alone": {"qo_indptr": 1}}
    assert differential.judge(cases, wrong, [step] if harmed else [], {"verdict": told})["verdict"] == verdict


class Scripted:
    """A worker that is killed in its second shape, as by a kernel that reads where nothing is."""

    def __call__(self, start: int, say: Callable[[dict[str, Any]], None]) -> None:
        for at in range(start, 4):
            died = "CUDA error: an illegal memory access" if at == 1 else ""
            say({"case": Found(f"shape {at}", 0.0, [], [], died)._asdict(), "of": 4})
            if died:
                os.kill(os.getpid(), signal.SIGKILL)
        say({"end": True})


def test_a_worker_that_dies_goes_on_behind_the_shape() -> None:
    worker = differential._Seen(Scripted())
    differential._gather([worker], None)
    assert [one.label for one in worker.found] == [f"shape {at}" for at in range(4)]
    assert [one.ok for one in worker.found] == [True, False, True, True]


def test_a_worker_that_ends_without_a_word_is_no_verdict() -> None:
    def silent(start: int, say: Callable[[dict[str, Any]], None]) -> None:
        os._exit(0)

    with pytest.raises(RuntimeError, match="ended without a word"):
        differential._gather([differential._Seen(silent)], None)
    optional = differential._Seen(silent, needed=False)
    differential._gather([optional], None)
    assert optional.told == {}


def test_what_the_wrong_shapes_share_is_said() -> None:
    """Of three properties that all wrong shapes have, the one that every right shape has too says nothing."""
    wrong = [Shape(bs, 8, 0, 4, 2, 192, 128, "bfloat16", "float8_e4m3fn").label() for bs in (1, 3)]
    right = [
        Shape(1, 8, 0, 4, 2, 192, 128, "bfloat16").label(),
        Shape(1, 8, 0, 4, 2, 64, 64, "bfloat16", "float8_e4m3fn").label(),
        Shape(2, 8, 0, 4, 2, 192, 128, "bfloat16", "float8_e4m3fn").label(),
    ]
    found = [Found(label, 1.0, [0], []) for label in wrong] + [Found(label, 0.0, [], []) for label in right]
    said = differential.shared(found)
    assert said == "All of them: heads of 192/128, kv float8_e4m3fn; 2 of 3 such shapes are wrong."
    assert said in differential.judge(5, 2, [], {"verdict": "right"}, said)["why"]


def test_shapes_that_share_nothing_are_not_said_to() -> None:
    found = [Found(Shape(1, 8, 0).label(), 1.0, [0], []), Found(Shape(2, 9, 1, 3, 1, 32, 32).label(), 1.0, [0], [])]
    assert differential.shared(found) == ""
    assert differential.shared([Found("bs 1", 0.0, [], [])]) == ""
