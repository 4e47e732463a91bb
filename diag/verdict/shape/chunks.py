"""A text cut at its spaces, and what kind of thing each piece is: a word, a number, a mark, a name of code, or odd.

Kinds say how a piece is built, not what it means, so they are the same in every language that separates words by
spaces. Scripts that do not (Han, kana, Thai ...) are cut every four characters and are all of one kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import regex

from diag.verdict.shape.words import DENSE, script_of

KINDS = (
    "word",  # one run of letters of one script, with the usual marks around it
    "joined",  # runs of letters joined as names of files, options, hosts and programs are
    "odd-joined",  # joined by marks that seldom stand between letters
    "digit-joined",  # letters and digits with nothing between them
    "number",
    "odd-number",  # digits and marks, but not as numbers, dates or versions are written
    "mark",  # marks alone, as prose, lists, tables and code have them
    "odd-mark",
    "symbol",  # emoji and other symbols beyond ASCII
    "opaque",  # base64, hashes, escapes
    "dense",  # scripts without spaces
    "dense-joined",  # those and others in one piece
    "mixed-script",  # a run of letters of several scripts that do not go together
    "line",  # one line break
    "lines",  # several
)

LONGEST = 200
"""Characters of a piece that are looked at; longer ones are taken to be of one kind throughout."""

OVERLONG = 14
"""Letters of a word that few words have more of."""

Case = Literal["lower", "title", "upper", "mixed"]


@dataclass(frozen=True, slots=True)
class Word:
    """plain: lower case, one kind of apostrophe, as word lists have it."""

    plain: str
    script: str
    case: Case


@dataclass(frozen=True, slots=True)
class Build:
    """What a piece is, wherever it stands. column: of its kind in KINDS; code: it has marks that code has more often
    than prose; letters: of all its words."""

    kind: str
    column: int
    words: tuple[Word, ...] = ()
    scripts: frozenset[str] = frozenset()
    code: bool = False
    replaced: bool = False
    letters: int = 0
    overlong: int = 0


@dataclass(frozen=True, slots=True)
class Chunks:
    """The pieces of a text, in order: characters [start, end) and what each is. Three lists, since a list of objects
    has Python's collector walk them all again and again."""

    starts: list[int]
    ends: list[int]
    builds: list[Build]

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, text: str) -> list[str]:
        return [text[start:end] for start, end in zip(self.starts, self.ends)]


_PIECE = re.compile(r"\n\s*|\S+")
_RUN = regex.compile(r"[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*")
_DENSE_RUN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]")
_NUMBER = regex.compile(
    r"[(\[{\"'“«~≈<>=#$€£¥+−–—-]*\p{N}[\p{N}.,:/×xX*+−–—%°'’()-]*[)\]}\"'”»;:,.!?%°|]*",
)
_MARK = regex.compile(
    r"(.)\1*|[-+*/%&|^<>=!:]?=|[-=]>|<[-=!]|&&|\|\||::|\?\?|[({\[]+|[)}\]]+[;,.:]*|\(\)[;,:]?|\[\][;,]?|\{\}[;,)]?"
    r"|</?|/?>|<!--|-->|/\*+|\*+/|//+|#!|[\"'“”«»„(\[{]+[.,;:!?]?|[.,;:!?]+[\"'”»)\]}]+[.,;:]*"
    r"|[\"'”»]+[)\]};,.:]+|[+|][-+|=]*[+|]|:?-+:?|\$\(|\\\\?|[(]?[?!.]+[)]?",
    regex.DOTALL,
)
_OPAQUE = regex.compile(r"[A-Za-z0-9+/=_-]{20,}|(?:\\x?[0-9a-fA-F]{2,4}){3,}|(?:%[0-9A-F]{2}){3,}")
_BEFORE = frozenset("\"'([{<«„“‘‚¿¡*_-—–…`|>#")
_AFTER = frozenset("\"')]}>»”’“.,;:!?…*_-—–`|。、，；：！？।%")
_BETWEEN = frozenset("-/._':@\\#&=+~‑()[]")
_CODE = frozenset("(){}[];=<>$\\|&@")


def chunks(text: str) -> Chunks:
    """A piece of a dense script is several: one for every four characters."""
    starts: list[int] = []
    ends: list[int] = []
    builds: list[Build] = []
    for match in _PIECE.finditer(text):
        start, end = match.span()
        piece = match.group()
        if piece[0] == "\n":
            build = _LINES if "\n" in piece[1:] else _LINE
        else:
            build = _build(piece if end - start <= LONGEST else piece[:LONGEST])
            if build.kind in ("dense", "dense-joined"):
                parts = range(start, min(end, start + LONGEST), 4)
                starts += parts
                ends += [min(at + 4, end) for at in parts]
                builds += [build] * len(parts)
                continue
        starts.append(start)
        ends.append(end)
        builds.append(build)
    return Chunks(starts, ends, builds)


