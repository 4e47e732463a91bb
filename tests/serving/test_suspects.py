"""From a start line to a plan of the usual suspects, spelt as this version of the engine spells them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.bisect import plan
from diag.errors import UsageError
from diag.lab import control
from diag.lab.engine import args, args_vllm
from diag.lab.layout import Lab
from diag.serving.suspects import HIDDEN, engines, plan_text, spellings, suspects, table

SGLANG = "/venv/bin/python -m sglang.launch_server --model-path /models/m --port 30000"
VLLM = "/venv/bin/python /venv/bin/vllm serve /models/m --port 8000"


def factors(engine: str, version: str | None, line: str) -> dict[str, tuple[str, str, object, object]]:
    found = suspects(engine, version, shlex.split(line))
    return {f.name: (f.how, f.words, f.good, f.bad) for f in found.factors}


def loaded(text: str, folder: Path) -> plan.Plan:
    file = folder / "suspects.yaml"
    file.write_text(text)
    return plan.load(str(file))


def test_what_is_on_by_default_can_be_switched_off() -> None:
    found = factors("sglang", "0.5.12", SGLANG)
    assert found["cuda_graph"] == ("switch_off", "--disable-cuda-graph", False, True)
    assert found["radix_cache"] == ("switch_off", "--disable-radix-cache", False, True)
    assert found["attention_backend"] == ("switch", "--attention-backend triton", True, False)


def test_what_the_line_switched_off_is_no_suspect() -> None:
    found = suspects("sglang", "0.5.12", shlex.split(f"{SGLANG} --disable-radix-cache"))
    assert "radix_cache" not in [f.name for f in found.factors]
    assert ("radix_cache", "the line has --disable-radix-cache") in found.left_out
    assert "--disable-radix-cache" in found.command


def test_flags_that_belong_together_go_together() -> None:
    line = f"{SGLANG} --speculative-algorithm EAGLE --mem-fraction-static 0.8 --speculative-num-steps=3"
    found = suspects("sglang", "0.5.12", shlex.split(line))
    words = next(f for f in found.factors if f.name == "speculation").words
    assert words == "--speculative-algorithm EAGLE --speculative-num-steps=3"
    assert found.command[-6:] == ("--mem-fraction-static", "0.8", "--host", "127.0.0.1", "--port", "{port}")


def test_a_level_of_the_line_is_the_failing_one() -> None:
    found = factors("sglang", "0.5.12", f"{SGLANG} --attention-backend fa3 --chunked-prefill-size 4096")
    assert found["attention_backend"] == ("flag", "--attention-backend", "triton", "fa3")
    assert found["chunked_prefill"] == ("flag", "--chunked-prefill-size", -1, 4096)
    assert "attention_backend" not in factors("sglang", "0.5.12", f"{SGLANG} --attention-backend triton")


def test_the_spelling_is_that_of_the_version() -> None:
    assert factors("sglang", "0.5.14", SGLANG)["cuda_graph"][1] == "--cuda-graph-backend-decode disabled"
    assert factors("vllm", "0.11.0", VLLM)["cuda_graph"][1] == "--compilation-config.cudagraph_mode=NONE"
    assert "cuda_graph" not in factors("vllm", "0.9.2", VLLM)
    assert "async_scheduling" not in factors("vllm", "0.13.0", VLLM)
    assert factors("vllm", "0.14.0", VLLM)["async_scheduling"][1] == "--no-async-scheduling"


@pytest.mark.parametrize("version", [None, "", "nonsense", "0.1.dev1+g12345"])
def test_of_an_unknown_version_the_newest_spelling_counts(version: str | None) -> None:
    newest = [spelling.name for spelling in spellings("vllm", "99")]
    assert [spelling.name for spelling in spellings("vllm", version)] == newest


def test_a_whole_graph_configuration_in_the_line_is_left_alone() -> None:
    line = VLLM + """ -cc '{"mode": 3}'"""
    found = suspects("vllm", "0.14.0", shlex.split(line))
    assert ("cuda_graph", "the line sets -cc") in found.left_out
    assert '{"mode": 3}' in found.command


def test_the_all_reduce_is_suspect_only_where_there_is_one() -> None:
    assert "custom_all_reduce" not in factors("vllm", "0.14.0", VLLM)
    assert "custom_all_reduce" in factors("vllm", "0.14.0", f"{VLLM} --tensor_parallel_size 4")
    assert "custom_all_reduce" in factors("sglang", "0.5.12", f"{SGLANG} --tp=2")


def test_no_key_goes_into_the_plan_and_no_port_of_another_server() -> None:
    line = f"{VLLM} --api-key {HIDDEN} --hf-token {HIDDEN} --host 0.0.0.0"
    found = suspects("vllm", "0.14.0", shlex.split(line), {"HF_TOKEN": HIDDEN, "VLLM_USE_V1": "1"})
    assert found.command == (
        *("/venv/bin/python", "/venv/bin/vllm", "serve", "/models/m", "--hf-token", "{hf_token}"),
        *("--host", "127.0.0.1", "--port", "{port}"),
    )
    assert found.env == {"VLLM_USE_V1": "1"}


SPECULATIVE = """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --kv-cache-dtype fp8"""


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("sglang", SGLANG),
        (
            "sglang",
            f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-num-steps 3 --tp 8 --kv-cache-dtype fp8_e5m2",
        ),
        ("vllm", VLLM),
        ("vllm", VLLM + SPECULATIVE),
    ],
)
def test_the_text_is_a_plan_whose_failing_end_is_the_line(engine: str, line: str, tmp_path: Path) -> None:
    found = suspects(engine, None, shlex.split(line), {"A": "1: #"})
    made = loaded(plan_text(found), tmp_path)
    assert made.spec.engine == engine
    assert made.spec.env == {"A": "1: #"}
    bad = made.argv(made.space.bad, {})
    words = {word for word in shlex.split(line) if word not in ("30000", "8000")}
    assert words <= set(bad)
    assert sorted(set(bad) - words) == ["--host", "127.0.0.1", "{port}"]
    assert not {f.name for f in made.space.factors if not f.suspect}


def test_a_plan_reads_back_what_its_suspects_are_in_force(tmp_path: Path) -> None:
    found = suspects("vllm", "0.14.0", shlex.split(VLLM + SPECULATIVE))
    made = loaded(plan_text(found), tmp_path)
    info = {
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "speculative_config": {"method": "ngram"},
        "compilation_config": {"cudagraph_mode": "NONE"},
        "async_scheduling": True,
    }
    assert made.reported(info) == {
        "prefix_caching": False,
        "compilation": False,
        "kv_cache_dtype": True,
        "speculation": True,
        "cuda_graph": False,
        "async_scheduling": True,
    }


def test_an_unknown_engine_is_a_usage_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="Known ones: sglang, vllm"):
        table("tgi")


@pytest.mark.parametrize("engine", engines())
def test_no_version_has_two_spellings_of_one_suspect(engine: str) -> None:
    borders = {each for s in table(engine).suspect for each in (s.since, s.before) if each} | {"0.3", "99"}
    for version in borders:
        names = [spelling.name for spelling in spellings(engine, version)]
        assert len(names) == len(set(names)), version


WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r\x85\u2028\u2029"), max_size=12)
FLAG = st.sampled_from(["--tp", "--dtype", "-O3", "--speculative-config", "--kv_cache_dtype", "--", "-", "--a=b", "=-"])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(engines()), st.lists(WORD | FLAG, max_size=8))
def test_any_start_line_gives_a_plan(tmp_path_factory: pytest.TempPathFactory, engine: str, words: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    argv = shlex.split(VLLM if engine == "vllm" else SGLANG) + words
    made = loaded(plan_text(suspects(engine, None, argv)), folder)
    assert made.space.bad != made.space.good


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_both_ends_of_the_suspects_of_a_lab_server_are_accepted_by_it(engine: str, tmp_path: Path) -> None:
    """Of the start lines that garble: what a person would try first."""
    line = control.start_line(Lab(tmp_path / "lab"), "vllm" if engine == "vllm" else "sglang")
    found = suspects(engine, "0.14.0" if engine == "vllm" else "0.5.12", line)
    assert {"speculation", "cuda_graph"} <= {factor.name for factor in found.factors}
    made = loaded(plan_text(found), tmp_path)
    parse = args_vllm.parse if engine == "vllm" else args.parse
    for end in (made.space.good, made.space.bad):
        argv = [word.replace("{port}", "30000") for word in made.argv(end, {})]
        parse(argv[argv.index("serve") + 1 if engine == "vllm" else argv.index("sglang.launch_server") + 1 :])
