"""Jobs of a queue without one: the batch script, lists of nodes, and what a result says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag import bundle
from diag.bisect.slurm import batch, executor, jobs
from diag.bisect.slurm.batch import Options
from diag.errors import JobFailed, UsageError

_jobfiles = bundle.load("probes._jobfiles")


def flags(text: str) -> dict[str, str]:
    """Of a batch script: its #SBATCH lines, by name."""
    found = [line.removeprefix("#SBATCH --").partition("=") for line in text.splitlines() if "#SBATCH" in line]
    return {name: value for name, _, value in found}


def test_a_job_asks_for_what_it_was_given() -> None:
    options = Options("gpu", 8, nodes=2, more={"account": "research"})
    told = flags(batch.text(options, "diag-r.1", 30, ["python3"], ["node3", "node7"]))
    wanted = {"partition": "gpu", "gpus-per-node": "8", "nodes": "2", "ntasks-per-node": "1", "time": "30"}
    assert told.items() >= {**wanted, "account": "research", "exclude": "node3,node7", "mem": "0"}.items()
    assert told.keys() >= {"exclusive", "no-requeue"}
    assert "wckey" not in told


def test_a_job_that_shares_its_node_asks_for_no_more() -> None:
    told = flags(batch.text(Options(share=True), "diag-r.1", 30, ["python3"], node="node4"))
    assert not {"exclusive", "mem", "gpus-per-node", "exclude", "partition"} & told.keys()
    assert told["nodelist"] == "node4"


def test_the_last_step_looks_for_what_is_left_on_each_node() -> None:
    one, two = (batch.text(Options(nodes=nodes), "n", 1, ["python3"]) for nodes in (1, 2))
    _, _, after_one = one.partition("# teardown")
    _, _, after_two = two.partition("# teardown")
    assert ("srun" in after_one, "srun" in after_two) == (False, True)
    assert "export DIAG_JOB=reap" in after_one


@pytest.mark.parametrize("name", ["nodes", "output", "requeue"])
def test_what_diag_sets_itself_is_not_for_others_to_set(name: str) -> None:
    with pytest.raises(UsageError, match=f"--slurm {name}=… is what diag sets itself"):
        Options(more={name: "1"})


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("a-1,b[1,3]", ["a-1", "b1", "b3"]),
        ("", []),
    ],
)
def test_lists_of_nodes_as_slurm_writes_them(told: str, names: list[str]) -> None:
    assert executor._names(told) == names


@given(st.lists(st.integers(0, 999), min_size=1, max_size=6, unique=True))
def test_any_numbers_of_nodes(numbers: list[int]) -> None:
    told = f"n[{','.join(f'{number:03d}' for number in numbers)}]"
    assert executor._names(told) == [f"n{number:03d}" for number in numbers]


def ranks(*versions: str) -> dict[str, Any]:
    def node(number: int, version: str) -> dict[str, Any]:
        environment = {"packages": {"sglang": version}, "python_version": "3.11.2"}
        facts = {"hostname": f"node{number}", "kernel": f"6.{number}"}
        return {"facts": facts, "environments": [environment], "servers": [], "sources": []}

    return {"ranks": [node(number, version) for number, version in enumerate(versions)]}


def test_nodes_of_one_server_must_be_alike_in_what_matters() -> None:
    assert jobs.unlike(ranks("0.5.12", "0.5.12")) == []
    assert jobs.unlike({"ranks": []}) == []
    (told,) = jobs.unlike(ranks("0.5.12", "0.5.11"))
    assert told == "package sglang: rank 0 (node0) 0.5.12, rank 1 (node1) 0.5.11"


@pytest.mark.parametrize(
    ("ended", "doubtful"),
    [
        ({"reason": "asked"}, False),
        ({"died": {"signal": "SIGKILL"}}, True),
        ({"died": {"signal": "SIGSEGV"}}, False),
        ({"error": {"what": "The server ended with signal SIGKILL before it was healthy: x"}}, True),
    ],
)
def test_a_server_that_was_killed_may_have_been_killed_for_memory(ended: dict[str, Any], doubtful: bool) -> None:
    assert jobs.must_be_known({"server": {"ended": ended}}) is doubtful


@pytest.mark.parametrize("state", jobs.ENDED)
def test_a_job_without_a_result_says_why(state: str) -> None:
    error = jobs.lost(jobs.Ran("7", 1, "node1"), state, "None", ["the last line"])
    assert isinstance(error, JobFailed)
    assert error.what.startswith("Job 7 on node1 gave no result: ")
    assert error.details == ["the last line"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", gzip.compress(b"[1]"), gzip.compress(b"{")[:-3], b"{}"],
    ids=["nothing", "its head", "a list", "cut off", "not packed"],
)
def test_a_result_that_is_not_whole_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "result.json.gz"
    path.write_bytes(data)
    assert _jobfiles.read(str(path)) is None


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    document = {"text": "ü\x00", "numbers": [1, 2.5]}
    for name in ("a.json", "a.json.gz"):
        _jobfiles.write(str(tmp_path / name), document)
        assert _jobfiles.read(str(tmp_path / name)) == document
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / "a.json").read_text()) == document


@pytest.mark.parametrize("run", ["../x", "", ".", "a/b", ".hidden"])
def test_a_run_is_a_name(run: str) -> None:
    with pytest.raises(ValueError, match="not a run"):
        _jobfiles.root("/tmp", run)


def test_folders_are_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "run" / "1").mkdir(parents=True)
    (tmp_path / "run" / "1" / "link").symlink_to(tmp_path / "kept")
    _jobfiles.remove(str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "kept" / "file").exists()
