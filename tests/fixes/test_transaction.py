"""`diag fix` from the laptop's side: a real wheel's file, a real process on the other side, a real sshd."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from diag import cli
from diag.errors import FileNotAsExpected, PackageNotInstalled, PreconditionFailed
from diag.fixes import transaction
from diag.fixes.catalogue import Fix, get
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect
from diag.source import oracle
from diag.source.oracle import OracleAnswer
from tests.source.releases import PATH, source

pytestmark = pytest.mark.wheel

VERSION = "0.5.12"
Site = Path


def install(prefix: Path, text: str, version: str = VERSION) -> Path:
    """A virtual environment in shape, with one file of the package and the RECORD that its wheel has."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    file = site / PATH
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode())
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "pyvenv.cfg").write_text("version = 3.11.2\n")
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    recorded = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"{PATH},sha256={recorded},{len(text.encode())}\n")
    return site


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "venv"


@pytest.fixture
def site(prefix: Path) -> Site:
    return install(prefix, source(VERSION))


@pytest.fixture
def host(tmp_path: Path, prefix: Path) -> Host:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    python = str(prefix / "bin" / "python")
    return Host(name="here", address="local", python=python, helper_python=sys.executable, env=env)


@pytest.fixture
def transport(host: Host) -> Iterator[Transport]:
    with connect(host) as opened:
        yield opened


@pytest.fixture
def fix() -> Fix:
    return get("mask-indptr")


@pytest.fixture
def run(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a `diag` command line; exit code, standard output, standard error."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "hosts.toml").write_text(
        f'schema = 1\n[hosts.here]\naddress = "local"\npython = "{host.python}"\nhelper_python = "{sys.executable}"\n'
        f'[hosts.here.env]\nXDG_STATE_HOME = "{host.env["XDG_STATE_HOME"].get_secret_value()}"\n'
    )
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(config))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def applied(transport: Transport, fix: Fix) -> transaction.Outcome:
    return transaction.apply(transport, fix, transaction.plan(fix, transaction.inspect(transport, fix)))


def test_apply_and_revert(transport: Transport, fix: Fix, site: Site) -> None:
    before = transaction.inspect(transport, fix)
    assert (before.version, before.integrity, before.site_packages) == (VERSION, "pristine", str(site))
    assert before.text == source(VERSION)
    outcome = applied(transport, fix)
    assert outcome.changed
    assert outcome.detection.state == "fixed"
    assert outcome.standing.state == "applied"
    assert (site / PATH).read_text() == fix.rewrite(source(VERSION))

    again = applied(transport, fix)
    assert not again.changed
    assert again.installed.integrity == "edited"

    undone = transaction.revert(transport, fix, transaction.inspect(transport, fix))
    assert undone.changed
    assert undone.detection.state == "present"
    assert undone.standing.state == "not_applied"
    assert (site / PATH).read_bytes() == source(VERSION).encode()
    assert not transaction.revert(transport, fix, undone.installed).changed


def test_a_fix_over_an_injection_and_both_taken_back(transport: Transport, fix: Fix, site: Site) -> None:
    injection = get("inject-pinned-count")
    assert injection.kind == "injection"
    assert applied(transport, injection).detection.state == "fixed"
    pinned = (site / PATH).read_text()
    (removed,) = set(source(VERSION).splitlines()) - set(pinned.splitlines())
    (added,) = set(pinned.splitlines()) - set(source(VERSION).splitlines())
    assert removed.split("=")[0] == added.split("=")[0]
    assert "= 8 " in added
    assert applied(transport, fix).detection.state == "fixed"
    with pytest.raises(PreconditionFailed):  # the lower of two changes cannot be pulled out from under the upper one
        transaction.revert(transport, injection, transaction.inspect(transport, injection))
    assert transaction.revert(transport, fix, transaction.inspect(transport, fix)).changed
    assert (site / PATH).read_text() == pinned
    assert transaction.revert(transport, injection, transaction.inspect(transport, injection)).changed
    assert (site / PATH).read_bytes() == source(VERSION).encode()


def test_an_injection_that_would_show_nothing_is_not_made(transport: Transport, fix: Fix, site: Site) -> None:
    applied(transport, fix)
    injection = get("inject-pinned-count")
    outcome = applied(transport, injection)
    assert not outcome.changed
    assert outcome.detection.state == "not_applicable"
    with pytest.raises(FileNotAsExpected, match="not_applicable"):
        injection.rewrite((site / PATH).read_text())


