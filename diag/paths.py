"""Where the laptop side keeps its own files. Every folder can be moved by an environment variable.

| folder | default | variable |
|---|---|---|
| configuration (inventory) | the platform's configuration folder for `diag` | DIAG_CONFIG_DIR |
| state (runs, journals, the lab) | the platform's state folder | DIAG_STATE_DIR |
| cache (fetched wheels, the converted model) | the platform's cache folder | DIAG_CACHE_DIR |
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def _folder(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else default


def config_dir() -> Path:
    return _folder("DIAG_CONFIG_DIR", Path(platformdirs.user_config_dir("diag")))


def state_dir() -> Path:
    return _folder("DIAG_STATE_DIR", Path(platformdirs.user_state_dir("diag")))


def cache_dir() -> Path:
    return _folder("DIAG_CACHE_DIR", Path(platformdirs.user_cache_dir("diag")))
