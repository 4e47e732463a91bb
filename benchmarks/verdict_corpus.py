"""Clean texts by people, in many languages, out of Debian's packages: fetched at benchmark time, none committed.

Packages are fetched with `apt-get download` and unpacked with `dpkg-deb -x` into a cache. Each text is some
paragraphs of one file. There are two sets of packages: rules are tuned on TUNE, and only the benchmark ever reads EXAM,
in which there are languages, scripts and kinds of pages that TUNE does not have.
"""

from __future__ import annotations

import base64
import gettext
import gzip
import hashlib
import html
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAN = "cs da de el es fi fr hu id it ja mk nb nl pl pt-br ro ru sr sv tr uk vi zh"
CODE = """linux-libc-dev golang-github-spf13-cobra-dev librust-serde-dev librust-clap-dev libjs-jquery libjs-bootstrap4
libjs-d3 bash-completion ruby-rack lua-penlight libeigen3-dev php-symfony-console node-express perl-modules-5.36
docbook-xsl git-doc"""
SUFFIXES = frozenset(
    re.findall(r"\w+", "h go rs js css sh bash rb lua php pm pl xsl md txt json yml yaml html py toml c cpp ts svg xml")
)
FORTUNES = "bg br cs de eo es ga it pl ru zh"
TUNE = (
    *(f"manpages-{code}" for code in MAN.split()),
    *(f"fortunes-{code}" for code in FORTUNES.split()),
    *CODE.split(),
    "installation-guide-amd64",
    "postgresql-doc-15",
    "fortunes",
    "fortunes-min",
    "manpages",
)
LOCALES = (
    *("aptitude-common", "gnupg-l10n", "coreutils", "git", "vlc-l10n", "gramps", "wesnoth-1.16-core", "amule-common"),
    *("deluge-common", "pidgin-data", "hexchat-common", "audacity-data", "binutils-common", "gcc-12-locales", "bash"),
    *("dpkg", "apt", "minetest-data", "gimp-data", "kmymoney-common"),
)
"""Programs that say what they say in a hundred languages; none is of EXAM's desktop."""

LEAST_MESSAGE = 25
EXAM = (
    *("gnome-user-docs", "evince-common", "gedit-common", "gnome-terminal-data", "file-roller", "gnome-calculator"),
    *("eog", "gnome-system-monitor", "gnome-disk-utility", "seahorse", "debian-faq", "aptitude-doc-ja"),
    *("aptitude-doc-fr", "orca", "gnome-mahjongg", "five-or-more", "bible-kjv-text", "libreoffice-help-ko"),
    *("accerciser", "node-lodash", "golang-github-stretchr-testify-dev", "librust-tokio-dev", "ruby-sinatra"),
    *("libglm-dev", "php-twig", "fish-common", "zsh-common"),
)
PER_LANGUAGE = 420
"""Texts at most of one language and kind, so that no language drowns the others."""

SIZES = (40, 120, 300, 700, 1500, 4000)
"""Lengths aimed at, in characters; a text ends at the end of a paragraph or of a sentence."""


@dataclass(frozen=True)
class Sample:
    """kind: manual, guide, verse, code, json, ...; name: where it is from."""

    language: str
    kind: str
    name: str
    text: str


def tuning(cache: Path) -> list[Sample]:
    return samples(fetch(cache / "tune", TUNE)) + structured(seed=5)


def exam(cache: Path) -> list[Sample]:
    return samples(fetch(cache / "exam", EXAM)) + structured(seed=6)


