"""The lab's faults: each strikes where it says, and leaves everything else as it is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from diag.lab.engine import args, faults  # noqa: E402
from diag.lab.engine.attention import RequestPlan  # noqa: E402
from diag.lab.engine.faults import BLOCK, FAULTS, NAN_LAYER, Fault  # noqa: E402


class Words:
    """A tokenizer that knows four marks."""

    def encode(self, text: str) -> list[int]:
        return [ord(text)]


def plans(*rows: int) -> list[RequestPlan]:
    made, at = [], 0
    for count in rows:
        made.append(RequestPlan(slice(at, at + count), torch.arange(3), torch.ones(count, 3, dtype=torch.bool)))
        at += count
    return made


def spans(found: list[RequestPlan]) -> list[tuple[int, int]]:
    return [(plan.rows.start, plan.rows.stop) for plan in found]


def test_no_fault_changes_nothing() -> None:
    none = Fault()
    given = plans(1, 1)
    assert none.plans(given, [5, 5], "decode") is given
    assert none.damage([1], 1, "decode") is None
    x = torch.randn(4)
    assert none.stored(x) is x
    assert not none.stale_mask()
    assert not none.swapped([[1] * 40, [2] * 40])
    assert none.reused([1] * 40) == 0
    assert not none.ends([46, 46, 46])
    assert none.detokenised([1, 2], 9) == [1, 2]
    assert none.rendered([{"content": "x"}]) is None


@pytest.mark.parametrize(
    ("fault", "rows", "positions", "stage", "wanted"),
    [
        (Fault("uninitialised-rows"), (1, 1), [9, 9], "decode", [(0, 1), (1, 1)]),
        (Fault("uninitialised-rows"), (8,), [9] * 8, "verify", [(0, 4)]),
        (Fault("uninitialised-rows"), (8,), [9] * 8, "prefill", [(0, 8)]),
        (Fault("uninitialised-rows", above=1), (1,), [9], "decode", [(0, 1)]),
        (Fault("uninitialised-rows", past=20), (1, 1), [50, 9], "decode", [(0, 1), (1, 2)]),
        (Fault("uninitialised-rows", past=20), (4, 4), [9] * 4 + [30] * 4, "verify", [(0, 4), (4, 6)]),
    ],
)
def test_rows_that_are_not_written(
    fault: Fault, rows: tuple[int, ...], positions: list[int], stage: Any, wanted: list[tuple[int, int]]
) -> None:
    found = fault.plans(plans(*rows), positions, stage)
    assert spans(found) == wanted
    assert [len(plan.mask) for plan in found] == [stop - start for start, stop in wanted]


def test_one_layer_is_no_number_from_a_position_on() -> None:
    strike = Fault("nan-layer", past=5).damage([4, 5, 6], 3, "decode")
    assert strike is not None
    out = torch.zeros(3, 2, 2)
    strike(NAN_LAYER - 1, out)
    assert not out.isnan().any()
    strike(NAN_LAYER, out)
    assert out.isnan().flatten(1).all(dim=1).tolist() == [False, True, True]
    assert Fault("nan-layer").damage([4], 1, "prefill") is None
    assert Fault("nan-layer", above=2).damage([4], 2, "decode") is None


def test_a_block_of_two_requests_changes_hands() -> None:
    one, other = list(range(100, 140)), list(range(200, 230))
    assert Fault("swapped-block").swapped([one, other])
    assert [at for at, slot in enumerate(one) if slot >= 200] == list(range(29 - BLOCK, 29))
    assert sorted(one + other) == [*range(100, 140), *range(200, 230)]
    assert not Fault("swapped-block").swapped([one])


class Pool:
    """What the fault needs of a model: keys and values by slot."""

    def __init__(self) -> None:
        self.keys = torch.arange(64.0).reshape(1, 64, 1, 1).clone()
        self.values = -self.keys

    def take(self, slots: list[int]) -> Any:
        return self.keys[:, slots].clone(), self.values[:, slots].clone()

    def put(self, slots: list[int], keys: Any, values: Any) -> None:
        self.keys[:, slots], self.values[:, slots] = keys, values


def test_a_stale_prefix_is_another_prompts() -> None:
    pool: Any = Pool()
    fault = Fault("stale-prefix")
    assert fault.reused([1] * 40) == 0
    fault.keep(pool, [1, 1, 1, 1, *[7] * 30], list(range(34)))
    assert fault.reused([2] * 40) == 0
    assert fault.reused([1, 1, 1, 1, *[9] * 14]) == 16
    fault.restore(pool, list(range(40, 56)))
    assert pool.keys[0, 40:56, 0, 0].tolist() == list(range(16))
    assert pool.values[0, 40, 0, 0] == 0


def test_text_template_end_and_dtype() -> None:
    assert Fault("detokeniser").detokenised([1, 8], 9) == [2, 8]
    assert "[INST] hi [/INST]" in (Fault("wrong-template").rendered([{"role": "user", "content": "hi"}]) or "")
    ends = faults.draw("early-end", 1.0, 0, 0, Words())
    assert ends.ends([5, 5, ord(".")])
    assert not ends.ends([ord(".")])
    x = torch.tensor([1.0, 1.1, 300.0])
    assert Fault("wrong-dtype").stored(x).tolist() == [1.0, 1.0, 320.0]


def test_it_is_drawn_by_chance() -> None:
    assert faults.draw("nan-layer", 0.0, 0, 0, Words()).name == ""
    assert faults.draw("nan-layer", 1.0, 2, 3, Words()) == Fault(
        "nan-layer", 2, 3, faults.draw("nan-layer", 1, 0, 0, Words()).stop_ids
    )
    assert faults.draw("", 1.0, 0, 0, Words()).name == ""


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_a_flag(name: str) -> None:
    assert args.parse(["--model-path", "m", "--lab-fault", name, "--lab-fault-past", "4"]).lab_fault == name


@pytest.mark.parametrize("flags", [("--lab-fault", "unheard-of"), ("--lab-fault-chance", "1.5")])
def test_other_values_are_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        args.parse(["--model-path", "m", *flags])
    assert refused.value.code == 2
