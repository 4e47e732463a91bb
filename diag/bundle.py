"""Where the files are that belong to the project but not to the laptop program: probes, kernels, playbooks.

In a checkout they lie at the root; in an installed wheel they are carried as data inside `diag`. Nothing else
in the project may know which of the two it is.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `probes`, `kernels` or `playbooks`. Raises FileNotFoundError for a broken installation."""
    checkout = _PACKAGE.parent
    candidates = [_PACKAGE / "_bundled" / name]
    if (checkout / "pyproject.toml").is_file():
        candidates.insert(0, checkout / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}: not in this installation of diag (looked at {candidates[-1]})")