def messages(cache: Path) -> dict[tuple[str, str], list[str]]:
    """(language, catalogue) -> what a program says in it, where that has no place to be filled in; English left out."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(fetch(cache / "locale", LOCALES).glob("usr/share/locale/*/LC_MESSAGES/*.mo")):
        language = path.parts[-3]
        try:
            catalogue = gettext.GNUTranslations(path.open("rb"))
        except (IndexError, OSError, UnicodeDecodeError):  # a catalogue with an odd rule of plurals, or an old encoding
            continue
        said = [_message(text) for key, text in catalogue._catalog.items() if key and key != text]  # type: ignore[attr-defined]
        kept = [text for text in said if text]
        if kept and not language.startswith("en"):
            found[language, path.name] = kept
    return found


_FILLED_IN = re.compile(r"%[-+0-9.]*[a-zA-Z(]|\{[a-zA-Z0-9_]*\}|<")
_SHORTCUT = re.compile(r"(?<!\w)[_&~](?=\w)|(?<=\w)[_&](?=\w)(?!\w*_)")


def _message(text: object) -> str:
    """Without the mark of its key; "" where it is no sentence of its own."""
    if not isinstance(text, str) or len(text) < LEAST_MESSAGE or _FILLED_IN.search(text):
        return ""
    return _SHORTCUT.sub("", text).strip()


def spoken(said: dict[tuple[str, str], list[str]], rng: random.Random) -> Iterator[Sample]:
    """Some messages of a program, one after the other, of many sizes; of each language as many as it has."""
    by_language: dict[str, list[tuple[str, list[str]]]] = {}
    for (language, catalogue), texts in said.items():
        by_language.setdefault(language, []).append((catalogue, texts))
    for language, mine in sorted(by_language.items()):
        sizes = [len(texts) for _, texts in mine]
        total = sum(len(text) for _, texts in mine for text in texts)
        for number in range(min(MOST_SPOKEN, total // 500) if total >= 4000 else 0):
            catalogue, texts = rng.choices(mine, sizes)[0]
            at, aim, between = rng.randrange(len(texts)), rng.choice(SIZES[:5]), rng.choice(["\n", "\n\n", " ", " "])
            some = texts[at]
            while len(some) < aim and (at := at + 1) < len(texts):
                some += between + texts[at]
            if len(some) > 3 * aim:
                some = some[: max(some.rfind(" ", 0, 3 * aim), aim)]
            yield Sample(language, "messages", f"{catalogue}#{language}{number}", some)


MOST_SPOKEN = 110


def fetch(cache: Path, packages: Sequence[str]) -> Path:
    """The folder with every package unpacked. Raises subprocess.CalledProcessError without a package mirror."""
    root, debs = cache / "root", cache / "deb"
    debs.mkdir(parents=True, exist_ok=True)
    missing = [p for p in packages if not any(debs.glob(f"{p}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "download", *missing], cwd=debs, check=True, capture_output=True)
    done = cache / "unpacked"
    for deb in sorted(debs.glob("*.deb")):
        if not (done / deb.name).exists():
            subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
            done.mkdir(exist_ok=True)
            (done / deb.name).touch()
    return root


def samples(root: Path, per_language: int = PER_LANGUAGE) -> list[Sample]:
    """Deterministic: the same packages give the same texts."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for language, kind, path in _files(root):
        of_kind = found.setdefault((language, kind), [])
        if len(of_kind) >= per_language:
            continue
        name = str(path.relative_to(root))
        digest = hashlib.sha256(name.encode()).digest()
        for number, text in enumerate(_cut(_text(path, kind), random.Random(digest), kind)):
            of_kind.append(Sample(language, kind, f"{name}#{number}", text))
            if number >= (per_language if kind == "verse" else 11):
                break
    return [sample for of_kind in found.values() for sample in of_kind[:per_language]]


