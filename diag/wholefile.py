"""A file that is written whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from diag.errors import PreconditionFailed


@contextlib.contextmanager
def becoming(file: Path) -> Iterator[Path]:
    """Where to write: beside `file`, which it becomes at the end. Raises PreconditionFailed where that cannot be."""
    new = file.with_name(f".{file.name}.new")
    try:
        yield new
        new.replace(file)
    except OSError as error:
        raise PreconditionFailed(
            f"{file} cannot be written: {error.strerror}.", next="Name a file in a folder that is there and yours."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
