"""Where the files are that belong to the project but not to the laptop program: probes, kernels, playbooks.

In a checkout they lie at the root; in an installed wheel they are carried as data inside `diag`. Nothing else
in the project may know which of the two it is.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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


def load(name: str) -> ModuleType:
    """Import a host-side module, e.g. "kernels.installed", here: for the lab, which is laptop and host in one.

    It goes by a private name (`_diag_kernels.installed`), because `kernels` is also the name of a package that
    engines import, and in an installed wheel the folder is not importable by its own name anyway.
    """
    package, _, module = name.partition(".")
    private = f"_diag_{package}"
    if private not in sys.modules:
        spec = importlib.machinery.ModuleSpec(private, None, is_package=True)
        spec.submodule_search_locations = [str(folder(package))]
        sys.modules[private] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{private}.{module}")
