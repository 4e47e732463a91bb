"""Options of `diag bisect` for trials that are jobs of a Slurm cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from diag.errors import UsageError

if TYPE_CHECKING:
    from diag.bisect.slurm.batch import Options

OPTIONS = (
    click.option(
        "--executor",
        type=click.Choice(["ssh", "slurm"]),
        default="ssh",
        show_default=True,
        help="Where trials run: on HOST by SSH, or as jobs that HOST, a login node, submits.",
    ),
    click.option("--partition", metavar="NAME", help="slurm: where jobs go. [the cluster's default]"),
    click.option("--gpus", type=click.IntRange(1, 64), help="slurm: whole GPUs on each node of a job. [none]"),
    click.option("--nodes", type=click.IntRange(1, 64), help="slurm: nodes of one trial, a rank on each. [1]"),
    click.option("--jobs", type=click.IntRange(1, 512), help="slurm: trials under way at once. [2]"),
    click.option(
        "--time", "minutes", type=click.IntRange(1, 10080), metavar="MIN", help="slurm: a job's limit. [from the plan]"
    ),
    click.option("--share", is_flag=True, help="slurm: others may use the nodes of a job meanwhile."),
    click.option("--job-dir", metavar="DIR", help="slurm: a folder that all nodes see. [our own in the user's home]"),
    click.option("--slurm", "more", multiple=True, metavar="OPTION=VALUE", help="slurm: a further option of sbatch."),
)
_NAMES = ("executor", "partition", "gpus", "nodes", "jobs", "minutes", "share", "job_dir", "more")


def slurm_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the options; the command gets them as one `slurm`, which is called for what they say."""

    @functools.wraps(command)
    def collected(**words: Any) -> int:
        given = {name: words.pop(name) for name in _NAMES}
        return command(slurm=functools.partial(_options, **given), **words)

    for option in reversed(OPTIONS):
        collected = option(collected)
    return collected


def _options(
    *,
    executor: str,
    partition: str | None,
    gpus: int | None,
    nodes: int | None,
    jobs: int | None,
    minutes: int | None,
    share: bool,
    job_dir: str | None,
    more: tuple[str, ...],
) -> Options | None:
    """None where trials run by SSH. Raises UsageError for options that then say nothing."""
    said = {
        "--partition": partition,
        "--gpus": gpus,
        "--nodes": nodes,
        "--jobs": jobs,
        "--time": minutes,
        "--share": share,
        "--job-dir": job_dir,
        "--slurm": more,
    }
    if executor != "slurm":
        first = next((name for name, value in said.items() if value), None)
        if first is not None:
            raise UsageError(
                f"{first} is about jobs of a Slurm cluster.", next="Add --executor slurm, or leave it out."
            )
        return None
    from diag.bisect.slurm.batch import Options

    return Options(partition, gpus, nodes or 1, jobs or 2, minutes, share, job_dir, dict(_further(more)))


def _further(more: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for each in more:
        name, equals, value = each.removeprefix("--").partition("=")
        if not equals or not name:
            raise UsageError(f"--slurm {each}: OPTION=VALUE is expected.", next="For example: --slurm account=research")
        found.append((name, value))
    return found
