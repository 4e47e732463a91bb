"""`diag completion`: in real shells, as far as they are installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[..., list[str]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """shell("bash", "-c", "...") with a `diag` on its PATH and an inventory of two hosts; the lines it printed."""
    program = tmp_path / "bin" / "diag"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom diag.cli import main\nmain()\n")
    program.chmod(0o755)
    config = tmp_path / "config"
    config.mkdir()
    (config / "hosts.toml").write_text(
        'schema = 1\n[hosts.gpu1]\naddress = "h"\n[hosts.gpu2]\naddress = "h"\n[groups]\nranks = ["gpu1"]\n'
    )

    def run(*words: str) -> list[str]:
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        root = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "DIAG_CONFIG_DIR": str(config)}
        env |= {"PYTHONPATH": root, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


COMPLETED = [
    ("diag pl", {"plan", "playbook"}),
    ("diag probe host g", {"gpu1", "gpu2"}),
    ("diag bisect gpu1 --plan ddt", {"ddtree-garble"}),
    ("diag fix apply gpu1 mask-indptr-w", {"mask-indptr-wave"}),
    ("diag explain near_t", {"near_tie"}),
    ("diag probe prompts gpu1 --suite smo", {"smoke"}),
    ("diag host check ra", {"ranks"}),
]


def named(value: str | set[str]) -> str:
    """The same in every process: the order of a set is not."""
    return value if isinstance(value, str) else ",".join(sorted(value))


@pytest.mark.parametrize(("line", "wanted"), COMPLETED[:3], ids=named)
def test_bash_completes(shell: Shell, line: str, wanted: set[str]) -> None:
    words = line.split()
    script = (
        'eval "$(diag completion bash)"; complete -p diag >/dev/null; '
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _diag_completion diag; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert set(shell("bash", "-c", script)) == wanted


@pytest.mark.parametrize(("line", "wanted"), COMPLETED[3:], ids=named)
def test_fish_completes(shell: Shell, line: str, wanted: set[str]) -> None:
    found = shell("fish", "-c", f"diag completion fish | source; complete -C '{line}'")
    assert {each.split("\t")[0] for each in found} == wanted


def test_zsh_takes_it_for_diag(shell: Shell) -> None:
    setup = 'autoload -U compinit; compinit -u -D; eval "$(diag completion zsh)"; echo $_comps[diag]'
    assert shell("zsh", "-fc", setup) == ["_diag_completion"]
    asked = 'COMP_WORDS="diag probe host gpu" COMP_CWORD=3 _DIAG_COMPLETE=zsh_complete diag'
    assert set(shell("zsh", "-fc", asked)) >= {"gpu1", "gpu2"}


def test_a_broken_inventory_completes_nothing_and_breaks_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "config" / "hosts.toml").write_text("schema = = 1\n")
    asked = 'COMP_WORDS="diag probe host gpu" COMP_CWORD=3 _DIAG_COMPLETE=bash_complete diag'
    assert "".join(shell("bash", "-c", asked)) == ""
