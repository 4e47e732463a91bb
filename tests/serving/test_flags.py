"""The flags that a release's parser knows, and that the table spells the suspects of a release as it does."""

from __future__ import annotations

import zipfile

import pytest

from diag.serving.flags import known_flags, knows, sources, unknown
from diag.serving.suspects import spellings
from diag.source import wheels

SGLANG = """
class ServerArgs:
    disable_radix_cache: A[bool, "help"] = False
    def add_cli_args(parser):
        parser.add_argument("--tp-size", "--tp", type=int)
        parser.add_argument(*names)
ALIASES = {"--disable-cuda-graph": "x", "not a flag": 1}
"""
VLLM = """
class CompilationConfig:
    cudagraph_mode: Mode = None
class Other:
    not_a_flag: int = 1
group.add_argument("--enable-prefix-caching", **kwargs["enable_prefix_caching"])
"""


def test_flags_of_sglang_are_added_or_made_of_fields() -> None:
    found = known_flags("sglang", [SGLANG])
    assert found == {"--disable-radix-cache", "--tp-size", "--tp", "--disable-cuda-graph"}


def test_flags_of_vllm_have_a_no_and_sections() -> None:
    found = known_flags("vllm", [VLLM])
    assert found == {"--enable-prefix-caching", "--compilation-config.cudagraph_mode"}
    assert knows(found, "--no-enable-prefix-caching")
    assert not knows(found, "--no-async-scheduling")
    assert knows(found, "--enable-*")


def test_of_several_flags_one_may_do() -> None:
    assert unknown({"--a"}, ["--a", "--b"], any_will_do=True) == []
    assert unknown({"--a"}, ["--a", "--b"], any_will_do=False) == ["--b"]
    assert unknown({"--a"}, ["--b"], any_will_do=True) == ["--b"]


@pytest.mark.lab
def test_the_release_of_the_lab_knows_every_flag_of_its_spellings() -> None:
    """Other releases: benchmarks/engines.py."""
    with zipfile.ZipFile(wheels.fetch("sglang", "0.5.12")) as wheel:
        flags = known_flags("sglang", [wheel.read(name).decode() for name in sources("sglang", wheel.namelist())])
    mine = spellings("sglang", "0.5.12")
    assert len(mine) > 10
    assert {one.name: unknown(flags, one.flags, any_will_do=bool(one.given)) for one in mine} == {
        one.name: [] for one in mine
    }
    assert "--cuda-graph-backend-decode" not in flags  # of a later spelling
