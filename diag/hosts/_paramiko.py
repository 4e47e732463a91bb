"""Paramiko without Invoke, which it imports to read `Match exec` of SSH configurations: a fifth of the time until a
first connection. We have `ssh -G` read them (ssh_config.py)."""

from __future__ import annotations

import sys

_MISSING = "invoke" not in sys.modules
if _MISSING:
    sys.modules["invoke"] = None  # type: ignore[assignment]  # the import system's own sign for "there is none"

import paramiko  # noqa: E402

if _MISSING:
    del sys.modules["invoke"]

__all__ = ["paramiko"]
