"""Commits of real repositories, tried in a worktree of the run's own: against `git bisect`, and against kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag import bundle
from diag.bisect.decision import Next
from diag.bisect.over import history
from diag.bisect.over.history import Range
from diag.bisect.over.layers import Before, Trees
from diag.bisect.over.search import FirstBadSearch
from diag.bisect.trial import Outcome, Trial
from diag.errors import DiagError, HostError, PreconditionFailed, UsageError
from diag.hosts.inventory import Host
from diag.hosts.local import LocalTransport
from diag.hosts.transport import connect
from tests.lab_fixture import Ran, command

Diag = Callable[..., Ran]
SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "schemas" / "bisect.json").read_text())
WHO = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(repo: Path, *words: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["git", "-C", str(repo), "-c", "user.name=n", "-c", "user.email=e@x", *words],
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, **WHO},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def graph(
    folder: Path, parents: list[tuple[int, ...]], first_bad: int, docs: frozenset[int] = frozenset()
) -> list[str]:
    """A repository with these commits; the file `broken` is there from the first bad one on. docs: commits that change
    nothing below src/. Ids in the order given."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    broken: list[bool] = []
    stream = []
    for at, above in enumerate(parents):
        broken.append(at == first_bad or any(broken[parent] for parent in above))
        source = str(at) if at not in docs or not above else None
        files = [("docs", str(at)), *([("src/n", source)] if source is not None else [])]
        files += [("src/broken", "x")] if broken[at] else []
        stream.append(f"commit refs/heads/main\nmark :{at + 1}\ncommitter n <e@x> {1700000000 + 60 * at} +0000\n")
        stream.append(f"data {len(f'step {at}')}\nstep {at}\n")
        stream += [f"{'from' if nth == 0 else 'merge'} :{one + 1}\n" for nth, one in enumerate(above)]
        stream += [f"M 100644 inline {path}\ndata {len(text)}\n{text}\n" for path, text in files]
    marks = folder / ".git" / "marks"
    git(folder, "fast-import", "--quiet", f"--export-marks={marks}", given="".join(stream))
    git(folder, "checkout", "-q", "main")
    by_mark = dict(line.split() for line in marks.read_text().splitlines())
    return [by_mark[f":{at + 1}"] for at in range(len(parents))]


LINE = [(), *((at,) for at in range(11))]
"""Twelve commits in a row."""
MERGED = [(), (0,), (1,), (1,), (3,), (4,), (2, 5), (6,), (7,)]
"""0 1 2 M 7 8 with 3 4 5 merged by 6."""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], int]:
    count = draw(st.integers(2, 14))
    parents: list[tuple[int, ...]] = [()]
    for at in range(1, count):
        above = st.lists(st.integers(max(0, at - 4), at - 1), min_size=1, max_size=2, unique=True)
        parents.append(tuple(draw(above)))
    contained = {parent for above in parents for parent in above}
    tips = tuple(at for at in range(count) if at not in contained)
    if len(tips) > 1:
        parents.append(tips)
    return parents, draw(st.integers(1, len(parents) - 1))


@given(made=graphs())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_git_bisect_says_the_same(made: tuple[list[tuple[int, ...]], int]) -> None:
    parents, first_bad = made
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder)
        ids = graph(repo, parents, first_bad)
        axis = history.history_of(history.local(asked := Range(folder, ids[0], "main")), asked).axis
        bad = {one for one in ids if "src/broken" in git(repo, "ls-tree", "-r", "--name-only", one).split()}
        search, trials = FirstBadSearch(axis), []
        while isinstance(step := search.next(trials), Next):
            outcome = Outcome.FAIL if step.config["commit"] in bad else Outcome.PASS
            trials.append(Trial(len(trials) + 1, step.purpose, step.config, dict(step.config), outcome))
        git(repo, "bisect", "start", "main", ids[0])
        said = git(repo, "bisect", "run", "sh", "-c", "test ! -e src/broken")
        assert step.culprit is not None
        assert f"{step.culprit.members[0].bad} is the first bad commit" in said
        assert step.culprit.members[0].bad == ids[first_bad]


# --- what a repository says ----------------------------------------------------------------------------------------


def read(repo: Path, good: str, bad: str, *paths: str, ignore_changes: bool = False) -> history.History:
    asked = Range(str(repo), good, bad, paths)
    return history.history_of(history.local(asked), asked, ignore_changes=ignore_changes)


