"""Whatever is wrong: one clear message, the right exit code, nothing left running, nothing left behind."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.hosts.inventory import Host
from diag.lab.layout import Lab, model_dir
from tests.lab_fixture import Ran, lab_processes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

Diag = Callable[..., Ran]

PLAN = """\
schema: 1
kind: bisect
name: tried
command: {command}
prompts: quick
ready_timeout_s: {ready}
factors:
  budget: {{flag: --speculative-ddtree-budget, good: 7, bad: 16}}
"""


@pytest.fixture
def project(tmp_path: Path, lab: Lab) -> Path:
    """A folder with a diag.toml of its own to spoil."""
    shutil.copy(lab.inventory_file, tmp_path / "lab.toml")
    return tmp_path


def entry(lab: Lab, **changes: object) -> str:
    """An inventory with one host `gpu`, the lab's entry with some values replaced; None leaves a value out."""
    values: dict[str, object] = {
        "address": "127.0.0.1",
        "port": lab.read_state()["port"],
        "identity_file": str(lab.user_key),
        "known_hosts": str(lab.known_hosts),
        "python": str(lab.python),
        **changes,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join(["schema = 1", "[hosts.gpu]", *lines, "[hosts.gpu.labels]", f'model = "{model_dir()}"', ""])


def write(project: Path, text: str) -> None:
    (project / "diag.toml").write_text(text)


def assert_plain(ran: Ran, code: int, *said: str) -> None:
    assert ran.code == code, (ran.code, ran.out, ran.err)
    for words in said:
        assert words in ran.err, ran.err
    assert "Traceback" not in ran.err + ran.out


# hosts


def test_an_unknown_host_names_the_nearest_and_the_files_read(diag: Diag, project: Path, lab: Lab) -> None:
    write(project, entry(lab))
    assert_plain(
        diag("probe", "host", "gpuu", cwd=project), 2, "no host named 'gpuu'", "did you mean: gpu", "diag.toml"
    )


def test_json_has_the_error_too(diag: Diag, project: Path, lab: Lab) -> None:
    ran = diag("probe", "host", "nowhere", "--json", cwd=project)
    assert ran.code == 2
    error = json.loads(ran.out)["error"]
    assert (error["kind"], error["exit_code"]) == ("unknown_host", 2)
    assert error["next"]


def test_a_refused_connection(diag: Diag, project: Path, lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    write(project, entry(lab, port=port))
    assert_plain(diag("probe", "host", "gpu", cwd=project), 4, str(port), "refused", "→")


def test_a_changed_host_key_is_refused_with_the_line_to_look_at(diag: Diag, project: Path, lab: Lab) -> None:
    key_type, _ = lab.host_key.with_suffix(".pub").read_text().split()[:2]
    other = lab.user_key.with_suffix(".pub").read_text().split()[1]
    port = lab.read_state()["port"]
    known = project / "known_hosts"
    known.write_text(f"# other hosts\n\n[127.0.0.1]:{port} {key_type} {other}\n")
    write(project, entry(lab, known_hosts=str(known)))
    assert_plain(diag("probe", "host", "gpu", cwd=project), 4, f"{known}:3", "SHA256:")
    assert_plain(diag("bisect", "gpu", cwd=project), 4, f"{known}:3")
    assert_plain(diag("fix", "status", "gpu", "mask-indptr", cwd=project), 4, f"{known}:3")


def test_an_unknown_host_key_is_refused(diag: Diag, project: Path, lab: Lab) -> None:
    (project / "known_hosts").write_text("")
    write(project, entry(lab, known_hosts=str(project / "known_hosts")))
    assert_plain(diag("probe", "host", "gpu", cwd=project), 4, "SHA256:", "→")
    assert (project / "known_hosts").read_text() == ""


def test_a_wrong_key(diag: Diag, project: Path, lab: Lab) -> None:
    write(project, entry(lab, identity_file=str(lab.host_key)))
    assert_plain(diag("probe", "host", "gpu", cwd=project), 4, str(lab.host_key), "→")


def test_no_python_on_the_host(diag: Diag, project: Path, lab: Lab) -> None:
    write(project, entry(lab, helper_python="/nonexistent/python3"))
    for command in (("probe", "host", "gpu"), ("fix", "status", "gpu", "mask-indptr"), ("bisect", "gpu")):
        assert_plain(diag(*command, cwd=project), 5, "Python", "helper_python")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1\n[hosts.gpu]\nadress = 'x'\n", "adress"),
        ("schema = 1\n[hosts.gpu]\naddress = 'x'\nport = 'many'\n", "port"),
        ("schema = 1\n[hosts.gpu\n", "diag.toml"),
        ("schema = 9\n", "schema"),
    ],
)
def test_an_inventory_with_a_mistake(diag: Diag, project: Path, text: str, said: str) -> None:
    write(project, text)
    assert_plain(diag("probe", "host", "gpu", cwd=project), 2, said, "diag.toml")


# packages


def test_the_package_is_not_installed(diag: Diag, project: Path, lab: Lab, tmp_path: Path) -> None:
    empty = tmp_path / "venv"
    import venv

    venv.EnvBuilder(with_pip=False, symlinks=True).create(empty)
    write(project, entry(lab, python=str(empty / "bin" / "python")))
    assert_plain(diag("fix", "status", "gpu", "mask-indptr", cwd=project), 5, "sglang", str(empty))
    assert_plain(diag("fix", "apply", "gpu", "mask-indptr", cwd=project), 5, "sglang")
    assert_plain(
        diag("probe", "host", "gpu", "--python", str(empty / "bin" / "python"), cwd=project), 5, str(empty), "--python"
    )


# servers


