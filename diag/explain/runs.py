"""What `diag runs` and `diag report` say of a run that has no verdict, or whose journal does not hold everything."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="running",
        group="run",
        title="a diag is working on this run now",
        what="Its journal is locked by a process on this machine. The report tells it as far as it has come.",
        why="Only one diag at a time may go on with a run, or remove it.",
        do=("Wait for it, or end it with Ctrl-C where it runs: what it started is stopped first.",),
        more=("docs/reports.md",),
    ),
    Entry(
        id="cut_off",
        group="run",
        title="a run that ended without a verdict and can be gone on with",
        what=(
            "It was interrupted, its machine went down, or an error ended it. Its journal holds every whole trial, or "
            "every step that was begun."
        ),
        why="Nothing that was learnt is lost; at most the trial that was under way is made again.",
        do=(
            "A bisection: diag bisect --resume RUN",
            "A playbook: diag playbook resume RUN, which also undoes what is outstanding.",
            "Or remove it: diag runs rm RUN",
        ),
        more=("docs/reports.md",),
    ),
    Entry(
        id="not_recorded",
        group="run",
        title="something that the journal of this run does not hold",
        what=(
            "The run was made by an older diag, a host could not be read, or a server did not tell. The report leaves "
            "it out and names it; nothing is made up."
        ),
        why="A report that works a missing number out again by newer rules would say what the run never saw.",
        do=("Run it again with this diag if that part matters.",),
        more=("docs/reports.md",),
    ),
)
