"""Plots as SVG: lines, dashes and marks differ in shape and not in colour alone. Numbers in, text out.

What is drawn holds no words of a host but through `_text`, and no style of its own: the style sheet knows its
classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

LINES = 5
"""Explanations that have a line; those that led at some time, and the likeliest at the end."""
WIDE, NARROW = (880, 300), (360, 300)
_LEFT, _TOP, _BOTTOM = 44, 12, 46
_CHAR = 7.3
"""Width of a character of the plot's text, about."""


def posterior(points: Sequence[Mapping[str, Any]], outcomes: Mapping[int, str]) -> Markup:
    """How likely each explanation was held after each trial, for wide and for narrow screens. outcomes: of trials, by
    number, as marks below."""
    if not points:
        return Markup("")
    drawn = "".join(
        f'<svg class="plot {name}" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{_told(points)}">'
        f"{''.join(_posterior(points, outcomes, size))}</svg>"
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    )
    return Markup(drawn)


def names_of(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Likeliest at the end first."""
    last = [name for name, _ in points[-1]["standing"]]
    led = list(dict.fromkeys(point["standing"][0][0] for point in reversed(points) if point["standing"]))
    return list(dict.fromkeys([*last[:1], *led, *last]))[:LINES]


def _told(points: Sequence[Mapping[str, Any]]) -> str:
    name, share = points[-1]["standing"][0]
    return _text(f"After trial {points[-1]['after']} the likeliest explanation is {name} with {share:.0%}", 160)


def _posterior(
    points: Sequence[Mapping[str, Any]], outcomes: Mapping[int, str], size: tuple[int, int]
) -> Iterator[str]:
    names = names_of(points)
    keys = size[0] >= WIDE[0]
    right = 250 if keys else 14
    last = max(int(point["after"]) for point in points)
    width, height = size[0] - _LEFT - right, size[1] - _TOP - _BOTTOM

    def x(trial: float) -> float:
        return _LEFT + width * (trial - 1) / max(1, last - 1)

    def y(share: float) -> float:
        return _TOP + height * (1 - share)

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + width}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    yield from _trials(last, outcomes, x, size[1] - _BOTTOM + 16, width)
    ends: list[tuple[float, int]] = []
    for at, name in enumerate(names):
        line = [(x(point["after"]), y(dict(map(tuple, point["standing"])).get(name, 0.0))) for point in points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in line)
        yield f'<polyline class="line l{at}" points="{path}"/>'
        if len(line) <= 60:
            yield from (_mark(px, py, at) for px, py in line)
        ends.append((line[-1][1], at))
    if keys:
        yield from _keys(names, ends, _LEFT + width, y)


def _trials(last: int, outcomes: Mapping[int, str], x: Any, base: float, width: float) -> Iterator[str]:
    """Below: what each trial showed, filled where it failed; and its number, as many as there is room for."""
    every = max(1, -(-last * 22 // int(width)))
    for number in range(1, last + 1):
        if last <= 120 and number in outcomes:
            kind = outcomes[number]
            yield f'<circle class="o {kind}" cx="{x(number):.1f}" cy="{base - 4:.1f}" r="4"/>'
            if kind not in ("pass", "fail"):
                yield f'<text class="tick" x="{x(number):.1f}" y="{base - 0.5:.1f}" text-anchor="middle">–</text>'
        if number == last or ((number - 1) % every == 0 and last - number >= every):
            yield f'<text class="tick" x="{x(number):.1f}" y="{base + 16:.1f}" text-anchor="middle">{number}</text>'


def _mark(x: float, y: float, at: int) -> str:
    """A shape for each line."""
    match at % 5:
        case 0:
            return f'<circle class="mark l{at}" cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
        case 1:
            return f'<rect class="mark l{at}" x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4"/>'
        case 2:
            return f'<path class="mark l{at}" d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
        case 3:
            return f'<path class="mark l{at}" d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4-4.4 4.4-4.4-4.4z"/>'
        case _:
            return f'<path class="mark open l{at}" d="M{x - 3.4:.1f} {y - 3.4:.1f}l6.8 6.8m0-6.8l-6.8 6.8"/>'


def _keys(names: Sequence[str], ends: Sequence[tuple[float, int]], x: float, y: Any) -> Iterator[str]:
    """Names at the ends of the lines, pushed apart."""
    floor = y(0.0) + 6
    at_y = _TOP + 4.0
    for wanted, at in sorted(ends):
        rest = len([1 for other in sorted(ends) if other > (wanted, at)])
        at_y = min(max(at_y, wanted + 4), floor - 17 * rest)
        yield _mark(x + 14, at_y - 4, at)
        yield f'<text class="key" x="{x + 24:.1f}" y="{at_y:.1f}">{_text(names[at], int(220 / _CHAR))}</text>'
        at_y += 17


def key(at: int) -> Markup:
    """The mark of a line, for a list of names beside the plot."""
    return Markup(f'<svg viewBox="0 0 14 12" aria-hidden="true">{_mark(7, 6, at)}</svg>')


def interval(low: float, share: float, high: float) -> Markup:
    """0 to 100 %: the interval as a bar, the share as a mark."""
    return Markup(
        '<svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<line class="grid" x1="0" x2="100" y1="5" y2="5"/>'
        f'<rect class="band" x="{100 * low:.2f}" y="2" width="{max(0.6, 100 * (high - low)):.2f}" height="6"/>'
        f'<rect class="at" x="{min(99.0, max(0.0, 100 * share - 0.5)):.2f}" y="0" width="1" height="10"/></svg>'
    )


def bar(share: float, kind: str) -> Markup:
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="k-{escape(kind)}" x="0" y="0" width="{100 * min(1.0, max(0.0, share)):.2f}" height="10"/></svg>'
    )


def timeline(time: Mapping[str, Any], whole_s: float | None) -> Markup:
    """A lane for each host: spans in the order they came, each kind at a height of its own."""
    spans, lanes = time["spans"], list(time["lanes"])
    if not spans or not whole_s:
        return Markup("")
    high = 26
    drawn = []
    for span in spans:
        kind = str(span["kind"])
        lane = lanes.index(span["lane"]) if span["lane"] in lanes else 0
        inset, size = {"start": (0, 22), "ask": (5, 12), "stop": (8, 6), "step": (2, 18), "away": (0, 22)}[kind]
        height = high * max(1, len(lanes)) - 4 if kind == "away" else size
        x, width = 1000 * span["from_s"] / whole_s, max(1.0, 1000 * (span["to_s"] - span["from_s"]) / whole_s)
        seconds = span["to_s"] - span["from_s"]
        drawn.append(
            f'<rect class="k-{escape(kind)}" x="{x:.1f}" y="{high * lane + inset}" width="{width:.1f}" '
            f'height="{height}"><title>{_text(span["what"], 60)}: {escape(kind)}, {seconds:.1f} s</title></rect>'
        )
    box = f"0 0 1000 {high * max(1, len(lanes))}"
    return Markup(f'<svg class="time" viewBox="{box}" preserveAspectRatio="none" role="img">{"".join(drawn)}</svg>')


def _text(text: str, limit: int) -> str:
    text = str(text)
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")
