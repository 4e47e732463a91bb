"""The cluster of these tests is what it says: real jobs, real failures, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import MARK, Cluster, ClusterError, main, processes


def running(slurm: Cluster, *options: str, script: str = "sleep 1000") -> int:
    job = slurm.submit(script, "--gres=gpu:1", *options)
    slurm.wait(job, "RUNNING")
    return job


def test_a_job_knows_its_node_and_its_gpus(slurm: Cluster) -> None:
    job = slurm.submit("echo $(hostname) $SLURMD_NODENAME $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES", "--gres=gpu:2")
    assert slurm.wait(job).state == "COMPLETED"
    assert slurm.output(job) == "node1 node1 node1 0,1\n"


def test_one_job_over_both_nodes_starts_a_rank_on_each(slurm: Cluster) -> None:
    job = slurm.submit("srun --ntasks-per-node=1 sh -c 'echo $SLURM_PROCID $(hostname)'", "--nodes=2", "--gres=gpu:8")
    assert slurm.wait(job).state == "COMPLETED"
    assert sorted(slurm.output(job).splitlines()) == ["0 node1", "1 node2"]


def test_a_node_that_dies_takes_its_jobs_with_it(slurm: Cluster) -> None:
    leaver = "setsid env -i sleep 999 & sleep 1000"
    lost, again = running(slurm, "-wnode1", "--no-requeue", script=leaver), running(slurm, "-wnode1")
    other = running(slurm, "-wnode2")
    slurm.kill_node("node1", noticed=True)
    assert slurm.on_nodes().keys() == {"node2"}
    assert slurm.wait(lost).state == "NODE_FAIL"
    assert slurm.wait(again, "PENDING").restarts == 1
    assert slurm.job(other).state == "RUNNING"
    slurm.revive_node("node1")
    assert slurm.wait(slurm.submit("hostname", "-wnode1")).state == "COMPLETED"


def test_a_job_outlives_a_restart_of_the_controller(slurm: Cluster) -> None:
    flag = slurm.folder / "flag"
    job = running(slurm, script=f"until [ -e {flag} ]; do sleep 0.1; done; echo end")
    slurm.restart_controller()
    assert slurm.job(job).state == "RUNNING"
    flag.touch()
    assert slurm.wait(job).state == "COMPLETED"
    assert (slurm.output(job), slurm.job(job).restarts) == ("end\n", 0)


def test_somebody_cancels_a_job(slurm: Cluster) -> None:
    mine, other = running(slurm), running(slurm)
    slurm.cancel(mine)
    assert slurm.wait(mine).state == "CANCELLED"
    assert slurm.job(other).state == "RUNNING"


def test_an_urgent_job_takes_the_gpus(slurm: Cluster) -> None:
    again, lost = running(slurm, "-wnode2"), running(slurm, "-wnode2", "--no-requeue")
    other = running(slurm, "-wnode1")
    urgent = slurm.preempt("node2")
    jobs = {job.id: job for job in slurm.jobs()}
    assert (jobs[again].state, jobs[again].restarts) == ("PENDING", 1)
    assert jobs[lost].state == "PREEMPTED"
    assert (jobs[urgent].state, jobs[other].state) == ("COMPLETED", "RUNNING")


def test_what_a_job_leaves_on_its_node_is_seen(slurm: Cluster) -> None:
    job = slurm.submit("setsid env -i sleep 998 >/dev/null 2>&1 & sleep 0.1")
    assert slurm.wait(job).state == "COMPLETED"
    left = [one for some in slurm.on_nodes().values() for one in some]
    assert [one.argv for one in left] == [("sleep", "998")]
    slurm.sweep()
    assert slurm.on_nodes() == {"node1": [], "node2": []}


def test_close_leaves_nothing_and_two_live_side_by_side(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "2"
    assert main("up", str(folder), "1") == 0
    assert capsys.readouterr().out == f"export SLURM_CONF={folder}/slurm.conf\n"
    assert main("up", str(folder)) == 5  # it is up already
    second = Cluster(folder, ("node1",))
    second.submit("setsid env -i sleep 997 & sleep 1000")
    assert second.states() == {"node1": "idle"}
    assert main("down", str(folder)) == 0
    assert main("down", str(folder)) == 0
    assert processes(MARK, str(folder)) == []
    assert slurm.states() == {"node1": "idle", "node2": "idle"}


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ClusterError, match="name another folder"):
        Cluster(tmp_path).start()
    assert (tmp_path / "mine").exists()
    broken = Cluster(tmp_path / "3", nodes=("node1", "node1"))
    with pytest.raises(ClusterError, match=r"slurmctld.* ended\n(.*\n)*slurmctld: fatal: Duplicated NodeHostName"):
        broken.start()
    assert processes(MARK, str(broken.folder)) == []
