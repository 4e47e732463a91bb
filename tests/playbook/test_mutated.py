"""300 playbooks with something wrong in them: each is refused whole, with file, line and column, and nobody is asked.

The mutations are generated, with a fixed seed, from the six that are shipped.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag import cli
from diag.playbook import load

SEED = 20261130
EACH = 50
BOOKS = load.shipped()

Mutation = Callable[[list[str], random.Random], "list[str] | bytes | None"]
"""None: it does not apply to these lines."""


def keyed(lines: list[str], chance: random.Random) -> tuple[int, re.Match[str]]:
    """A line that has a key, and where."""
    found = [(at, m) for at, line in enumerate(lines) if (m := re.match(r"( *(?:- )?)([a-z_.]+)(:.*)", line))]
    return chance.choice(found)


def swapped(lines: list[str], at: int, line: str) -> list[str]:
    return [*lines[:at], line, *lines[at + 1 :]]


def misspelt(lines: list[str], chance: random.Random) -> list[str]:
    at, found = keyed(lines, chance)
    word = found[2]
    cut = chance.randrange(len(word))
    return swapped(lines, at, f"{found[1]}{word[:cut]}{chance.choice('qxz')}{word[cut:]}{found[3]}")


def of_another_type(lines: list[str], chance: random.Random) -> list[str]:
    at, found = keyed(lines, chance)
    value = chance.choice(["[[]]", "{}", "!!binary aGk=", "2026-11-30", "{a: {b: [c]}}", "!!python/object:os.system x"])
    following = at + 1
    indent = len(found[1].replace("- ", "  "))
    while following < len(lines) and re.match(rf" {{{indent + 1},}}|$", lines[following]):
        following += 1
    return [*lines[:at], f"{found[1]}{found[2]}: {value}", *lines[following:]]


def twice(lines: list[str], chance: random.Random) -> list[str]:
    top = [at for at, line in enumerate(lines) if re.match(r"(schema|kind|name|title): ", line)]
    at = chance.choice(top)
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def unknown_step(lines: list[str], chance: random.Random) -> list[str]:
    at = lines.index("steps:")
    name = chance.choice(["shell", "probe.hosts", "fix.aply", "server.restart", "python", "exec", "probe"])
    return [*lines[: at + 1], f"  - {name}: {chance.choice(['{}', 'x', '[1]', ''])}", *lines[at + 1 :]]


def unknown_name(lines: list[str], chance: random.Random) -> list[str] | None:
    found = [
        at for at, line in enumerate(lines) if re.search(r"\b[a-z_]+\.(verdict|faults|garbled|servers|leads)\b", line)
    ]
    if not found:
        return None
    at = chance.choice(found)
    return swapped(lines, at, re.sub(r"\b([a-z_]+)\.(verdict|faults|garbled|servers|leads)\b", r"\1q.\2z", lines[at]))


def no_variable(lines: list[str], chance: random.Random) -> list[str] | None:
    found = [at for at, line in enumerate(lines) if re.search(r'"\{[a-z_]+\}"', line)]
    at = chance.choice(found)
    return swapped(lines, at, re.sub(r'"\{([a-z_]+)\}"', r'"{\1_q}"', lines[at], count=1))


def code(lines: list[str], chance: random.Random) -> list[str]:
    at = lines.index("steps:")
    text = chance.choice(
        ["__import__('os').system('x')", "open('x')", "a.b.c", "(lambda: 1)()", "x[0]", "'a' * 9 ** 9 ** 9", "1 +", ""]
    )
    return [*lines[: at + 1], f'  - assert: "{text}"', *lines[at + 1 :]]


def anchors(lines: list[str], chance: random.Random) -> list[str]:
    return [*lines, chance.choice(["vars: &v {a: *v}", "keep: &k [*k]", "more: *nowhere", "a: &a [x]\nb: *a\nc: *a"])]


def laughs(lines: list[str], chance: random.Random) -> list[str]:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9)]
    return [*lines, "l0: &l0 [lol]", *levels]


def deep(lines: list[str], chance: random.Random) -> list[str]:
    depth = chance.choice([70, 200, 900])
    return [*lines, "deep: " + "[" * depth + "]" * depth]


def tabs(lines: list[str], chance: random.Random) -> list[str]:
    at, _ = keyed(lines, chance)
    return swapped(lines, at, "\t" + lines[at])


def cut_off(lines: list[str], chance: random.Random) -> bytes:
    whole = "\n".join(lines).encode()
    return whole[: chance.randrange(len(whole) // 3)]


def not_utf_8(lines: list[str], chance: random.Random) -> bytes:
    whole = bytearray("\n".join(lines).encode())
    whole[chance.randrange(len(whole))] = chance.choice([0xFF, 0xC0, 0x80])
    return bytes(whole)


def control(lines: list[str], chance: random.Random) -> bytes:
    whole = bytearray("\n".join(lines).encode())
    at = chance.randrange(len(whole))
    return bytes(whole[:at] + chance.choice([b"\x00", b"\x1b[31m", b"\x07"]) + whole[at:])


def huge(lines: list[str], chance: random.Random) -> list[str]:
    if chance.random() < 0.9:
        return [*lines, "title: " + "x" * (1 << 20)]
    return [*lines, "many: [" + "1, " * 60_000 + "1]"]


def missing(lines: list[str], chance: random.Random) -> list[str]:
    key = chance.choice(["schema", "kind", "name", "steps"])
    at = next(at for at, line in enumerate(lines) if line.startswith(f"{key}:"))
    return [*lines[:at], *lines[at + 1 :]]


def another_schema(lines: list[str], chance: random.Random) -> list[str]:
    at = next(at for at, line in enumerate(lines) if line.startswith("schema:"))
    return swapped(lines, at, f"schema: {chance.choice(['2', 'x', 'true', '[1]', '1.5', 'null'])}")


MUTATIONS: tuple[Mutation, ...] = (
    *(misspelt, misspelt, misspelt, of_another_type, of_another_type, twice, unknown_step, unknown_name, no_variable),
    *(code, anchors, laughs, deep, tabs, cut_off, not_utf_8, control, huge, missing, another_schema),
)


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A host in the inventory that would notice a connection."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        listening.setblocking(False)
        config = tmp_path / "config"
        config.mkdir()
        port = listening.getsockname()[1]
        (config / "hosts.toml").write_text(f'schema = 1\n[hosts.nobody]\naddress = "127.0.0.1"\nport = {port}\n')
        monkeypatch.setenv("DIAG_CONFIG_DIR", str(config))
        monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
        yield listening


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.stem)
def test_each_is_refused_with_its_place_and_without_a_connection(
    book: Path, tmp_path: Path, nobody: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(f"{SEED}-{book.stem}")
    lines, made, harmless = book.read_text().splitlines(), 0, []
    while made < EACH:
        mutation = MUTATIONS[made % len(MUTATIONS)]
        changed = mutation(lines, chance) or misspelt(lines, chance)
        path = tmp_path / f"{made}-{mutation.__name__}.yaml"
        path.write_bytes(changed if isinstance(changed, bytes) else "\n".join(changed).encode())
        made += 1
        if cli.run(["playbook", "check", str(path)]) == 0:  # a byte within a comment, say
            harmless.append(path.name)
            capsys.readouterr()
            continue
        told = capsys.readouterr().err
        places(told, path)
        if mutation is misspelt:  # running it is the same function; now and then is enough to see that it is
            assert cli.run(["playbook", "run", str(path), "nobody", "--set", "good=1", "--set", "bad=2"]) == 2
            capsys.readouterr()
    assert len(harmless) <= EACH // 10, harmless
    with pytest.raises(BlockingIOError):
        nobody.accept()
    assert not (tmp_path / "state" / "runs").exists()


def places(told: str, path: Path) -> None:
    """Every problem has its place in this file."""
    assert "Traceback" not in told
    problems = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert problems, told[:500]
    wrong = [line for line in problems if not re.match(rf"{re.escape(str(path))}:\d+:\d+: \S", line)]
    assert wrong == []
