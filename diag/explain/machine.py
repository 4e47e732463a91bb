"""What `diag probe host` reports of the machine itself; the ids of diag/hosts/expectations.py."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="gpu-memory-errors",
        group="finding",
        title="a GPU has had uncorrected memory errors",
        what="nvidia-smi counts uncorrected (double-bit) ECC errors since the driver was loaded.",
        why="What was in that memory may have been wrong: a weight, a mask, a text.",
        do=(
            "Stop what runs on that GPU and reset it: nvidia-smi --gpu-reset -i INDEX",
            "Run dcgmi diag -r 2 while nothing else runs; if errors come back, have the GPU replaced.",
        ),
    ),
    Entry(
        id="gpu-needs-reset",
        group="finding",
        title="a GPU mends its memory at its next reset",
        what="A faulty row or page of its memory is known and will be replaced by a spare one when the GPU is reset.",
        why="Until then the faulty memory is in use.",
        do=("When nothing runs on it: nvidia-smi --gpu-reset -i INDEX, or restart the machine.",),
    ),
    Entry(
        id="gpu-needs-replacement",
        group="finding",
        title="a GPU has no spare memory left",
        what="Remapping a faulty row failed (remapped_rows.failure).",
        why="The GPU cannot mend itself any more; NVIDIA's guide says to replace it.",
        do=("Take it out of service and have it replaced.",),
    ),
    Entry(
        id="gpu-throttled",
        group="finding",
        title="a GPU is slowed down now by heat or power",
        what="nvidia-smi says that the clocks are held back by hardware, temperature or the power brake.",
        why="Timings, and time-outs, of a server on it mean nothing while that lasts.",
        do=(
            "Look at cooling, at the power supply and its cables, and at what else runs.",
            "Ask again: diag probe host NAME",
        ),
    ),
    Entry(
        id="gpu-hot",
        group="finding",
        title="a GPU is near the temperature at which it slows down",
        what="Its temperature is 85 degrees Celsius or more.",
        why="A little more, and its clocks fall.",
        do=("Look at fans, air flow and what runs on it.",),
    ),
    Entry(
        id="gpu-not-as-its-model",
        group="finding",
        title="a GPU has less than others of its model",
        what="Memory, power limit, PCIe lanes or ECC differ from what diag has on file for GPUs of that name.",
        why="Somebody may have chosen that; a slot, a cable or a setting may be wrong; all of them change timings.",
        do=(
            "See what is set: nvidia-smi -q -d POWER,ECC,MEMORY -i INDEX",
            "Power limits are set by nvidia-smi -pl, ECC by nvidia-smi -e 1 and a reset; lanes depend on the slot.",
        ),
    ),
    Entry(
        id="gpu-xid",
        group="finding",
        title="the kernel's log has an error of a GPU (Xid)",
        what="The NVIDIA driver wrote an Xid line. Its number says what happened.",
        why="Some numbers mean a broken GPU (48, 64, 74, 79, 95); most others a program that did something wrong.",
        do=(
            "Look up the number in NVIDIA's list of Xid errors; the finding says what the common ones ask for.",
            "Compare the time in the log with the start of the server.",
        ),
    ),
    Entry(
        id="gpu-memory-held",
        group="finding",
        title="a process without its server holds GPU memory",
        what="A worker of an inference engine is on a GPU, and no living server is above it.",
        why="The memory is missing to the next server, which may fail to start or serve fewer requests.",
        do=(
            "See it: diag server list NAME",
            "If nobody needs it: diag server stop NAME PID --adopt",
        ),
    ),
    Entry(
        id="gpu-links",
        group="finding",
        title="GPUs are not joined by as many NVLinks as on other boards of their model",
        what="The matrix of nvidia-smi topo -m shows another link than this model has between GPUs of a board.",
        why="Tensor parallelism then goes over a slower path. A link that is down is often the fabric manager's.",
        do=(
            "nvidia-smi nvlink -s, and: systemctl status nvidia-fabricmanager",
            "In a virtual machine that was given single GPUs this is as it should be.",
        ),
    ),
    Entry(
        id="clock-skew",
        group="finding",
        title="the host's clock differs from this machine's",
        what="The time that the host told lies outside the time between question and answer, by more than 5 seconds.",
        why="Logs of both are hard to compare, and files seem older or newer than they are.",
        do=("See which of the two is wrong: chronyc tracking, or timedatectl",),
    ),
    Entry(
        id="server-open",
        group="finding",
        title="a server without a key can be reached from other machines",
        what="It listens on an address that is not loopback, and its command line has no --api-key.",
        why="Whoever reaches the port can use it, and on most engines change its weights and settings.",
        do=("Give it --host 127.0.0.1 or --api-key; or see that a firewall keeps others out.",),
    ),
    Entry(
        id="not-as-expected",
        group="finding",
        title="the machine is not what the inventory expects",
        what="The host's entry has a table `expected`, and a value that was found differs from it.",
        why="Somebody wrote down what this machine should be.",
        do=(
            "Mend the machine, or correct the entry: diag host show NAME",
            "Of several hosts, compare them: diag probe host GROUP",
        ),
    ),
)
