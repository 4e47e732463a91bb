"""What `diag probe host` reports (`findings` in its JSON); the ids of diag/verdict/findings.py."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="server-not-answering",
        group="finding",
        title="a running server did not answer requests",
        what="diag asked the server a short suite of prompts; some or all came back as an error, or not at all.",
        why="Such a server is not judged by its text: it may be overloaded, failing, or on its way down.",
        do=(
            "Look at the last lines of its log, and whether the process still runs.",
            "Run the same command again: a server that was just stopped is then not listed any more.",
        ),
    ),
    Entry(
        id="server-garbled",
        group="finding",
        title="a running server gives answers that its own model would not give",
        what=(
            "diag asked the server a short suite of prompts, one by one and all at once, and judged each answer. At "
            "least one holds a token far below what the model itself holds best there, or is not the answer every "
            "language model knows."
        ),
        why=(
            "Users read this text. The requests went to the server as it runs now, so it is not a question of the "
            "client, of the chat template or of sampling: they were raw prompts at temperature 0."
        ),
        do=(
            "Read the answers in the report: which prompts, alone or together, from which token on.",
            "If a known fault is listed above it, start there: diag fix apply NAME ID --diff",
            "Otherwise find the setting: write a plan (docs/bisect.md) and run diag bisect NAME --plan FILE",
        ),
        more=(
            "docs/garbled-server.md",
            "docs/verdict.md",
        ),
    ),
    Entry(
        id="verify-width-mismatch",
        group="finding",
        title="a running server verifies another number of rows than its backend counts",
        what=(
            "By its own configuration the server verifies draft_token_num rows a request (else: tree budget + 1), and "
            "its attention backend was given speculative_num_draft_tokens, which is another number."
        ),
        why=(
            "This is the condition under which the fault mask-indptr garbles. Where that fault is fixed, it is "
            "harmless."
        ),
        do=(
            "See whether mask-indptr is present in the same environment: diag fix status NAME mask-indptr",
            (
                "If it is: apply the fix, or lower the tree budget to speculative_num_draft_tokens - 1, and restart "
                "the server."
            ),
        ),
        more=("docs/fixes.md",),
    ),
    Entry(
        id="server-stale",
        group="finding",
        title="a running server started before its source was last changed",
        what="The file on disk is newer than the server's start. The server has the older code in memory.",
        why=(
            "What you read on disk is not what runs. A fix that was applied has no effect yet; a file that looks "
            "faulty may not be the one that answers."
        ),
        do=("Restart the server, then probe again.",),
        more=("docs/fixes.md",),
    ),
    Entry(
        id="server-not-asked",
        group="finding",
        title="a running server was found but could not be judged",
        what=(
            "The reason stands in the finding: it does not answer on its port, its port is not known, it is an engine "
            "that diag cannot ask yet (only SGLang so far), or you said --no-prompts."
        ),
        why="`healthy` cannot be said of a server that was not asked; the exit code is 3, not 0.",
        do=(
            "Still loading? Wait and run the command again.",
            "Does it answer on the host itself? curl http://127.0.0.1:PORT/health_generate",
        ),
        more=("docs/json.md",),
    ),
    Entry(
        id="orphan-worker",
        group="finding",
        title="a worker process runs on although its server is gone",
        what="An engine's worker, by its name, whose parent server is not in the process table. It was not asked.",
        why="It may hold GPU memory and ports, so that the next server does not start, or starts with less memory.",
        do=(
            "Look at it: ps -fp PID",
            "End it if nobody needs it. diag ends no process that it did not start.",
        ),
        more=("docs/json.md",),
    ),
    Entry(
        id="file-edited",
        group="finding",
        title="an engine file is not what its wheel holds",
        what=(
            "Its sha256 differs from the one that the installed wheel's RECORD lists: somebody changed it after pip "
            "did."
        ),
        why="The version number no longer says which code runs. A report upstream about `the release` would mislead.",
        do=(
            "Was it diag? diag fix status NAME ID says whether a fix of ours is applied.",
            "Otherwise ask who changed it; a fresh installation of the package gives the original back.",
        ),
        more=("docs/fixes.md",),
    ),
    Entry(
        id="package-changed",
        group="finding",
        title="files of the engine's package differ from its wheel (--verify-all)",
        what="Every file that RECORD lists was hashed; those named are edited or missing.",
        why="Half-finished upgrades, two wheels unpacked over each other and hand edits look like this.",
        do=("Compare them with a fresh installation of the same version, or reinstall the package.",),
        more=("docs/json.md",),
    ),
    Entry(
        id="no-engine",
        group="finding",
        title="no engine that diag knows is installed where it looked",
        what=(
            "diag looked at the environments of running servers, at the host's `python` in the inventory, and at the "
            "usual places (virtual environments in the home folder and /opt, conda, python3 on PATH). None holds "
            "SGLang."
        ),
        why="No source could be checked. It may be in a container, or in an environment that diag does not look for.",
        do=(
            "Name the interpreter: diag probe host NAME --python PATH, or `python` in the inventory entry.",
            (
                "Engine in a container? Reach the container's own SSH server, or start the server first: running ones "
                "are seen."
            ),
        ),
        more=("docs/garbled-server.md",),
    ),
    Entry(
        id="not-seen",
        group="finding",
        title="something on the host could not be looked at, and why",
        what="A command is missing, hung, or may not be read by this user. Every such gap is listed; none is left out.",
        why="A report without GPUs may mean no GPU, or no permission to see it. The line says which.",
        do=("Read the reason. Where it is permission, connect as the user that runs the server.",),
        more=("docs/json.md",),
    ),
)