@pytest.mark.parametrize("version", ["0.4.3", "0.5.9", "0.5.12", "0.5.16"])
def test_the_injection_is_one_line_in_every_shape(version: str) -> None:
    injection, old = get("inject-pinned-count"), source(version)
    new = injection.rewrite(old)
    assert sum(a != b for a, b in zip(old.splitlines(), new.splitlines())) == 1
    assert injection.detect(new).state == "fixed"
    assert get("mask-indptr").detect(new).state == "present"
    windows = injection.rewrite(old.replace("\n", "\r\n"))
    assert windows == new.replace("\n", "\r\n")


@pytest.mark.sshd
def test_over_ssh_in_two_commands_each(sshd, site: Site, host: Host, fix: Fix) -> None:  # type: ignore[no-untyped-def]
    with connect(sshd.host_with(python=host.python, helper_python=sys.executable, env=host.env)) as transport:
        begun = sshd.execs()
        assert applied(transport, fix).standing.state == "applied"
        assert sshd.execs() - begun <= 3  # read, run the new code, change
        begun = sshd.execs()
        installed = transaction.inspect(transport, fix)
        assert transaction.revert(transport, fix, installed).changed
        assert sshd.execs() - begun <= 3
    assert (site / PATH).read_bytes() == source(VERSION).encode()


def test_the_environment_is_found_by_its_server(site: Site, prefix: Path, host: Host, fix: Fix, tmp_path: Path) -> None:
    """Nothing in the inventory says where the engine is; a running server does. It holds the old code until it ends."""
    (site / "sglang" / "launch_server.py").write_text("import time\ntime.sleep(600)\n")
    (site / "sglang" / "__init__.py").touch()
    command = [prefix / "bin" / "python", "-m", "sglang.launch_server", "--port", "31999"]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path)
    try:
        with connect(host.model_copy(update={"python": None})) as transport:
            found = transaction.inspect(transport, fix)
            # Whoever runs the tests may have servers of their own.
            assert str(site) in (found.site_packages, *found.others)
            change = transaction.plan(fix, transaction.inspect(transport, fix, str(site)))
            outcome = transaction.apply(transport, fix, change)
        (process,) = [each for each in outcome.standing.processes if each.pid == server.pid]
        assert process.code == "stale"
        assert process.port == 31999
        assert outcome.standing.restart_needed == (server.pid,)
    finally:
        server.kill()
        server.wait()


def test_a_package_that_is_not_installed(transport: Transport, fix: Fix, prefix: Path) -> None:
    (prefix / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "pyvenv.cfg").write_text("version = 3.11.2\n")
    with pytest.raises(PackageNotInstalled) as caught:
        transaction.inspect(transport, fix)
    assert any(str(prefix) in line for line in caught.value.details)


def test_a_release_without_the_file(transport: Transport, fix: Fix, site: Site) -> None:
    (site / PATH).unlink()
    with pytest.raises(FileNotAsExpected, match="has no readable file"):
        transaction.inspect(transport, fix)


def test_a_file_that_is_not_text(transport: Transport, fix: Fix, site: Site) -> None:
    (site / PATH).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileNotAsExpected, match="not UTF-8"):
        transaction.plan(fix, transaction.inspect(transport, fix))


def test_a_shape_that_is_not_known(transport: Transport, fix: Fix, site: Site) -> None:
    strange = source(VERSION).replace("class TritonAttnBackend", "class TritonBackend")
    (site / PATH).write_text(strange)
    with pytest.raises(FileNotAsExpected) as caught:
        transaction.plan(fix, transaction.inspect(transport, fix))
    assert any("edited" in line for line in caught.value.details)
    assert (site / PATH).read_text() == strange


def test_a_change_between_looking_and_applying(transport: Transport, fix: Fix, site: Site) -> None:
    change = transaction.plan(fix, transaction.inspect(transport, fix))
    (site / PATH).write_text(source(VERSION) + "# mine\n")
    with pytest.raises(FileNotAsExpected, match="changed since it was read"):
        transaction.apply(transport, fix, change)
    assert (site / PATH).read_text().endswith("# mine\n")