def test_a_host_and_this_machine_say_the_same(tmp_path: Path, sshd) -> None:
    ids = graph(tmp_path / "r", MERGED, 4)
    asked = Range(str(tmp_path / "r"), ids[0], "main")
    with connect(sshd.host) as transport:
        there = history.remote(transport, asked)
    assert there == history.local(asked)
    axis = history.history_of(there, asked).axis
    assert [place.title for place in axis.places][:2] == ["step 0, 2023-11-14", "step 1, 2023-11-14"]
    assert axis.places[axis.bad].id == ids[8]


def test_a_folder_inside_the_checkout_will_do(tmp_path: Path) -> None:
    ids = graph(tmp_path, LINE, 4)
    assert read(tmp_path / "src", ids[0], "main").top == str(tmp_path)


def test_what_is_refused(tmp_path: Path) -> None:
    ids = graph(tmp_path, LINE, 4)
    git(tmp_path, "tag", "v0.5.11", ids[3])
    git(tmp_path, "checkout", "-q", "--orphan", "other")
    git(tmp_path, "commit", "-q", "-m", "else")
    git(tmp_path, "checkout", "-q", "main")
    for good, bad, said in (
        ("v0.5.1", "main", "--good v0.5.1: no such commit"),
        (ids[0], "mian", "--bad mian: no such commit"),
        (ids[0], ids[0], "are one commit"),
        ("main", ids[0], f"--bad {ids[0]} comes before --good main"),
        ("other", "main", "have no history in common"),
        ("--help", "main", "--good --help: no such commit"),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            read(tmp_path, good, bad)
        assert refused.value.next
    with pytest.raises(UsageError, match=r"v0\.5\.1: no such") as near:
        read(tmp_path, "v0.5.1", "main")
    assert "Did you mean v0.5.11" in near.value.next


@pytest.mark.parametrize("where", ["no/such/folder", "."])
def test_where_there_is_no_repository(tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError, match="is not inside a git repository"):
        read(tmp_path / where, "a", "b")
    with (
        LocalTransport(Host(name="here", address="local")) as transport,
        pytest.raises(DiagError, match="git could not be asked about"),
    ):
        history.remote(transport, Range(str(tmp_path / where), "a", "b"))


def test_changes_that_no_commit_holds_are_refused(tmp_path: Path) -> None:
    ids = graph(tmp_path, LINE, 4)
    (tmp_path / "untracked").write_text("is not in the way")
    assert read(tmp_path, ids[0], "main").notes == ()
    (tmp_path / "docs").write_text("edited")
    with pytest.raises(PreconditionFailed, match="changes that are not committed") as refused:
        read(tmp_path, ids[0], "main")
    assert refused.value.details == [" M docs"]
    (note,) = read(tmp_path, ids[0], "main", ignore_changes=True).notes
    assert "in no trial" in note


def test_paths_that_do_not_differ(tmp_path: Path) -> None:
    ids = graph(tmp_path, LINE, 1, docs=frozenset(range(3, 12)))
    with pytest.raises(UsageError, match="Nothing in src differs"):
        read(tmp_path, ids[3], "main", "src")
    with pytest.raises(UsageError, match="Nothing in no/such/path differs"):
        read(tmp_path, ids[3], "main", "no/such/path")
    axis = read(tmp_path, ids[0], "main", "src").axis
    assert axis.declared
    assert len({place.build for place in axis.places}) == 3


def test_submodules_and_shallow_clones_are_noticed(tmp_path: Path) -> None:
    graph(tmp_path / "inner", LINE[:2], 1)
    ids = graph(tmp_path / "outer", LINE[:3], 1)
    outer = tmp_path / "outer"
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "inner"), "third")
    git(outer, "commit", "-q", "-m", "with a submodule")
    (note,) = read(outer, ids[0], "main").notes
    assert note.endswith(": third")
    git(tmp_path, "clone", "-q", "--depth", "3", f"file://{outer}", "shallow")
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "shallow", ids[0], "HEAD")
    assert "git fetch --unshallow" in refused.value.next


def test_a_good_end_beside_the_bad_one_is_compared_where_they_part(tmp_path: Path) -> None:
    """1 is where they part; 2 is good, on a branch of its own; 3 to 6 lead to the bad end."""
    ids = graph(tmp_path, [(), (0,), (1,), (1,), (3,), (4,), (5,)], 5)
    found = read(tmp_path, ids[2], ids[6])
    assert found.axis.bases == 2
    assert [place.id for place in found.axis.places[:2]] == [ids[2], ids[1]]
    assert ids[1][:12] in found.notes[0]


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"DIAG_STATE_DIR": str(tmp_path / "state"), "DIAG_CONFIG_DIR": str(tmp_path / "config")}


