"""Kernels of these tests run in Triton's interpreter, which is decided when they are first imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