@pytest.mark.parametrize("then", ["apply", "revert"])
@pytest.mark.parametrize("act", ["apply", "revert"])
def test_an_interrupted_change_is_ended_first(
    act: str, then: str, transport: Transport, fix: Fix, site: Site, tmp_path: Path
) -> None:
    """The host's power went between `committing` and the rename: cut the journal there, and put the files so."""
    old, new = source(VERSION), fix.rewrite(source(VERSION))
    applied(transport, fix)
    if act == "revert":
        transaction.revert(transport, fix, transaction.inspect(transport, fix))
    journal = next((tmp_path / "state").rglob("*.journal"))
    rows = journal.read_bytes().splitlines(keepends=True)
    intent = json.loads(next(row for row in reversed(rows) if b'"intent"' in row).split(b" ", 2)[2])
    journal.write_bytes(b"".join(rows[:-1]))
    Path(intent["files"][0]["temp"]).write_text(new if act == "apply" else old)
    (site / PATH).write_text(old if act == "apply" else new)
    if act == "revert":
        first = json.loads(rows[0].split(b" ", 2)[2])
        journal.with_name(f"{journal.name}.{first['id']}.0.orig").write_text(old)

    installed = transaction.inspect(transport, fix)
    assert installed.standing.state == "outstanding"
    assert installed.standing.outstanding == act
    if then == "apply":
        outcome = transaction.apply(transport, fix, transaction.plan(fix, installed))
    else:
        outcome = transaction.revert(transport, fix, installed)
    assert outcome.recovered == "finished"
    assert outcome.standing.state == ("applied" if then == "apply" else "not_applied")
    assert (site / PATH).read_text() == (new if then == "apply" else old)
    assert list(site.rglob("*.diag")) == []


def test_check_touches_nothing(transport: Transport, fix: Fix, site: Site, tmp_path: Path) -> None:
    change = transaction.plan(fix, transaction.inspect(transport, fix))
    assert transaction.check(transport, fix, change) == "apply"
    assert not (tmp_path / "state").exists()
    transaction.apply(transport, fix, change)
    change = transaction.plan(fix, transaction.inspect(transport, fix))
    assert transaction.check(transport, fix, change) == "nothing"
    (site / PATH).write_text(source(VERSION) + "# mine\n")
    change = transaction.plan(fix, transaction.inspect(transport, fix))
    (site / PATH).write_text(source(VERSION))
    with pytest.raises(FileNotAsExpected, match="changed since it was read"):
        transaction.check(transport, fix, change)


def test_a_fault_that_no_edit_mends_is_refused_with_what_to_do(transport: Transport, fix: Fix, site: Site) -> None:
    unmendable = replace(fix, mend=None, do=("Use another backend.", "Or wait."))
    with pytest.raises(PreconditionFailed) as caught:
        transaction.plan(unmendable, transaction.inspect(transport, unmendable))
    assert caught.value.next == "Use another backend."
    assert (site / PATH).read_text() == source(VERSION)