_LEAST_OPAQUE = 20
_LATIN = frozenset({"LATIN"})
_LINE, _LINES = Build("line", KINDS.index("line")), Build("lines", KINDS.index("lines"))


@lru_cache(maxsize=65536)
def _build(piece: str) -> Build:
    return _plain_word(piece) or _any(piece)


def _made(kind: str, words: tuple[Word, ...], scripts: frozenset[str], code: bool, replaced: bool) -> Build:
    letters = overlong = 0
    for word in words:
        length = len(word.plain)
        letters += length
        overlong += length - OVERLONG if length > OVERLONG else 0
    return Build(kind, _COLUMN[kind], words, scripts, code, replaced, letters, overlong)


_COLUMN = {kind: at for at, kind in enumerate(KINDS)}


def _plain_word(piece: str) -> Build | None:
    """The same for most pieces of most texts, without any pattern: one word, and perhaps a mark after it."""
    core, mark = (piece[:-1], piece[-1]) if piece[-1] in ".,;:!?" else (piece, "")
    if not core.isalpha() or len(core) >= _LEAST_OPAQUE:
        return None
    scripts = _LATIN if core.isascii() else _scripts(frozenset(core))
    case = _case(core)
    if case == "mixed" or len(scripts) != 1:
        return None
    (script,) = scripts
    if script in DENSE or not script:
        return None
    return _made("word", (Word(core.lower(), script, case),), scripts, mark == ";", False)


@lru_cache(maxsize=65536)
def _scripts(letters: frozenset[str]) -> frozenset[str]:
    return frozenset(map(script_of, letters))


def _any(piece: str) -> Build:
    runs = [(m.start(), m.end(), m.group()) for m in _RUN.finditer(piece)]
    code = not _CODE.isdisjoint(piece)
    replaced = "\ufffd" in piece
    if not runs:
        return _made(_without_letters(piece), (), frozenset(), code, replaced)
    if piece.isascii():
        of_runs, scripts = [], _LATIN
    else:
        of_runs = [{script_of(c) for c in set(run) if c.isalpha()} - {""} for _, _, run in runs]
        scripts = frozenset().union(*of_runs)
    if any(len(found) > 1 and not found <= (DENSE | {"LATIN"}) for found in of_runs):
        return _made("mixed-script", (), scripts, code, replaced)
    if scripts & DENSE:
        return _made("dense" if scripts <= DENSE else "dense-joined", (), scripts, code, replaced)
    if (match := _OPAQUE.search(piece)) and (len(match.group()) > 30 or any(c.isdigit() for c in match.group())):
        return _made("opaque", (), scripts, code, replaced)
    words = tuple(Word(run.lower().replace("’", "'"), script_of(run[0]), _case(run)) for _, _, run in runs)
    return _made(_joining(piece, runs), words, scripts, code, replaced)


def _without_letters(piece: str) -> str:
    if _NUMBER.fullmatch(piece):
        return "number"
    if any(c.isdigit() for c in piece):
        return "odd-number"
    if _MARK.fullmatch(piece):
        return "mark"
    return "symbol" if all(c > "\u2000" for c in piece) else "odd-mark"


def _joining(piece: str, runs: list[tuple[int, int, str]]) -> str:
    # Only before the first run and after the last one can there be nothing but quotes and brackets.
    before = _BEFORE.issuperset(piece[: runs[0][0]])
    after = _AFTER.issuperset(piece[runs[-1][1] :])
    last = len(runs) - 1
    kinds = {
        _joint(
            "" if number == 0 and before else piece[start - 1],
            "" if number == last and after else piece[end],
        )
        for number, (start, end, _) in enumerate(runs)
    }
    if "odd-joined" in kinds:
        return "odd-joined"
    if "digit-joined" in kinds:
        return "digit-joined"
    return "word" if kinds == {"word"} else "joined"


def _joint(before: str, after: str) -> str:
    """By the characters next to a run of letters in its piece; "" where only quotes, brackets and the like are."""
    next_to = before + after
    if not next_to:
        return "word"
    if any(c.isdigit() for c in next_to):
        return "digit-joined"
    return "joined" if _BETWEEN.issuperset(next_to) else "odd-joined"


def _case(run: str) -> Case:
    if run.islower() or run.lower() == run.upper():
        return "lower"
    if run.isupper():
        return "upper" if len(run) > 1 else "title"
    return "title" if run[0].isupper() and run[1:].islower() else "mixed"
