"""A run as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

Everything a host said is made visible (controls, marks that turn text round) and escaped by the template library; a
content policy forbids scripts and every request, and allows the one style sheet by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from diag import __version__
from diag.report import html_plots, run_page
from diag.report.text import visible

MARGIN_NATS = 0.25
"""From here on a token's surprise is told as a number; as in diag.verdict.compare."""
SURPRISES = (0.01, MARGIN_NATS, 2.0, 6.0)
"""Bounds of the classes that tokens are drawn in."""


def page(made: Mapping[str, Any], removed: str = "") -> str:
    """made: the document of diag.report.run. removed: what was replaced for strangers, said at the end."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("diag.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        plots=html_plots,
        columns=run_page.columns,
        cell=run_page.cell,
        verdict_of=run_page.verdict_of,
        rate_text=run_page.rate_text,
        headline=headline,
        tokens=tokens,
        outcomes=_outcomes,
        level=_level,
        asked=_asked,
        shell=run_page.shell,
        hash=_hash,
    )
    environment.filters.update(utc=_utc, seconds=_seconds, split_at=_split_at)
    style = resources.files("diag.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
    template = environment.get_template("report.html.j2")
    return template.render(made=clean(made), style=style, removed=visible(removed), version=__version__)


def clean(value: Any) -> Any:
    """The same document, every string in it safe to show."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    return value


def headline(made: Mapping[str, Any]) -> str:
    """The first line of the answer without its word, which stands above it already."""
    first = made["answer"][0] if made["answer"] else "no answer was recorded"
    word, gap, rest = first.partition("   ")
    return rest.strip() if gap and word.isupper() else first


def tokens(pair: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One for each scored token: what it says ("" where the server did not tell), how surprising it is, 0 to 4."""
    pieces = pair["pieces"]
    return [
        {
            "text": (pieces[at] if at < len(pieces) else "").replace("\n", "↵"),
            "number": at,
            "gap": gap,
            "loud": gap > MARGIN_NATS,
            "level": sum(gap > bound for bound in SURPRISES),
            "diverges": at == pair["diverges_at"],
        }
        for at, gap in enumerate(pair["gaps_nats"])
    ]


def _outcomes(made: Mapping[str, Any]) -> dict[int, str]:
    return {trial["number"]: trial["outcome"] for trial in made["trials"]}


def _asked(made: Mapping[str, Any], how: str) -> bool:
    """Whether any trial counted texts that were asked this way."""
    return any(trial[how][1] for trial in made["trials"])


def _level(value: Any) -> str:
    from diag.bisect.space import level_text

    return "" if value is None else level_text(value)


def _split_at(text: str, at: int | None) -> tuple[str, str]:
    """(what both texts begin with, the rest); all of it is rest where there is nothing to compare with."""
    return (text[:at], text[at:]) if at is not None else ("", text)


def _utc(at_unix: float | None) -> str:
    return "not recorded" if at_unix is None else datetime.fromtimestamp(at_unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not recorded"
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _hash(style: str) -> str:
    digest = hashlib.sha256(style.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