@pytest.mark.parametrize("verdict", ["right", "cannot_tell", "wrong"])
def test_the_oracle_is_asked_before_anything_is_changed(
    verdict: str, transport: Transport, fix: Fix, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask_text(transport: Transport, fix_id: str, site_packages: str, python: str, text: str) -> OracleAnswer:
        asked.append((fix_id, site_packages, text, (site / PATH).read_text()))
        return OracleAnswer(verdict, "so it is", "in short")  # type: ignore[arg-type]

    monkeypatch.setattr(oracle, "ask_text", ask_text, raising=False)
    fix = replace(fix, oracle=True)
    if verdict == "wrong":
        with pytest.raises(PreconditionFailed, match="computes wrong values") as caught:
            applied(transport, fix)
        assert caught.value.details == ["so it is"]
        assert (site / PATH).read_text() == source(VERSION)
    else:
        assert applied(transport, fix).oracle == transaction.Proof(verdict, "so it is")
    assert asked == [(fix.id, str(site), fix.rewrite(source(VERSION)), source(VERSION))]


# --- the command line --------------------------------------------------------------------------------------


def test_the_commands_as_a_program_reads_them(run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    code, out, _ = run("fix", "status", "here", "mask-indptr", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == 1
    assert document["state"] == "not_applied"
    assert document["fault"]["state"] == "present"
    assert document["file"] == {
        "path": PATH,
        "integrity": "pristine",
        "sha256": hashlib.sha256(source(VERSION).encode()).hexdigest(),
    }
    assert {"file", "symbol", "line", "text", "role"} == set(document["fault"]["sites"][0])

    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--diff", "--json")
    assert code == 0
    assert json.loads(out)["diff"].startswith(f"--- a/{PATH}\n")
    assert (site / PATH).read_text() == source(VERSION)

    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--json")
    document = json.loads(out)
    assert (code, document["changed"], document["state"]) == (0, True, "applied")
    assert document["file"]["integrity"] == "edited"
    assert run("fix", "status", "here", "mask-indptr", "--json")[0] == 0

    code, out, _ = run("fix", "revert", "here", "mask-indptr", "--json")
    document = json.loads(out)
    assert (code, document["changed"], document["fault"]["state"]) == (0, True, "present")
    assert (site / PATH).read_text() == source(VERSION)


def test_the_commands_as_a_person_reads_them(run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    code, out, _ = run("fix", "status", "here", "mask-indptr")
    assert code == 1
    assert "  404 |             seq_mask_len = self.num_draft_tokens * (  [seq_mask_len]" in out
    assert "next: diag fix apply here mask-indptr" in out
    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--diff")
    assert code == 0
    assert "-            max_extend_len = self.num_draft_tokens\n+            max_extend_len = draft_token_num\n" in out
    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--yes")
    assert code == 0
    assert "mask-indptr applied." in out
    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--yes")
    assert code == 0
    assert "Nothing to do" in out
    code, out, _ = run("fix", "revert", "here", "mask-indptr")
    assert code == 0
    assert "to the byte" in out


def test_check_and_force_on_the_command_line(run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--check", "--json")
    document = json.loads(out)
    assert (code, document["command"], document["would"]) == (0, "fix apply --check", "apply")
    code, out, err = run("fix", "apply", "here", "mask-indptr", "--check", "--diff")
    assert code == 0
    assert out.startswith("--- a/")
    assert "It would be applied to" in err
    assert (site / PATH).read_text() == source(VERSION)
    run("fix", "apply", "here", "mask-indptr", "--yes")
    code, out, _ = run("fix", "apply", "here", "mask-indptr", "--check")
    assert (code, out.startswith("Nothing to do")) == (0, True)

    mine = (site / PATH).read_text() + "# mine\n"
    (site / PATH).write_text(mine)
    code, _, err = run("fix", "revert", "here", "mask-indptr")
    assert code == 5
    assert "+# mine" in err
    assert "--force" in err
    assert (site / PATH).read_text() == mine
    code, out, _ = run("fix", "revert", "here", "mask-indptr", "--force", "--json")
    document = json.loads(out)
    assert (code, document["state"], document["oracle"]) == (0, "not_applied", None)
    assert [Path(kept).read_text() for kept in document["kept"]] == [mine]
    assert (site / PATH).read_text() == source(VERSION)
    (site / PATH).write_text(source(VERSION).replace("class TritonAttnBackend", "class TritonBackend"))
    assert run("fix", "apply", "here", "mask-indptr", "--check")[0] == 5


def test_every_document_is_as_the_schema_says(run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "fix.json").read_text())
    for arguments in (("apply", "--check"), ("apply",), ("status",), ("revert",), ("apply", "--check", "--diff")):
        _, out, _ = run("fix", arguments[0], "here", "mask-indptr", *arguments[1:], "--json")
        jsonschema.validate(json.loads(out), schema)


def test_text_from_the_host_cannot_reach_the_terminal(run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    row = "            max_extend_len = self.num_draft_tokens\n"
    (site / PATH).write_text(source(VERSION).replace(row, row[:-1] + "  # \x1b]0;owned\x07[red]\u202e\n"))
    for arguments in (("status",), ("apply", "--diff")):
        _, out, err = run("fix", arguments[0], "here", "mask-indptr", *arguments[1:])
        if arguments[0] == "status":
            assert "\x1b" not in out + err
            assert "\\x1b]0;owned\\x07[red]\\u202e" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("fix", "status", "here", "mask-inptr", "--json"), 2),
        (("fix", "show", "nothing", "--json"), 2),
        (("fix", "status", "there", "mask-indptr", "--json"), 2),
        (("fix", "status", "here", "mask-indptr", "--site-packages", "/nowhere", "--json"), 5),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, run: Callable[..., tuple[int, str, str]], site: Site) -> None:
    got, out, _ = run(*arguments)
    assert got == code
    assert json.loads(out)["error"]["exit_code"] == code


def test_list_and_show(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("fix", "list", "--json")
    assert code == 0
    assert "mask-indptr" in [each["id"] for each in json.loads(out)["fixes"]]
    code, out, _ = run("fix", "list")
    assert out.startswith("mask-indptr")
    code, out, _ = run("fix", "show", "mask-indptr")
    assert code == 0
    assert "draft_token_num" in out


def test_of_several_installations_none_is_guessed(site: Site, host: Host, fix: Fix) -> None:
    with connect(host) as transport:
        installed = transaction.inspect(transport, fix)
    two = replace(installed, others=("/opt/other/site-packages",))
    nameless = host.model_copy(update={"python": None})
    transaction.refuse_a_guess(two, host, None)  # the inventory says which
    transaction.refuse_a_guess(two, nameless, installed.site_packages)
    transaction.refuse_a_guess(replace(two, others=()), nameless, None)
    with pytest.raises(PreconditionFailed) as refused:
        transaction.refuse_a_guess(two, nameless, None)
    assert refused.value.details == [installed.site_packages, "/opt/other/site-packages"]
    assert "--site-packages" in refused.value.next
