"""Kinds of errors (`error.kind` in JSON); the classes of diag/errors.py."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="usage",
        group="error",
        title="the command line, or a file named on it, is wrong (exit code 2)",
        what="An unknown command, option, plan, suite, fix or explanation; or a file that cannot be read.",
        why="Nothing was started and no host was contacted, or nothing was done there.",
        do=(
            "Read the last line: it names the nearest valid name.",
            "diag COMMAND --help",
        ),
        more=("docs/json.md",),
    ),
    Entry(
        id="unknown_host",
        group="error",
        title="no host of that name in the inventory or in ~/.ssh/config (exit code 2)",
        what="The message lists the inventory files that were read and the nearest names.",
        why="diag connects to hosts by name only, so that address, user and keys stand in one place.",
        do=(
            "diag host list",
            "Add [hosts.NAME] with an address to diag.toml or to hosts.toml in diag's configuration folder.",
        ),
        more=("README.md",),
    ),
    Entry(
        id="inventory",
        group="error",
        title="an inventory file is wrong, or asks for what diag does not do (exit code 2)",
        what=("A key is unknown, a value has the wrong type, or a name leads to no host of the inventory."),
        why="A misspelt key would otherwise be ignored, and the wrong host reached.",
        do=("Correct the file and line that are named.",),
        more=("README.md",),
    ),
    Entry(
        id="plan",
        group="error",
        title="a plan or prompt suite is wrong; every problem has its line and column (exit code 2)",
        what="Unknown keys, missing keys, wrong types, unknown names in a rule, a command without {port}.",
        why="All problems are listed at once and nothing was started: a typo must not cost a server start.",
        do=(
            "Correct the places that are named.",
            "Check it without starting anything: diag bisect NAME --plan FILE --dry-run",
        ),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="host",
        group="error",
        title="the host refused something that diag asked of it (exit code 4)",
        what="For example a channel to a port: the SSH server may forbid commands or forwarding for this user.",
        why="diag needs exec, and for questions to a server direct-tcpip forwarding to the host's own loopback.",
        do=(
            (
                "Look at AllowTcpForwarding, PermitOpen and ForceCommand in sshd_config, and at options in "
                "authorized_keys."
            ),
        ),
        more=(
            "docs/security.md",
            "docs/host-protocol.md",
        ),
    ),
    Entry(
        id="host_unreachable",
        group="error",
        title="no connection: name, route, port or handshake (exit code 4)",
        what="The name does not resolve, nobody answers, the port refuses, or no current algorithm is in common.",
        why="Nothing ran on the host.",
        do=(
            "Does `ssh` reach it with the same address, port and user?",
            "Correct the inventory entry, or look at VPN and firewall.",
        ),
        more=(
            "docs/security.md",
            "docs/host-protocol.md",
        ),
    ),
    Entry(
        id="host_key_unknown",
        group="error",
        title="no key is on record for this host; it was not trusted (exit code 4)",
        what="known_hosts has no line for this address and port. There is no switch to skip this.",
        why=(
            "The first connection is where an attacker in the middle would sit. Nothing ran and no key of yours was "
            "offered."
        ),
        do=(
            "Get the fingerprint from the machine's owner or console and compare it with the one in the message.",
            "Give what they told you, not what the message shows: diag host trust NAME --fingerprint SHA256:...",
        ),
        more=(
            "docs/security.md",
            "docs/host-protocol.md",
        ),
    ),
    Entry(
        id="host_key_changed",
        group="error",
        title="the host's key is not the one on record, or is revoked (exit code 4)",
        what="The message shows the key that was seen and the file and line of the one on record.",
        why="A reinstalled machine looks like this, and so does someone between you and it. Nothing ran there.",
        do=(
            "Ask the machine's owner for its fingerprint.",
            "Only if the new key is right, correct the line that is named.",
        ),
        more=(
            "docs/security.md",
            "docs/host-protocol.md",
        ),
    ),
    Entry(
        id="authentication_failed",
        group="error",
        title="none of your keys was accepted (exit code 4)",
        what=(
            "The message names the user and every key that was offered or could not be used. Passwords are never tried."
        ),
        why="Nothing ran on the host.",
        do=(
            "Set `user` and `identity_file` in the inventory entry.",
            "A key with a passphrase: ssh-add it.",
            "See that the public key is in authorized_keys there.",
        ),
        more=(
            "docs/security.md",
            "docs/host-protocol.md",
        ),
    ),
    Entry(
        id="link_lost",
        group="error",
        title="the connection ended before the answer was complete (exit code 4)",
        what="The network, the host or its SSH server went away, or gave no sign of life for 13 s.",
        why=(
            "What had been done there until then is not known to the laptop. A started server is stopped by its "
            "supervisor on the host; a fix that was under way is finished or undone by the next `fix apply` or `fix "
            "revert`."
        ),
        do=(
            "Reconnect and look: diag probe host NAME",
            "After a fix: diag fix status NAME ID",
        ),
        more=(
            "docs/host-protocol.md",
            "docs/fixes.md",
        ),
    ),
    Entry(
        id="host_program_failed",
        group="error",
        title="our program on the host did not answer as agreed (exit code 4)",
        what="It raised an exception, ran past its limit, was killed, or its output was not complete.",
        why="No part of such an answer is used.",
        do=(
            "Read the details: the last lines of its standard error.",
            "Full disk, memory killer or an old Python? Set helper_python in the inventory entry.",
        ),
        more=("docs/host-protocol.md",),
    ),
    Entry(
        id="job_failed",
        group="error",
        title="a job of a queueing system ended without a result (exit code 4)",
        what=(
            "It was cancelled or preempted, its node failed, its time or its memory was used up, its launcher died, or "
            "its nodes are not alike."
        ),
        why=(
            "That says nothing about the configuration, so it is no evidence: the trial is written down as such and "
            "made again, elsewhere where the node is to blame. The error is seen when that has happened too often."
        ),
        do=(
            "Read the reason, which is Slurm's own: sacct -j JOB, or scontrol show job JOB",
            "Too little time or memory? --time MIN, --slurm mem=0",
            "One node at fault? --slurm exclude=NODE",
        ),
        more=("docs/slurm.md",),
    ),
    Entry(
        id="precondition",
        group="error",
        title="something needed is missing; nothing was changed (exit code 5)",
        what="For example a wheel that could not be fetched from the package index.",
        why="diag stops before it does half of something.",
        do=("Read the last line of the message: it says what is needed.",),
        more=("docs/json.md",),
    ),
    Entry(
        id="no_python_on_host",
        group="error",
        title="no Python 3.8 or newer was found on the host (exit code 5)",
        what="The message lists what was tried and which versions were found.",
        why="diag's programs on the host need a Python and its standard library, nothing else.",
        do=("Name one in the inventory entry: helper_python. The engine's own interpreter will do.",),
        more=("docs/host-protocol.md",),
    ),
    Entry(
        id="package_not_installed",
        group="error",
        title="the package is not installed where diag looked (exit code 5)",
        what="The message lists the places.",
        why="Nothing can be checked or mended in a package that is not there.",
        do=(
            (
                "Set `python` in the inventory entry, or name the place: --python PATH (probe), --site-packages PATH "
                "(fix)."
            ),
        ),
        more=("docs/fixes.md",),
    ),
    Entry(
        id="file_not_as_expected",
        group="error",
        title="a file is not what the fix was made for, or was changed meanwhile (exit code 5)",
        what="The code has another shape, was edited by hand, or differs from what was read a moment ago.",
        why="A fix must not guess. Nothing was changed.",
        do=(
            "Look at the lines: diag probe host NAME",
            "Mend a hand-edited file by hand, or reinstall the package.",
        ),
        more=("docs/fixes.md",),
    ),
    Entry(
        id="port_in_use",
        group="error",
        title="the port is taken on the host (exit code 5)",
        what=(
            "The message names who holds it, where that can be seen. A server of ours that was starting there is "
            "stopped: what the other one answers is not judged."
        ),
        why="diag stops no server that it did not start.",
        do=("Take another port, or stop the process that holds it.",),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="server_died",
        group="error",
        title="the server's process ended before it was healthy (exit code 5)",
        what="The message has its exit code or signal and its last log lines. Everything it started is gone.",
        why=(
            "In a bisection only the good or the failing configuration ends the run this way; any other is a skipped "
            "trial."
        ),
        do=(
            (
                "Read the log lines: a flag that this version does not know, no GPU memory, a model path that is not "
                "there."
            ),
            "See the exact command: diag bisect NAME --dry-run",
        ),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="server_not_healthy",
        group="error",
        title="the server ran but was not healthy within its deadline (exit code 5)",
        what="/health_generate gave no 200 within ready_timeout_s. The server was stopped, with everything it started.",
        why="A large model may only need more time; one that hangs will not.",
        do=(
            "Read the last log lines.",
            "Raise ready_timeout_s in the plan if it was still loading.",
        ),
        more=("docs/bisect.md",),
    ),
    Entry(
        id="lab",
        group="error",
        title="the embedded host cannot be built, started or found (exit code 5)",
        what="A package of the `lab` extra is missing, the folder is not a lab, or its SSH server did not start.",
        why="Only `diag lab` commands raise it; your own hosts are not concerned.",
        do=(
            "Install the extra in a checkout: pip install -e '.[lab]'",
            "diag lab status",
        ),
        more=("docs/lab.md",),
    ),
    Entry(
        id="interrupted",
        group="error",
        title="you pressed Ctrl-C, or answered no (exit code 130)",
        what="A server that was running for a trial is stopped before the command ends. A bisection names its journal.",
        why="Nothing that diag started on the host is left running.",
        do=("Run the command again; a bisection starts from the beginning.",),
        more=("docs/bisect.md",),
    ),
)
