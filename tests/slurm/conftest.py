"""One real Slurm of two nodes for all tests here; it takes root, and what Debian calls slurm-wlm and munge."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, cluster, missing


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Clients find it with `slurm_cluster.env`. Shared: see `slurm`, which looks that a test leaves it as it was."""
    if reason := missing():
        if os.environ.get("CI") and "not installed" in reason:
            pytest.fail(reason)
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm") / "1") as running:
        yield running


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The same, idle; afterwards its jobs are cancelled and its nodes back, and nothing may be left running on them."""
    yield slurm_cluster
    slurm_cluster.tidy()