@pytest.fixture
def bisected(diag: Diag, project: Path, lab: Lab) -> Iterator[Callable[..., Ran]]:
    """Runs a bisect of a plan whose server is `command`; after it nothing may run."""
    write(project, entry(lab))

    def run(command: str, ready: float = 60) -> Ran:
        (project / "tried.yaml").write_text(PLAN.format(command=json.dumps(command), ready=ready))
        return diag("bisect", "gpu", "--plan", "./tried.yaml", cwd=project)

    yield run
    assert lab_processes(lab) == []


def test_a_port_in_use(lab: Lab, bisected: Callable[..., Ran]) -> None:
    from diag.hosts.transport import connect
    from diag.serving import server

    with socket.socket() as taken, connect(lab_host(lab)) as transport:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launch = server.Launch(argv=(str(lab.python), "-c", "pass"), run_id="test-port", port=port)
        with pytest.raises(server.DiagError) as refused, server.start(transport, launch):
            pytest.fail("started on a port that is taken")
    assert (refused.value.kind, refused.value.exit_code) == ("port_in_use", 5)
    assert str(port) in refused.value.what


def lab_host(lab: Lab) -> Host:
    from diag.hosts import inventory

    return inventory.load().get("lab")


def test_a_server_that_dies_at_once_shows_its_last_lines(lab: Lab, bisected: Callable[..., Ran]) -> None:
    ran = bisected(f"{lab.python} -c \"print('loading'); raise SystemExit('no such model: x')\" --port {{port}}")
    assert_plain(ran, 5, "good configuration (budget=7) does not start", "no such model: x", "loading")


def test_a_flag_that_the_server_does_not_know(lab: Lab, bisected: Callable[..., Ran]) -> None:
    ran = bisected("{python} -m sglang.launch_server --model-path {model} --port {port} --speculative-budgets 3")
    assert_plain(ran, 5, "does not start", "unrecognized arguments: --speculative-budgets")


def test_a_command_that_is_not_there(lab: Lab, bisected: Callable[..., Ran]) -> None:
    assert_plain(bisected("/nonexistent/server --port {port}"), 5, "/nonexistent/server", "does not start")


def test_a_server_that_never_gets_healthy(lab: Lab, bisected: Callable[..., Ran]) -> None:
    program = "import sys, time; print('still loading', flush=True); time.sleep(600)"
    ran = bisected(f'{lab.python} -c "{program}" --port {{port}}', ready=2)
    assert_plain(ran, 5, "does not start", "/health_generate", "within 2 s", "still loading", "Raise the deadline")


# plans


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("schema: 1\nkind: bisect\nname: x\ncomand: a\n", ":4:1:", "did you mean 'command'"),
        ("schema: 1\nkind: bisect\nname: x\n  command: y\n", ":4:", "mapping values are not allowed"),
        (PLAN.format(command='"a --port {port}"', ready=1).replace("good: 7", "god: 7"), ":8:", "did you mean 'good'"),
        (
            PLAN.format(command='"a --port {port}"', ready=1) + "derived:\n  m: {when: bugdet + 1 != 8}\n",
            ":10:",
            "unknown factor 'bugdet'; did you mean 'budget'",
        ),
        (PLAN.format(command='"a"', ready=1), ":4:1:", "--port {port}"),
    ],
)
def test_a_plan_with_a_mistake(diag: Diag, project: Path, lab: Lab, text: str, place: str, said: str) -> None:
    write(project, entry(lab))
    (project / "tried.yaml").write_text(text)
    ran = diag("bisect", "gpu", "--plan", "./tried.yaml", cwd=project)
    assert_plain(ran, 2, f"tried.yaml{place}", said, "nothing was started")


def test_a_plan_that_is_not_there(diag: Diag, lab: Lab) -> None:
    assert_plain(diag("bisect", "lab", "--plan", "ddtree-garbel"), 2, "Did you mean 'ddtree-garble'")
    assert_plain(diag("bisect", "lab", "--plan", "./none.yaml"), 2, "none.yaml cannot be read")


def test_a_placeholder_that_nothing_fills(diag: Diag, project: Path, lab: Lab) -> None:
    write(project, entry(lab).replace("model =", "other ="))
    assert_plain(diag("bisect", "gpu", cwd=project), 2, "{model}", "--set model=VALUE", "labels.model")
    assert_plain(diag("bisect", "gpu", "--set", "model", cwd=project), 2, "NAME=VALUE")


# the rest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prob", "host", "lab"), "Did you mean 'probe'"),
        (("fix", "apply", "lab", "mask-indprt"), "mask-indptr"),
        (("probe", "host"), "NAME"),
        (("bisect", "lab", "--max"), "--max"),
    ],
)
def test_mistyped_commands(diag: Diag, lab: Lab, arguments: tuple[str, ...], said: str) -> None:
    assert_plain(diag(*arguments), 2, said)


def test_a_folder_that_is_not_a_lab_is_left_alone(diag: Diag, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for command in ("up", "down"):
        assert_plain(diag("lab", command, "--dir", str(tmp_path)), 5, str(tmp_path), "not a lab")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_lab_commands_without_a_lab(diag: Diag, tmp_path: Path) -> None:
    elsewhere = ("--dir", str(tmp_path / "none"))
    assert diag("lab", "status", *elsewhere).code == 5
    assert_plain(diag("lab", "reset", *elsewhere), 5, "diag lab up")
    assert_plain(diag("lab", "serve", *elsewhere), 5, "diag lab up")
    assert diag("lab", "down", *elsewhere).code == 0


def test_help_answers_for_every_command(diag: Diag) -> None:
    from diag.cli import COMMANDS

    for name in COMMANDS:
        ran: Any = diag(name, "--help")
        assert ran.code == 0
        assert "Usage: diag" in ran.out
