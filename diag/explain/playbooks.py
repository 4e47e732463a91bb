"""How a playbook can end (`verdict` in its JSON), and what can become of a change; diag/playbook/verdict.py."""

from __future__ import annotations

from diag.explain.entry import Entry

_MORE = ("docs/playbooks.md",)

ENTRIES = (
    Entry(
        id="done",
        group="playbook",
        title="every step is done, and nothing wrong was found",
        what="No step failed, and the step that the answer comes from says that all is well. Exit code 0.",
        why="What was changed has been given back, but for what the playbook keeps.",
        do=("Nothing. The journal has every step with what it found.",),
        more=_MORE,
    ),
    Entry(
        id="found",
        group="playbook",
        title="a step found a fault, or hosts differ in what they must not",
        what="The playbook came to its end; the step that the answer comes from found something. Exit code 1.",
        why="It is the answer that was looked for, not a failure of the run.",
        do=(
            "Read the step that the first line comes from.",
            "A bisection has a run of its own with every trial: diag runs show RUN.STEP",
        ),
        more=_MORE,
    ),
    Entry(
        id="failed",
        group="playbook",
        title="a step could not be done, or an assertion does not hold",
        what=(
            "The steps after it were left out, what was changed was given back, and the steps of `finally` were done. "
            "Exit code 1 for an assertion, else that of the error: 2 or 5."
        ),
        why="What the playbook promises has not been shown.",
        do=(
            "Read its line: of an assertion, the values that it compared; of an error, what to do.",
            "Should the rest go on all the same? Then with on_failure: continue at that step.",
        ),
        more=_MORE,
    ),
    Entry(
        id="inconclusive",
        group="playbook",
        title="nothing wrong was shown, but not everything could be told",
        what="A step ended with exit code 3, or an assertion asks for a value that nothing recorded. Exit code 3.",
        why="It is neither healthy nor faulty.",
        do=("Read the step that the first line comes from; it says what could not be told.",),
        more=_MORE,
    ),
    Entry(
        id="unreachable",
        group="playbook",
        title="a host could not be reached, or the link was lost",
        what="Of several hosts that are only read, the others have their answers. Exit code 4.",
        why="If something had been changed there, it is given back when the host answers again.",
        do=("Reach the host: diag host check NAME", "Then go on: diag playbook resume RUN"),
        more=_MORE,
    ),
    Entry(
        id="outstanding",
        group="playbook",
        title="a change that was not given back",
        what="The journal has a change without its end: a lost link, a killed process, or a file edited since.",
        why="The host is not as it was before the run.",
        do=(
            "Give it back: diag playbook resume RUN --undo",
            "A file that somebody else edited since is not overwritten: diag fix status NAME ID shows it.",
        ),
        more=_MORE,
    ),
    Entry(
        id="kept",
        group="playbook",
        title="a change that the playbook keeps",
        what="`keep` names its step, so it stays when the run ends.",
        why="It is meant to stay; the run still knows how to take it back.",
        do=("To take it back: diag playbook resume RUN --undo",),
        more=_MORE,
    ),
)
