"""What injections share: one line of a file is replaced, and nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from diag.errors import FileNotAsExpected
from diag.source.detect import BOM, Detection


def inject(text: str, found: Detection, needs: str, lines_for: Callable[[str], Sequence[str]]) -> str:
    """The text with the line of the first site replaced by what `lines_for` makes of it, each with that line's ending.

    needs: a sentence on where it can be made. Raises FileNotAsExpected where `found` is not present.
    """
    if found.state != "present":
        raise FileNotAsExpected(
            "The source is not what the injection was made for.",
            details=[f"{found.state}: {found.why}"],
            next=needs,
        )
    body = text.removeprefix(BOM)
    lines = re.split("(?<=\n)", body)
    at = found.sites[0].line - 1
    bare = lines[at].rstrip("\r\n")
    ending = lines[at][len(bare) :]
    lines[at] = "".join(f"{line}{ending}" for line in lines_for(bare))
    return text[: len(text) - len(body)] + "".join(lines)