def _files(root: Path) -> Iterator[tuple[str, str, Path]]:
    """(language, kind, path), in an order that mixes sections and does not depend on the file system."""
    found = []
    for path in root.glob("usr/share/man/**/*.gz"):
        parts = path.relative_to(root / "usr/share/man").parts
        found.append((parts[0] if len(parts) == 3 else "en", "manual", path))
    for path in root.glob("usr/share/doc/installation-guide-amd64/*/*.html"):
        found.append((path.parent.name.split(".")[0], "guide", path))
    for path in root.glob("usr/share/doc/postgresql-doc-15/html/*.html"):
        found.append(("en", "guide", path))
    for path in root.glob("usr/share/help/*/**/*.page"):
        found.append((_code(path.relative_to(root / "usr/share/help").parts[0]), "guide", path))
    for path in root.glob("usr/share/aptitude/**/*.html"):
        found.append((path.parent.name, "guide", path))
    for path in root.glob("usr/share/doc/debian/FAQ/*.html"):
        found.append((path.name.split(".")[1] if path.name.count(".") == 2 else "en", "guide", path))
    for path in root.glob("usr/**/*.html"):
        if "libreoffice/help/ko" in str(path):
            found.append(("ko", "guide", path))
    for path in root.glob("usr/**/*"):
        in_a_guide = path.parts[-2] == "html" or "installation-guide-amd64" in path.parts
        if path.suffix[1:] in SUFFIXES and path.is_file() and not in_a_guide and "libreoffice" not in str(path):
            found.append((path.suffix[1:], "code", path))
    for path in root.glob("usr/share/games/fortunes/**/*"):
        codes = {"it": "it", "de": "de", "pl": "pl", "es": "es", "bg": "bg", "ga": "ga", "brasil": "pt", "cs": "cs"}
        if path.is_file() and path.suffix not in (".dat", ".u8"):
            parts = path.relative_to(root / "usr/share/games/fortunes").parts
            language = next((codes[p] for p in parts[:-1] if p in codes), _by_name(path.name))
            found.append((language, "verse", path))
    found = [(code.replace("-", "_"), kind, path) for code, kind, path in found if not path.is_symlink()]
    return iter(sorted(found, key=lambda item: hashlib.sha256(str(item[2]).encode()).digest()))


def _code(folder: str) -> str:
    return {"C": "en", "en_GB": "en", "sr@latin": "sr_latin"}.get(folder, folder)


def _by_name(name: str) -> str:
    if name in ("chinese", "tang300", "song100"):
        return "zh"
    return {"brasil": "pt", "bg": "bg", "ga": "ga", "esperanto": "eo"}.get(name, "en")


def _text(path: Path, kind: str) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return ""  # an older encoding: what it says is not what would be judged
    if kind == "manual":
        return _plain_roff(text)
    if kind == "guide":
        return _plain_html(re.sub(r"(?s)<info\b.*?</info>", "", text) if path.suffix == ".page" else text)
    return text


def _plain_roff(text: str) -> str:
    """A manual page without its markup: macros of paragraphs become empty lines, of fonts their text."""
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r"[.']\s*\\\"|'\\\"", line):
            continue
        macro = re.match(r"[.']\s*([A-Za-z]{1,3})\b\s*(.*)", line)
        if macro is None:
            lines.append("" if line.startswith((".", "'")) else line)
        elif macro[1] in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "SM", "SB"):
            joined = "" if len(macro[1]) == 2 else " "
            lines.append(joined.join(part.strip('"') for part in re.findall(r'"[^"]*"|\S+', macro[2])))
        else:
            lines.append("")
            if macro[1] in ("SH", "SS"):
                lines.append(macro[2].strip('"') + "\n")
    # Tables, equations and number registers are programs of the typesetter; nothing of them is in the printed page.
    text = "\n".join(
        line for line in lines if not re.search(r"\\[hvnlLw]['(\[]|\\\\n|^[lrcnaLRCNA| .sbi()\d-]+\.$", line)
    )
    text = re.sub(r"\\f(\[[A-Za-z]*\]|\([A-Z]{2}|[A-Z0-9])|\\s[-+]?\d|\\[&|^)/,:%]|\\\n", "", text)
    for escape, plain in ((r"\-", "-"), (r"\(aq", "'"), (r"\(dq", '"'), (r"\(en", "–"), (r"\(em", "—"),
                          (r"\(bu", "•"), (r"\(co", "©"), (r"\(lq", "“"), (r"\(rq", "”"), (r"\e", "\\"),
                          (r"\ ", " "), (r"\~", " "), (r"\(ha", "^"), (r"\(ti", "~"), (r"\(rs", "\\")):  # fmt: skip
        text = text.replace(escape, plain)
    return re.sub(r"\\[*(\[]\S{1,2}\]?", "", text)


