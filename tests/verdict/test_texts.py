"""`diag probe text`: texts of one's own, from a file or standard input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from diag.cli.probe_text import text
from diag.verdict.texts import Record, judge

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "probe-text.json"
GOOD = "The library is open every day except on Sundays, and books may be kept for two weeks."
SALAD = (
    'wis ( {:.\n;;’_ wis__ strugg-COS-\n offadUn autonomlnumerable :")--_ LEvirULDSeeennait }-P\ufffdhelm ;;-();;-()'
)


def run(path: Path | str, *options: str) -> Result:
    return CliRunner().invoke(text, [str(path), *options], standalone_mode=False)


def written(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "verdict", "rule"),
    [
        ({"text": GOOD}, "healthy", None),
        ({"text": SALAD}, "garbled", "replaced"),
        ({"text": "Yes."}, "unknown", None),
        ({"text": "Yes.", "expect": "^Yes"}, "healthy", None),
        ({"text": GOOD, "expect": "closed"}, "garbled", "expected"),
        ({"text": GOOD, "absent": "Sundays"}, "garbled", "absent"),
        ({"text": None, "error": "HTTP 500"}, "unknown", "no-answer"),
        ({"text": "", "finish_reason": "stop"}, "garbled", "empty"),
        ({"text": "", "token_ids": [0] * 20}, "garbled", "empty"),
    ],
)
def test_one_text(record: dict[str, object], verdict: str, rule: str | None) -> None:
    judged = judge(Record.model_validate(record))
    assert judged.verdict == verdict
    assert [e.rule for e in judged.evidence][:1] == ([] if rule is None else [rule])


def test_a_file_of_texts(tmp_path: Path) -> None:
    path = written(tmp_path, {"text": GOOD, "id": "a"}, {"text": SALAD, "id": 7, "unheard-of": 1})
    done = run(path, "--json")
    document = json.loads(done.output)
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(document)) == []
    assert [(t["line"], t["id"], t["verdict"]) for t in document["texts"]] == [(1, "a", "healthy"), (2, 7, "garbled")]
    assert done.return_value == 1
    page = run(path).output
    assert "garbled" in page
    assert "1 healthy, 1 garbled" in page


@pytest.mark.parametrize(
    ("records", "code"),
    [([{"text": GOOD}], 0), ([{"text": "Yes."}], 3), ([], 3), ([{"text": GOOD}, {"text": "Yes."}], 0)],
)
def test_exit_codes(tmp_path: Path, records: list[object], code: int) -> None:
    assert run(written(tmp_path, *records)).return_value == code


def test_hostile_texts_are_shown_harmlessly(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    hostile = json.dumps({"text": "\x1b[2J\u202eabc\x00\x00\x00 and then\ud800 " + "x" * 50, "id": "\x1b]0;t\x07"})
    path.write_bytes(hostile.encode() + b'\n{"text": "caf\xe9 \xff\xfe is what the bytes say here"}\n')
    done = run(path)
    assert done.return_value == 1
    assert not {"\x1b", "\x00", "\u202e", "\x07"} & set(done.output)
    document = json.loads(run(path, "--json").output)
    assert [t["evidence"][0]["rule"] for t in document["texts"]] == ["lone-surrogate", "lone-surrogate"]


def test_a_megabyte_in_one_line(tmp_path: Path) -> None:
    done = run(written(tmp_path, {"text": "a" * 1_000_000}))
    assert done.return_value == 1
    assert len(done.output) < 2000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "dictionary"),
        (b'{"prompt": "x"}', "text"),
        (b'{"text": 5}', "text"),
        (b'{"text": "a", "expect": "("}', "regular expression"),
        (b'{"text": "a", "token_ids": [-1]}', "token_ids"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_text_is_one_clear_error(tmp_path: Path, line: bytes, said: str) -> None:
    from diag.errors import UsageError

    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    done = run(path)
    assert isinstance(done.exception, UsageError)
    assert "line 2" in str(done.exception)
    assert said in str(done.exception)


def test_no_such_file() -> None:
    from diag.errors import UsageError

    done = run("/nowhere/texts.jsonl")
    assert isinstance(done.exception, UsageError)
    assert "No such file" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "finish_reason", "rules"),
    [
        ('Here it is:\n```json\n{"colour": "red", "size": [1, 2]}\n``` as you wished', "stop", []),
        ("The list is [1, 2, 3] and no other", "", []),
        ('{"colour": "red", "size": ', "length", []),  # cut off: nobody can tell
        ('{"colour": "red", "size": ', "stop", ["unparsed"]),
        ('{"colour": red}, {"colour": "blue"}', "stop", ["unparsed"]),
        ("There is no document in this answer.", "stop", ["unparsed"]),
        ("[" * 30_000, "stop", ["unparsed"]),  # deeper than anybody parses
    ],
)
def test_a_right_answer_holds_a_whole_document(text: str, finish_reason: str, rules: list[str]) -> None:
    judged = judge(Record(text=text, finish_reason=finish_reason, parses="json"))
    assert [each.rule for each in judged.evidence if each.rule == "unparsed"] == rules
    assert not rules or judged.verdict == "garbled"