def bisect(
    diag: Diag, repo: Path, env: dict[str, str], good: str, *more: str, cmd: str = "test ! -e src/broken"
) -> Ran:
    ends = ("--over", "commits", "--good", good, "--bad", "main")
    return diag("bisect", *ends, "--trial-cmd", cmd, *more, env=env, cwd=repo)


def trees(env: dict[str, str]) -> list[str]:
    folder = Path(env["DIAG_STATE_DIR"]) / "trees"
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def state_of(repo: Path) -> tuple[str, ...]:
    """Everything of a checkout that must not change."""
    head = (repo / ".git" / "HEAD").read_text()
    index = (repo / ".git" / "index").stat().st_mtime_ns
    files = {p: p.stat().st_mtime_ns for p in sorted(repo.rglob("*")) if ".git" not in p.parts}
    asked = (git(repo, "for-each-ref"), git(repo, "worktree", "list"), git(repo, "stash", "list"))
    return (head, str(index), str(files), *asked)


@pytest.mark.parametrize("detached", [False, True])
def test_a_commit_inside_a_merge(diag: Diag, repo: Path, env: dict[str, str], detached: bool) -> None:
    ids = graph(repo, MERGED, 4)
    if detached:
        git(repo, "checkout", "-q", ids[2])
    (repo / "mine.txt").write_text("untracked")
    before = state_of(repo)
    cmd = 'test "$DIAG_COMMIT" = "$(git rev-parse HEAD)" && test -e "$DIAG_REPO/mine.txt" && test ! -e src/broken'
    ran = bisect(diag, repo, env, ids[0], "--json", cmd=cmd)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    jsonschema.validate(told, SCHEMA)
    assert told["culprit"]["factors"] == {"commit": ids[4]}
    assert told["culprit"]["title"] == f"step 4, 2023-11-14 (commit {ids[4]})"
    assert told["over"]["last_good"] == [ids[3]]
    assert told["over"]["repo"] == str(repo)
    assert state_of(repo) == before
    assert trees(env) == []


def test_equal_builds_are_tried_once(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6, docs=frozenset({1, 2, 3, 4, 5, 7, 8, 9, 10, 11}))
    told = json.loads(bisect(diag, repo, env, ids[0], "--json", "--build-paths", "src/").out)
    assert told["culprit"]["factors"] == {"commit": ids[6]}
    # Both ends, which are the two builds there are, and the commit's own parent: that paths matter is a claim.
    assert [t["config"]["commit"] for t in told["trials"]] in (
        [ids[0], ids[11], ids[6], ids[5]],
        [ids[0], ids[11], ids[5]],
    )


def test_a_failure_outside_the_paths_is_distrusted(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    """3 breaks it by docs, 6 changes src: the parent of 6 fails itself."""
    ids = graph(repo, LINE, 6, docs=frozenset({1, 2, 3, 4, 5, 7, 8, 9, 10, 11}))
    cmd = 'test "$(cat docs)" -lt 3'
    ran = bisect(diag, repo, env, ids[0], "--build-paths", "src", cmd=cmd)
    assert ran.code == 1
    assert ran.out.startswith(f"CULPRIT   commit {ids[3][:12]} (step 3, ")
    assert "Distrust it: nothing that matters was changed there" in ran.out


def test_skips_are_said(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6)
    dead = f"case $DIAG_COMMIT in {ids[5]}|{ids[4]}) exit 125;; esac; test ! -e src/broken"
    ran = bisect(diag, repo, env, ids[0], cmd=dead)
    assert ran.code == 3, ran.err
    assert "3 of 11, one of which it is:" in ran.out
    assert f"commit {ids[5][:12]} (step 5, 2023-11-14) (33%, cannot be tried)" in ran.out
    assert f"commit {ids[6][:12]}" in ran.out


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--check",), 2, "--check and --over"),
        (("--package", "x", "--over", "versions"), 2, "Versions are laid before a server's environment"),
        (("--dry-run",), 0, "12 commits,"),
        (("--good", "nope"), 2, "--good nope: no such commit"),
        (("--repo", "/tmp/no/such"), 2, "is not inside a git repository"),
    ],
)
def test_other_command_lines(
    diag: Diag, repo: Path, env: dict[str, str], more: tuple[str, ...], code: int, said: str
) -> None:
    ids = graph(repo, LINE, 6)
    ran = bisect(diag, repo, env, ids[0], *more)
    assert ran.code == code, ran.err
    assert said in ran.out + ran.err
    assert trees(env) == []