def _plain_html(text: str) -> str:
    body = re.sub(r"(?s)<(script|style|head)\b.*?</\1>|<!--.*?-->", "", text)
    body = re.sub(r"(?i)</(p|div|h\d|li|tr|pre|dt|dd)>|<br */?>", "\n\n", body)
    body = html.unescape(re.sub(r"<[^>]*>", "", body))
    return re.sub(r"[ \t]*\n[ \t]*", "\n", body)


def _cut(text: str, rng: random.Random, kind: str) -> Iterator[str]:
    """Pieces of many sizes, one after the other, none shorter than a dozen characters."""
    separator = r"\n%\n" if kind == "verse" else r"\n\s*\n"
    parts = [part.strip("\n") for part in re.split(separator, text)]
    parts = [part for part in parts if len(part.strip()) >= 12]
    at = 0
    while at < len(parts):
        aim, piece = rng.choice(SIZES), parts[at]
        at += 1
        while kind != "verse" and len(piece) < aim and at < len(parts):
            piece += "\n\n" + parts[at]
            at += 1
        if len(piece) > 2 * aim:
            end = max(piece.rfind(mark, 0, 2 * aim) for mark in (". ", ".\n", "\n", "。", "। ", " "))
            piece = piece[: end + 1] if end > 12 else piece[: 2 * aim]
        if len(piece.strip()) >= 12:
            yield piece.strip("\n")


def structured(seed: int, per_kind: int = 160) -> list[Sample]:
    """What is no prose: code and data of Python's own library, and tables, lists, numbers, base64, emoji made here."""
    rng, made = random.Random(seed), []
    library = sorted(Path(random.__file__).parent.rglob("*.py"))
    random.Random(1).shuffle(library)
    half = len(library) // 2
    for path in (library[:half] if seed % 2 else library[half:])[:per_kind]:
        pieces = list(_cut(path.read_text(encoding="utf-8", errors="ignore"), rng, "code"))
        made += [("code", f"{path.name}#{n}", piece) for n, piece in enumerate(rng.sample(pieces, min(2, len(pieces))))]
    made += [(kind, f"{kind}#{n}", make(rng)) for kind, make in _MAKERS.items() for n in range(per_kind)]
    return [Sample("-", kind, name, text) for kind, name, text in made if len(text.strip()) >= 12]


_WORDS = re.findall(
    r"\w+",
    "apple river stone window paper cloud engine silver garden market letter bridge winter copper signal harbour "
    "lantern meadow pocket ribbon saddle timber velvet walnut anchor basket candle",
)
_EMOJI = "😀😂🥰😎🤖🚀🌍🌈🍎🍕🎉🎈💡📚🔥⭐✅❌👍🏽👩‍💻🇩🇪🇯🇵❤️"


def _json(rng: random.Random) -> str:
    rows = [
        {
            "id": rng.randrange(10**6),
            "name": " ".join(rng.sample(_WORDS, 2)),
            "tags": rng.sample(_WORDS, rng.randrange(4)),
            "score": round(rng.random() * 100, 3),
            "active": rng.random() < 0.5,
            "parent": None,
        }
        for _ in range(rng.randrange(1, 12))
    ]
    return json.dumps(rows if rng.random() < 0.7 else rows[0], indent=rng.choice([None, 2, 4]))


