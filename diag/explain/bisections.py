"""How a bisection can end (`verdict` in its JSON); the kinds of diag/bisect/decision.py."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="culprit",
        group="bisection",
        title="one factor, combination or rule explains every trial, and is named",
        what=(
            "It predicts every trial that was run. `sufficient` lists trials that failed with it and every innocent "
            "factor at its good level; `necessary` lists trials that were clean without it and every innocent factor "
            "at its failing level; `not needed` names, for each innocent factor, a trial that failed without it. Exit "
            "code 1."
        ),
        why="It is an answer within the plan: a cause that no factor of the plan touches cannot be named.",
        do=(
            "Read the table: does a row contradict it?",
            "`inseparable` lists explanations that no configuration of this plan tells apart: add a level or a factor.",
            "If lines of the installed source are printed below, look at the patch: diag fix apply NAME ID --diff",
        ),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="not_reproduced",
        group="bisection",
        title="the failing configuration gave healthy output twice",
        what=(
            "Both trials of the failing configuration passed, or the server reports the same values for both ends, so "
            "that no factor reached it. Nothing was searched. Exit code 3."
        ),
        why="Either the report was about another configuration, host or prompt, or the fault does not show every time.",
        do=(
            "Compare the command line of trial 2 with the one that failed: diag bisect NAME --dry-run prints it.",
            "Put the prompts of the report into a suite of your own, and ask for more tokens (max_new_tokens).",
            "`no effect` lists factors that the server does not take: compare its --help with the plan.",
            "It shows only sometimes? Then with --flaky: the failing end is tried more often.",
        ),
        more=(
            "docs/bisect.md",
            "docs/garbled-server.md",
        ),
    ),
    Entry(
        id="environmental",
        group="bisection",
        title="the good configuration fails too: what was varied is not to blame",
        what=(
            "The configuration that should be healthy was judged garbled, or gave no answers in two starts. Exit code "
            "3."
        ),
        why="Without a healthy reference no other configuration can be judged.",
        do=(
            "Look at what all trials share: the model, its dtype and quantisation, the driver, the engine's version.",
            "Choose a good end that you have seen work, for example without speculation.",
            "diag probe host NAME, for edited files and known faults.",
        ),
        more=(
            "docs/bisect.md",
            "docs/garbled-server.md",
        ),
    ),
    Entry(
        id="narrowed",
        group="bisection",
        title="max_trials is spent; several explanations are left",
        what=(
            "The search stopped at the plan's limit. `runners_up` in the JSON lists what is left, with weights. With "
            "--over: what lies between the last good and the first bad version or commit cannot be tried; "
            "`over.left` names the set that it is one of. Exit code 3."
        ),
        why="It is not an answer yet, but what was rejected stays rejected.",
        do=(
            "Raise max_trials in the plan.",
            "Leave out factors that a trial has cleared, and run it again.",
            "With --over: read the log of a version that did not start (diag runs show RUN); mend that, or try it by "
            "hand.",
        ),
        more=(
            "docs/bisect.md",
            "docs/versions-and-commits.md",
        ),
    ),
    Entry(
        id="unexplained",
        group="bisection",
        title="the trials contradict each other, or nothing in the plan predicts them all",
        what=(
            "Two trials of the same configuration ended differently, or no factor, combination of two or three, or "
            "rule of the plan predicts every trial. Exit code 3."
        ),
        why="The fault is intermittent, or it depends on something that the plan does not name.",
        do=(
            "Read the table for the rows that disagree.",
            "Add what is missing: a factor, a level between good and bad, or a derived rule.",
            "With --flaky, if the same configuration did both: then trials are weighed, and none is a proof.",
            "`another fault` lists trials that failed in another way than the failing end; they count for nothing.",
        ),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="clean",
        group="bisection",
        title="--check: the failing configuration is healthy now",
        what="Two starts, the good and the failing configuration; every text of both is healthy. Exit code 0.",
        why="After a fix this is the proof. Before one it means that the fault does not show here.",
        do=("After a fix: done. Keep the journal; it holds every text.",),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="fails",
        group="bisection",
        title="--check: the failing configuration still fails",
        what="Two starts, the good and the failing configuration; the second one's texts are garbled. Exit code 1.",
        why="After a fix it means that the fix did not reach this server, or mends something else.",
        do=(
            "Is the fix in the environment that the plan's {python} starts? diag fix status NAME ID",
            "Find the cause: the same command without --check.",
        ),
        more=(
            "docs/bisect.md",
            "docs/fixes.md",
        ),
    ),
)
