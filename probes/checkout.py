"""The commits between two, and trees of single commits, from a repository on this machine. Needs `git` there.

Trials never touch the user's checkout: each run has a worktree of its own (overlay_hold), in which the commit of a
trial is checked out. HEAD, branches, index and files of the checkout stay as they are, whatever happens.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _proc, overlay, overlay_hold
from .overlay_hold import Held, Refused

Json = Dict[str, Any]

GIT_S = 600.0
MAX_LINES = 20
MAX_COMMITS = 6000
OLDEST_GIT = (2, 24)  # rev-parse --end-of-options
_FIELDS = "%H%x00%P%x00%aI%x00%s"
# Neither the user's hooks nor their configuration may change what is read or checked out.
_QUIET = ["-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false", "-c", "advice.detachedHead=false"]
_QUIET += ["-c", "core.quotePath=false", "-c", "i18n.logOutputEncoding=UTF-8"]


class GitFailed(Exception):
    """git said no; the text is what it said."""


class Git:
    """Runs git in a folder; the laptop has one of its own (diag/bisect/over/history.py) with the same call."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.env.update(LC_ALL="C", GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0")

    def __call__(self, words: Sequence[str], stdin: str = "") -> str:
        try:
            done = subprocess.run(
                ["git", *_QUIET, *words],
                cwd=self.folder,
                env=self.env,
                input=stdin.encode("utf-8", "surrogateescape"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=GIT_S,
                check=False,
            )
        except FileNotFoundError:
            missing = not os.path.isdir(self.folder)
            raise GitFailed("there is no such folder" if missing else "git is not installed") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GitFailed(str(error)) from None
        if done.returncode != 0:
            raise GitFailed(_proc.text(done.stderr).strip() or "exit code {}".format(done.returncode))
        return _proc.text(done.stdout)


def run(args: Mapping[str, Any], talk: Any) -> Json:
    """{"repo", "good", "bad", "paths"}: `look`; or, with "mark", "lease_s" and "root", hold a worktree of "repo".

    messages: switch {commit, package, python, env, source} -> event at {commit, folder, changed, and with a python:
              pythonpath, origin, or lacking where the commit does not have the package}
    returns:  {"removed": folder, "swept": [runs]}
    """
    repo = os.path.expanduser(str(args["repo"]))
    try:
        if "mark" not in args:
            return look(Git(repo), str(args["good"]), str(args["bad"]), args.get("paths") or [])
        return hold(args, repo, talk)
    except Refused as error:
        return error.document
    except GitFailed as error:
        return failed(repo, error).document
    except OSError as error:
        return overlay_hold.refusal(error)


def failed(repo: str, error: GitFailed) -> Refused:
    said = str(error).splitlines()[-MAX_LINES:]
    next = "Name a folder inside a git checkout: --repo PATH"
    if "dubious ownership" in str(error):
        next = "It belongs to another user; if that is as it should be: git config --global --add safe.directory PATH"
    return Refused("git could not be asked about {}: {}.".format(repo, said[0] if said else "?"), next, said[1:])


# --- what there is ---------------------------------------------------------------------------------


def look(git: Any, good: str, bad: str, paths: Sequence[str]) -> Json:
    """What a repository says. git: called with words, and text for its input; raises GitFailed.

    {"top", "head", "bare", "shallow", "dirty": [lines], "submodules": [paths], "ends": {"good", "bad": commit id or
    null}, "names": [branches and tags], "bases": [merge bases], "count": commits in `bad` and not in `good`,
    "commits": [[id, [parents], author date, subject, build]], the older ones first: the good end, other merge bases,
    then the range}. build: the object ids of `paths` at that commit, or of its whole tree.
    """
    _refuse_old(git(["version"]))
    bare = git(["rev-parse", "--is-bare-repository"]).strip() == "true"
    found: Json = {
        "bare": bare,
        "top": git(["rev-parse", "--absolute-git-dir" if bare else "--show-toplevel"]).strip(),
        "shallow": git(["rev-parse", "--is-shallow-repository"]).strip() == "true",
        "head": _head(git),
        "dirty": [] if bare else _dirty(git),
        "ends": {"good": _commit(git, good), "bad": _commit(git, bad)},
        "names": [],
        "commits": [],
        "bases": [],
        "submodules": [],
        "count": 0,
    }
    low, high = found["ends"]["good"], found["ends"]["bad"]
    if low is None or high is None:
        found["names"] = git(["for-each-ref", "--format=%(refname:short)", "--sort=-creatordate"]).split("\n")[:2000]
        return found
    found["bases"] = _bases(git, low, high)
    found["count"] = int(git(["rev-list", "--count", high, "^" + low]))
    found["submodules"] = _submodules(git, high)
    if 0 < found["count"] <= MAX_COMMITS:
        others = [base for base in found["bases"] if base != low]
        told = list(_told(git, ["--no-walk=unsorted", low, *others]))
        told += _told(git, ["--topo-order", "--reverse", high, "^" + low])
        builds = _builds(git, [commit[0] for commit in told], paths)
        found["commits"] = [[*commit, build] for commit, build in zip(told, builds)]
    return found


def _refuse_old(said: str) -> None:
    found = re.search(r"(\d+)\.(\d+)", said)
    if found and (int(found.group(1)), int(found.group(2))) < OLDEST_GIT:
        raise Refused(
            "git there is {}; this takes {}.{} or newer.".format(found.group(), *OLDEST_GIT),
            "Install a newer git, and put it first in PATH.",
        )


def _head(git: Any) -> Json:
    try:
        branch = git(["symbolic-ref", "--quiet", "--short", "HEAD"]).strip()
    except GitFailed:
        branch = ""
    return {"branch": branch, "commit": _commit(git, "HEAD")}


def _commit(git: Any, name: str) -> Any:
    try:
        return git(["rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}"]).strip()
    except GitFailed:
        return None


def _dirty(git: Any) -> List[str]:
    """Changes of tracked files, as `git status` tells them."""
    said = git(["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none"])
    return [line for line in said.split("\n") if line][:MAX_LINES]


def _bases(git: Any, low: str, high: str) -> List[str]:
    try:
        return list(git(["merge-base", "--all", low, high]).split())
    except GitFailed:
        return []


def _submodules(git: Any, commit: str) -> List[str]:
    listed = git(["ls-tree", "-r", "--full-tree", commit]).split("\n") if _has(git, commit + ":.gitmodules") else []
    return [line.partition("\t")[2] for line in listed if line.startswith("160000")]


def _has(git: Any, name: str) -> bool:
    try:
        git(["cat-file", "-e", name])
    except GitFailed:
        return False
    return True


def _told(git: Any, which: Sequence[str]) -> Iterator[Tuple[str, List[str], str, str]]:
    said = git(["log", "--no-color", "--no-decorate", "--format=" + _FIELDS, "-z", *which])
    words = said.split("\0")
    for at in range(0, len(words) - 3, 4):
        yield words[at].strip(), words[at + 1].split(), words[at + 2], words[at + 3][:200]


def _builds(git: Any, commits: Sequence[str], paths: Sequence[str]) -> List[str]:
    """What matters of each commit, as object ids; "-" for a path that it does not have."""
    wanted = ["{}:{}".format(commit, path) for commit in commits for path in paths or [""]]
    said = git(["cat-file", "--batch-check=%(objectname)"], "".join(name + "\n" for name in wanted))
    names = ["-" if line.endswith(" missing") else line for line in said.split("\n")]
    each = max(1, len(paths))
    return [",".join(names[at * each : (at + 1) * each]) for at in range(len(commits))]


# --- a tree of our own -----------------------------------------------------------------------------


def hold(args: Mapping[str, Any], repo: str, talk: Any) -> Json:
    top, mark = overlay_hold.root(args.get("root")), str(args["mark"])
    swept = overlay_hold.sweep(top, "trees", remove)
    common = Git(repo)(["rev-parse", "--git-common-dir"]).strip()
    note = {"repo": os.path.realpath(os.path.join(repo, common))}
    with Held(top, "trees", mark, note, remove) as held:
        tree = Tree(note["repo"], os.path.join(held.folder, "tree"))
        talk.emit({"event": "holds", "folder": tree.folder, "swept": swept})
        for message in overlay_hold.messages(talk, float(args.get("lease_s", 60))):
            if message["cmd"] == "switch":
                talk.emit(dict(tree.switch(message), event="at"))
        overlay_hold.quiet(mark)
    return {"removed": held.folder, "swept": swept}


def remove(folder: str, note: Mapping[str, Any]) -> None:
    """The worktree, and what the repository knows of it (no `worktree prune`: it would forget others, too, whose disk
    is not there now). The repository itself may be gone."""
    tree = os.path.join(folder, "tree")
    with contextlib.suppress(GitFailed):
        Git(str(note["repo"]))(["worktree", "remove", "--force", "--force", tree])
    shutil.rmtree(folder, ignore_errors=True)
    for known in glob.glob(os.path.join(glob.escape(str(note["repo"])), "worktrees", "*", "gitdir")):
        if (_proc.read(known) or b"").decode("utf-8", "surrogateescape").strip() == os.path.join(tree, ".git"):
            shutil.rmtree(os.path.dirname(known), ignore_errors=True)


class Tree:
    """A worktree with one commit at a time in it."""

    def __init__(self, repo: str, folder: str) -> None:
        self.repo, self.folder = repo, folder

    def switch(self, message: Mapping[str, Any]) -> Json:
        """Check the commit out: its tracked files, and none that an earlier trial left, but for ignored ones, which are
        what a build goes on from. With "python", also where the package would be imported from."""
        commit = str(message["commit"])
        if os.path.isdir(self.folder):
            git = Git(self.folder)
            git(["checkout", "--quiet", "--force", "--detach", commit])
            git(["clean", "--quiet", "--force", "-d"])
            _forget_compiled(self.folder)
        else:
            Git(self.repo)(["worktree", "add", "--quiet", "--force", "--detach", self.folder, commit])
            git = Git(self.folder)
        at = git(["rev-parse", "HEAD"]).strip()
        if at != commit:
            raise Refused("The tree is at {} and not at {}.".format(at, commit))
        found: Json = {"commit": at, "changed": _dirty(git), "folder": self.folder}
        if message.get("python"):
            source = self._source(message)
            found.update(self.before_the_environment(message, source) if source is not None else {"lacking": True})
        return found

    def before_the_environment(self, message: Mapping[str, Any], source: str) -> Json:
        """What PYTHONPATH must be for the package to come from here, and that it does."""
        env = dict(message.get("env") or {})
        after = env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = source + (os.pathsep + after if after else "")
        seen = overlay.where_from(message["python"], env, message["package"], _module(message), self.folder)
        return {"pythonpath": env["PYTHONPATH"], "origin": seen["origin"]}

    def _source(self, message: Mapping[str, Any]) -> Optional[str]:
        """The folder that the package lies in; None where this commit has none."""
        given = message.get("source")
        places = [str(given)] if given else ["python", "src", "."]
        folders = [os.path.normpath(os.path.join(self.folder, place)) for place in places]
        return next((path for path in folders if os.path.isdir(os.path.join(path, _module(message)))), None)


def _forget_compiled(folder: str) -> None:
    """Python takes a file of the same size and the same second for the one it compiled; two commits may have such."""
    for path, below, _ in os.walk(folder):
        if "__pycache__" in below:
            below.remove("__pycache__")
            shutil.rmtree(os.path.join(path, "__pycache__"), ignore_errors=True)


def _module(message: Mapping[str, Any]) -> str:
    return str(message["package"]).replace("-", "_").replace(".", "_")
