"""The look of a text: what gives garbled output away, what must not, and what hostile text may not do."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.verdict.shape.chunks import _any, _plain_word, chunks
from diag.verdict.shape.judge import HEAD, TAIL, judge_shape, parts
from diag.verdict.shape.runs import longest_loop

CLEAN = {
    "english": "The sky is blue because of a process called Rayleigh scattering, where light encounters tiny molecules "
    "of air, causing them to scatter in different directions.",
    "german": "Die Bäckerei am Markt öffnet um sechs Uhr. Wer früher kommt, muss warten, bis das erste Brot aus dem "
    "Ofen gezogen wird; danach geht alles sehr schnell.",
    "russian": "Библиотека работает каждый день, кроме воскресенья. Книги можно взять домой на две недели, а потом "
    "вернуть или попросить ещё немного времени.",
    "japanese": "図書館は毎日開いていますが、日曜日は休みです。"
    "本は二週間借りることができ、必要なら期間を延ばすこともできます。",
    "chinese": "图书馆每天开放，星期日除外。图书可以借两个星期，如果需要也可以延长时间。请在归还之前检查书页。",
    "arabic": "تفتح المكتبة أبوابها كل يوم ما عدا يوم الأحد. "
    "يمكن استعارة الكتب لمدة أسبوعين ثم إعادتها أو تمديد المدة.",
    "hindi": "पुस्तकालय रविवार को छोड़कर हर दिन खुलता है। किताबें दो सप्ताह के लिए घर ले जाई जा सकती हैं।",
    "python": "def add(a: int, b: int) -> int:\n    # the sum\n    if a < 0:\n        raise ValueError(a)\n"
    "    return a + b\n",
    "json": json.dumps([{"id": n, "name": "river stone", "tags": ["a", "b"], "ok": None} for n in range(5)], indent=2),
    "table": "| city | people | river |\n|---|---:|---|\n| Basel | 178000 | Rhine |\n| Linz | 205000 | Danube |\n",
    "numbers": ", ".join(str(n) for n in range(1, 120)),
    "base64": "aGVsbG8gd29ybGQsIHRoaXMgaXMgYSBsb25nIHRleHQgdGhhdCBpcyBlbmNvZGVkIGluIGJhc2U2NA==",
    "emoji": "Great work, everybody! 🎉🎉🎉 See you on Monday 👋",
    "list": "1. Monday\n2. Tuesday\n3. Wednesday\n4. Thursday\n5. Friday\n6. Saturday\n7. Sunday\n",
    "refrain": "Row on, row on, the night is long,\nAnd nobody has seen the moon.\n" * 3,
    "laughter": "Ha ha ha ha! That is what she said, and nobody could stop laughing.",
    "ruler": "Results\n" + "=" * 70 + "\nEverything passed.\n" + "-" * 70,
}


@pytest.mark.parametrize("name", CLEAN)
def test_people_write_this(name: str) -> None:
    assert judge_shape(CLEAN[name]) == []


SALAD = (
    "Here the sphinctymal strugg struggituschantsrr--_ proble- showc meaning- struggiment- strugg-COS-\n offadUn "
    "unnecess autonomlnumerable Writersatum interpre the-arthsers/caps&show/caps/&tabs&tsv&\n\n\n\n\n\n the game of\n"
    '-us wis.•/- Appl wis :")- {:.:") LEvirULDSeeennaitunitFF -ota ;;’_ wis ( {:.\n;;-();;-()\n'
)
MANY_SCRIPTS = (
    'ваш的iyim erto 的 klä ﾃｽ foundation يمكن umpлан 좋은itemap ốngsu ตัวing }}"> κείμενο_ptr 。それ undefined'
)

GARBLED = {
    "token-0-run": "!" * 60,
    "salad": SALAD,
    "empty": " \n ",
    "replaced": "The capital is P\ufffd\ufffdis and that is all there is to it.",
    "lone-surrogate": "The capital is \ud83d and more.",
    "control": "abc\x00def\x01ghi\x02 and the rest of the sentence",
    "special-token": "Yes.<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>",
    "raw-pieces": "The capitalĠof FranceĠis ParisĠand theĠriver isĠthe Seine",
    "loop": "It is the the" + " the" * 60,
    "character-run": "Well then" + "a" * 90,
}


@pytest.mark.parametrize("name", GARBLED)
def test_no_healthy_server_writes_this(name: str) -> None:
    text = GARBLED[name]
    found = judge_shape(text, token_ids=[0] * 60 if name == "token-0-run" else ())
    (first, *_) = [evidence for evidence in found if evidence.rule == name]
    assert first.weight == "garbled"
    assert 0 <= first.where[0] <= first.where[1] <= len(text)
    assert first.why
    assert json.dumps(first.to_json())


SHORT = (
    "well mys driving flour worseformal ultimately Iraq Saf Phys obvioustransmit omit tokenocal flour worse addressed",
    ' mowingliest diaspora plac("{} rehears massage plac heatersoflav achieved',
    " Congressemptimportia de reception gutos deempt abAlex-herrera- cuff aerospace sit wanted reception expand assist",
)
"""Right token ids, read by another vocabulary: of a dozen pieces, some of which are words of several languages."""


@pytest.mark.parametrize("text", SHORT)
def test_a_dozen_pieces_without_an_order_are_enough(text: str) -> None:
    assert judge_shape(text)


def test_a_vertical_tab_is_no_mark_of_any_text() -> None:
    assert [each.rule for each in judge_shape(CLEAN["english"] + "\x0b")] == ["control"]


def test_scripts_of_many_languages_at_once() -> None:
    assert judge_shape(MANY_SCRIPTS)


def test_where_it_goes_wrong_is_said() -> None:
    good = CLEAN["english"] + " " + CLEAN["english"].replace("sky", "sea")
    (evidence, *_) = judge_shape(good + " " + SALAD)
    assert evidence.rule == "salad"
    assert evidence.where[1] > len(good)


def test_a_loop_that_was_asked_for_is_no_proof() -> None:
    text = "buffalo " * 40
    assert [e.weight for e in judge_shape(text) if e.rule == "loop"] == ["garbled"]
    asked = judge_shape(text, prompt="Write the word buffalo forty times.")
    assert [e.weight for e in asked if e.rule == "loop"] == ["suspect"]


def test_a_word_and_a_mark_again_and_again_is_a_small_models_loop() -> None:
    assert [e.weight for e in judge_shape("Taxi: " + "taxi, " * 60) if e.rule == "loop"] == ["suspect"]
    assert [e.weight for e in judge_shape("The " + "tou " * 60) if e.rule == "loop"] == ["garbled"]


def test_a_cut_character_at_the_end_is_no_fault() -> None:
    assert judge_shape(CLEAN["english"] + " Caf\ufffd") == []


def test_ids_tell_a_run_that_the_text_does_not_show() -> None:
    (evidence,) = [e for e in judge_shape("", token_ids=[5, 0, 0, 0, 0, 0, 0, 0, 0, 0]) if e.rule == "token-0-run"]
    assert (evidence.numbers["tokens"], evidence.numbers["at_token"]) == (9, 1)


@pytest.mark.parametrize("unit", ["ab ", "endless love, ", "\n- ", "x"])
def test_the_longest_loop_is_found_with_its_period(unit: str) -> None:
    before = "Something else at first. "
    found = longest_loop(before + unit * 40)
    if len(unit) == 1:
        return
    assert found is not None
    assert found[2] == len(unit)
    assert found[1] - found[0] >= len(unit) * 39


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_is_judged(text: str) -> None:
    for evidence in judge_shape(text):
        assert 0 <= evidence.where[0] <= evidence.where[1] <= len(text)
        json.dumps(evidence.to_json())


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_pieces_are_in_order_and_leave_out_only_blanks(text: str) -> None:
    found = chunks(text)
    assert all(end <= start for end, start in zip(found.ends, found.starts[1:]))
    covered = {at for start, end in zip(found.starts, found.ends) for at in range(start, end)}
    assert all(text[at].isspace() for at in range(len(text)) if at not in covered)


@given(
    st.from_regex(r"[A-Za-z]{1,24}[.,;:!?]?|[a-zA-Z.;]{1,4}", fullmatch=True)
    | st.text("aéßИжΩกक한字ا̈ªˇA1.;’", min_size=1, max_size=6)
)
def test_the_short_way_to_a_word_says_what_the_long_one_says(piece: str) -> None:
    short = _plain_word(piece)
    assert short is None or short == _any(piece)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "\x1b[2J\x1b[31m" * 100_000,
        "\u202e\ud800\x00" * 300_000,
        "".join(random.Random(1).choices("абвгдеabcdef _-;'\"\n 的あ", k=1_000_000)),
        "word " * 200_000,
        "(" * 1_000_000,
    ],
    ids=["one line", "escapes", "bidi, surrogates, NULs", "noise", "a loop", "brackets"],
)
def test_a_megabyte_is_bounded_work(text: str) -> None:
    assert sum(len(part) for _, part in parts(text)) <= HEAD + TAIL + 20_000
    assert judge_shape(text)


def test_parts_are_where_they_say() -> None:
    text = "".join(chr(33 + n % 90) for n in range(100_000))
    for offset, part in parts(text):
        assert text[offset : offset + len(part)] == part