def _table(rng: random.Random) -> str:
    columns = rng.randrange(2, 6)
    rows = [[rng.choice([rng.choice(_WORDS), str(rng.randrange(1000)), "-", ""]) for _ in range(columns)]
            for _ in range(rng.randrange(3, 25))]  # fmt: skip
    style = rng.randrange(3)
    if style == 0:
        return "\n".join(",".join(row) for row in rows)
    if style == 1:
        rows.insert(1, ["-" * rng.randrange(3, 12)] * columns)
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join("".join(cell.ljust(14) for cell in row) for row in rows)


def _numbers(rng: random.Random) -> str:
    style = rng.randrange(5)
    if style == 0:
        return ", ".join(str(n) for n in range(1, rng.randrange(20, 200)))
    if style == 1:
        return " ".join(str(rng.randrange(10**9)) for _ in range(rng.randrange(10, 120)))
    if style == 2:
        return "\n".join(f"{rng.random() * 10 ** rng.randrange(5):.4f}" for _ in range(rng.randrange(10, 80)))
    if style == 3:
        return "3." + "".join(rng.choice("0123456789") for _ in range(rng.randrange(30, 900)))
    return "\n".join(
        f"2024-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d} {rng.randrange(24):02d}:{rng.randrange(60):02d}"
        f" {rng.choice(_WORDS)} {rng.randrange(10**5)}"
        for _ in range(rng.randrange(5, 40))
    )


def _base64(rng: random.Random) -> str:
    raw = base64.b64encode(rng.randbytes(rng.randrange(40, 1500))).decode()
    return raw if rng.random() < 0.5 else "\n".join(raw[at : at + 76] for at in range(0, len(raw), 76))


def _hexes(rng: random.Random) -> str:
    return "\n".join(f"{rng.randbytes(32).hex()}  {rng.choice(_WORDS)}.tar.gz" for _ in range(rng.randrange(1, 20)))


def _emoji(rng: random.Random) -> str:
    some = "".join(rng.choice(_EMOJI) for _ in range(rng.randrange(1, 30)))
    return f"{' '.join(rng.sample(_WORDS, 5)).capitalize()}! {some}\n" * rng.randrange(1, 4) + some


def _listing(rng: random.Random) -> str:
    mark = rng.choice(["- ", "* ", "{}. ", "• ", "{}) ", "- [ ] "])
    return "\n".join(mark.format(n) + " ".join(rng.sample(_WORDS, rng.randrange(1, 5)))
                     for n in range(1, rng.randrange(4, 40)))  # fmt: skip


_VERSES = """The lamp is lit above the quay
The boats come home along the bay
And nobody has seen the moon
We wait until the kettle sings
My father kept a box of keys
The winter took the garden gate
A letter lies upon the stair
The river knows another road
So turn the page and turn again
The bells are late, the bread is warm
Nobody asked the sparrow's name
The road goes on without a word
Oh bring me back my yellow coat
And all the windows look at me
The clock forgets, the clock forgives
Tomorrow is a wooden horse""".splitlines()


def _refrain(rng: random.Random) -> str:
    refrain = rng.sample(_VERSES, rng.randrange(1, 4))
    verses = [[*rng.sample(_VERSES, 3), *refrain] for _ in range(rng.randrange(2, 6))]
    mark = rng.choice([",", ".", ""])
    return "\n\n".join("\n".join(line + mark for line in verse) for verse in verses)


def _equations(rng: random.Random) -> str:
    return "\n".join(
        f"{a} {op} {b} = {a * b if op == '×' else a + b}"
        for a, b, op in ((rng.randrange(50), rng.randrange(50), rng.choice("+×")) for _ in range(rng.randrange(5, 30)))
    )


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "json": _json,
    "table": _table,
    "numbers": _numbers,
    "base64": _base64,
    "hashes": _hexes,
    "emoji": _emoji,
    "list": _listing,
    "refrain": _refrain,
    "equations": _equations,
}