def test_a_script_that_is_not_in_the_tree(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6)
    script = repo / "try.sh"
    script.write_text("#!/bin/sh\ntest ! -e src/broken\n")
    script.chmod(0o755)
    lost = bisect(diag, repo, env, ids[0], cmd="./try.sh")
    assert lost.code == 5
    assert "$DIAG_REPO/NAME" in lost.err
    assert bisect(diag, repo, env, ids[0], cmd="$DIAG_REPO/try.sh").code == 1
    assert trees(env) == []


def test_options_that_need_over_say_so(diag: Diag, env: dict[str, str]) -> None:
    ran = diag("bisect", "lab", "--good", "1", env=env)
    assert ran.code == 2
    assert "--good says something about --over, which is not there" in ran.err


# The third trial goes on when `hold` is gone.
SLOW = (
    "cd $DIAG_REPO/.git; echo x >> made; "
    "while [ $(wc -l < made) -ge 3 ] && [ -e hold ]; do sleep 0.05; done; cd - >/dev/null; test ! -e src/broken"
)


def killed_in_the_middle(repo: Path, env: dict[str, str], good: str) -> subprocess.Popen[bytes]:
    """A run that has made two trials, and is at the third."""
    (repo / ".git" / "hold").touch()
    child = subprocess.Popen(
        command("bisect", "--over", "commits", "--good", good, "--bad", "main", "--trial-cmd", SLOW),
        env={**os.environ, **env},
        cwd=repo,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    made = repo / ".git" / "made"
    wait_until(lambda: made.exists() and made.read_text().count("x") >= 3)
    return child


def wait_until(true: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def only_run(diag: Diag, env: dict[str, str]) -> dict[str, str]:
    (run,) = json.loads(diag("runs", "list", "--json", env=env).out)["runs"]
    return run


def test_kill_9_changes_nothing_and_the_run_goes_on(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6)
    before = state_of(repo)
    with killed_in_the_middle(repo, env, ids[0]) as child:
        child.kill()
    wait_until(lambda: trees(env) == [])
    assert state_of(repo) == before
    (repo / ".git" / "hold").unlink()
    run = only_run(diag, env)
    assert (run["ended"], run["plan"]) == ("cut off", "commits of repo")
    git(repo, "commit", "-q", "--allow-empty", "-m", "main goes on meanwhile")
    told = json.loads(diag("bisect", "--resume", run["run"], "--json", env=env).out)
    assert told["culprit"]["factors"] == {"commit": ids[6]}
    tried = [t["config"]["commit"] for t in told["trials"]]
    assert len(tried) == len(set(tried))
    assert trees(env) == []


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux tells who holds a lock")
def test_when_all_of_us_are_killed_the_next_one_removes_what_is_left(
    diag: Diag, repo: Path, env: dict[str, str]
) -> None:
    ids = graph(repo, LINE, 6)
    before = state_of(repo)
    with killed_in_the_middle(repo, env, ids[0]) as child:
        os.kill(_holder(env), signal.SIGKILL)
        child.kill()
    assert len(trees(env)) == 2
    assert len(git(repo, "worktree", "list").splitlines()) == 2
    (repo / ".git" / "hold").unlink()
    run = only_run(diag, env)["run"]
    other = bisect(diag, repo, env, ids[0])
    assert other.code == 1
    assert f"removed what run {run} had left behind" in other.err
    assert state_of(repo) == before
    resumed = diag("bisect", "--resume", run, env=env)
    assert resumed.code == 1, resumed.err
    assert state_of(repo) == before
    assert trees(env) == []


def _holder(env: dict[str, str]) -> int:
    inode = next((Path(env["DIAG_STATE_DIR"]) / "trees").glob("*.lock")).stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return next(int(line.split()[4]) for line in lines if f":{inode} " in line)


def test_ctrl_c_leaves_nothing(repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6)
    before = state_of(repo)
    with killed_in_the_middle(repo, env, ids[0]) as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    assert trees(env) == []
    assert state_of(repo) == before


def test_a_repository_that_is_another_one_is_no_place_to_go_on(diag: Diag, repo: Path, env: dict[str, str]) -> None:
    ids = graph(repo, LINE, 6)
    assert bisect(diag, repo, env, ids[0]).code == 1
    run = only_run(diag, env)["run"]
    repo.rename(repo.parent / "elsewhere")
    graph(repo, LINE, 3)
    refused = diag("bisect", "--resume", run, env=env)
    assert refused.code == 2
    assert "no such commit" in refused.err
    again = diag("bisect", "--resume", run, "--good", ids[0], env=env)
    assert (again.code, "knows what it is about" in again.err) == (2, True)


# --- the tree itself -----------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Iterator[LocalTransport]:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with LocalTransport(Host(name="here", address="local", env=cache)) as transport:
        yield transport


def test_a_tree_has_what_the_commit_has_and_what_a_build_left(here: LocalTransport, repo: Path) -> None:
    ids = graph(repo, LINE, 6)
    (repo / ".git" / "info" / "exclude").write_text("build/\n")
    trees = Trees(here, "run-1", str(repo))
    folder = Path(trees.lay(ids[2], lambda what: None).folder)
    assert (folder / "src" / "n").read_text() == "2"
    for name in ("build/object.o", "left.txt", "src/__pycache__/n.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (folder / "src" / "n").write_text("edited by a trial")
    laid = trees.lay(ids[7], lambda what: None)
    assert laid.at == ids[7]
    assert laid.warnings == ()
    assert (folder / "src" / "n").read_text() == "7"
    assert (folder / "build" / "object.o").exists()  # ignored: what a build goes on from
    assert not (folder / "left.txt").exists()
    assert not (folder / "src" / "__pycache__").exists()
    trees.close()
    assert not folder.exists()


def test_a_commit_that_is_not_there_ends_it_cleanly(here: LocalTransport, repo: Path, tmp_path: Path) -> None:
    graph(repo, LINE, 6)
    trees = Trees(here, "run-1", str(repo))
    with pytest.raises((PreconditionFailed, HostError), match="git could not be asked"):
        trees.lay("0" * 40, lambda what: None)
    trees.close()
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert list((tmp_path / "cache" / "diag" / "trees").iterdir()) == []


def test_hooks_and_other_worktrees_of_the_user_are_left_alone(here: LocalTransport, repo: Path, tmp_path: Path) -> None:
    ids = graph(repo, LINE, 6)
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'hook-ran'}\n")
    hook.chmod(0o755)
    git(repo, "-c", "core.hooksPath=/dev/null", "worktree", "add", "-q", "--detach", str(tmp_path / "theirs"), ids[1])
    (tmp_path / "theirs").rename(tmp_path / "unplugged")  # a disk that is not there now
    trees = Trees(here, "run-1", str(repo))
    trees.lay(ids[3], lambda what: None)
    trees.close()
    assert not (tmp_path / "hook-ran").exists()
    (tmp_path / "unplugged").rename(tmp_path / "theirs")
    assert "theirs" in git(repo, "worktree", "list")
    assert git(tmp_path / "theirs", "rev-parse", "HEAD") == ids[1]


def test_from_a_linked_worktree_and_a_bare_repository(here: LocalTransport, repo: Path, tmp_path: Path) -> None:
    ids = graph(repo, LINE, 6)
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"), ids[1])
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    for where in ("linked", "bare.git"):
        found = read(tmp_path / where, ids[0], "main")
        assert found.top == str(tmp_path / where)
        assert len(found.axis.places) == 12
        trees = Trees(here, "run-1", str(tmp_path / where))
        assert trees.lay(ids[3], lambda what: None).at == ids[3]
        trees.close()
        assert not any("run-1" in line for line in git(tmp_path / where, "worktree", "list").splitlines())


def test_where_a_package_is_imported_from(here: LocalTransport, repo: Path) -> None:
    import sys

    graph(repo, LINE[:2], 1)
    for place in ("src/toy", "toy"):
        (repo / place).mkdir(parents=True)
        (repo / place / "__init__.py").write_text("")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "two places")
    head = git(repo, "rev-parse", "HEAD")
    for source, expected in ((None, "src/toy/__init__.py"), (".", "toy/__init__.py")):
        trees = Trees(
            here, "run-1", str(repo), Before(sys.executable, "toy", {"PYTHONPATH": "/elsewhere"}), source=source
        )
        laid = trees.lay(head, lambda what: None)
        assert laid.details["origin"] == f"{laid.folder}/{expected}"
        assert laid.env["PYTHONPATH"].endswith(":/elsewhere")
        trees.close()


def test_git_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = bundle.load("probes.checkout")
    with pytest.raises(checkout.GitFailed, match="no such folder"):
        checkout.Git(str(tmp_path / "none"))(["status"])
    document = checkout.failed("/r", checkout.GitFailed("fatal: detected dubious ownership in repository")).document
    assert "safe.directory" in document["error"]["next"]
    with pytest.raises(checkout.Refused, match=r"git there is 1\.8; this takes 2\.24 or newer"):
        checkout._refuse_old("git version 1.8.3.1\n")
    checkout._refuse_old(checkout.Git(str(tmp_path))(["version"]))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(checkout.GitFailed, match="git is not installed"):
        checkout.Git(str(tmp_path))(["status"])
