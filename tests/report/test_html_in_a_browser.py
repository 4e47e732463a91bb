"""The HTML report in a real browser: desktop and phone, light and dark; with texts that try to break out of it.

Screenshots are kept in build/screenshots, for a person to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.records import runs
from diag.report import html, run
from tests.report import browser, stories

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "build" / "screenshots"

CONTRAST = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const flat = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const lum = c => { const [r, g, b] = c.slice(0, 3).map(flat);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll("main *:not(svg, svg *)")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility()) continue;
    const a = lum(parse(getComputedStyle(e).color)), b = lum(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(ratio.toFixed(2) + " " + e.className + " " + e.textContent.trim().slice(0, 40));
  }
  return bad;
})()
"""
WIDEST = """[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > %d + 1)
  .map(e => e.className + " " + e.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium on this machine; Debian has it: apt-get install chromium (or: make chromium)")
    with browser.opened(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The story, and the same with words that mean harm in every place where a host has a say."""
    made = {}
    for name, words in (("story", "A poemownersWrite of\n<b>"), ("hostile", stories.HOSTILE)):
        state = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DIAG_STATE_DIR", str(state))
            stories.playbook(state, words, words if name == "hostile" else "as expected")
            document = run.document(runs.whole(stories.PLAYBOOK), runs.whole)
        made[name] = state / f"{name}.html"
        made[name].write_text(html.page(document), encoding="utf-8")
    return made


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["story", "hostile"])
def test_it_is_whole_and_quiet_in_a_browser(
    chromium: browser.Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    with chromium.page(pages[name], width, scheme) as page:
        assert page.complaints() == []
        assert page.requests() == [pages[name].as_uri()]
        assert page.value("document.documentElement.scrollWidth") <= width, page.value(WIDEST % width)
        assert page.value("document.scripts.length + document.images.length") == 0
        assert page.value("document.querySelectorAll('[style], [onerror]').length") == 0
        assert page.value("document.querySelector('.word').textContent") == "? FAILED"
        assert page.value("document.querySelector('h1').textContent") == "again: it cannot be told"
        # Which text is which, and where they part, is said without a colour.
        heads = page.value("[...document.querySelectorAll('.text h4')].slice(0, 2).map(e => e.textContent)")
        assert heads == ["✗ garbled", "✓ healthy configuration"]
        assert page.value("document.querySelectorAll('.here').length") >= 2
        ground = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (sum(ground) < 200) is (scheme == "dark")
        assert page.value(CONTRAST) == []
        shown = page.value("[...document.querySelectorAll('.plot')].filter(e => e.checkVisibility()).length")
        assert shown == 1
        page.screenshot(SHOTS / f"{name}-{width}-{scheme}.png")


def test_what_a_host_wrote_is_text_and_nothing_else(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    with chromium.page(pages["hostile"], 1280, "light") as page:
        texts = page.value("[...document.querySelectorAll('.text.bad')].map(e => e.textContent)")
        assert any("<script>alert(1)</script>" in text and "\\x1b[31m\\u202e" in text for text in texts)
        assert page.value("document.body.innerText.includes('{{ 7 * 7 }}')")
        assert page.value("document.querySelectorAll('script, img, b b').length") == 0


def test_it_is_one_small_file_with_one_style(pages: dict[str, Path]) -> None:
    content = pages["story"].read_text(encoding="utf-8")
    assert len(content.encode()) < 1.5 * 1024 * 1024
    assert content.count("<style>") == 1
    assert "http://" not in content
    assert "https://" not in content
