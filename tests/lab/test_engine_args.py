"""The server's command line: SGLang's flags, SGLang's refusals, and the widths that follow from them."""

import pytest

pytest.importorskip("torch", reason="the lab extra is not installed")

from diag.lab.engine.args import parse

TREE = ["--model-path", "m", "--speculative-algorithm", "DDTREE"]


@pytest.mark.parametrize(
    ("flags", "count", "width"),
    [
        (["--speculative-ddtree-budget", "16", "--speculative-num-draft-tokens", "8"], 8, 17),
        (["--speculative-ddtree-budget", "7", "--speculative-num-draft-tokens", "8"], 8, 8),
        (["--speculative-num-draft-tokens", "8"], 8, 8),
        (["--speculative-ddtree-budget", "16"], 8, 17),
    ],
)
def test_the_tree_is_budget_plus_one_wide_and_the_count_stays(flags: list[str], count: int, width: int) -> None:
    args = parse([*TREE, *flags])
    assert (args.speculative_num_draft_tokens, args.draft_token_num) == (count, width)


def test_ngram_is_as_wide_as_the_count() -> None:
    args = parse(["--model-path", "m", "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12"])
    assert (args.speculative_num_draft_tokens, args.draft_token_num) == (12, 12)


def test_without_speculation_there_is_no_verify_step() -> None:
    args = parse(["--model-path", "m"])
    assert args.draft_token_num is None
    assert args.to_json()["disable_cuda_graph"] is False


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--speculative-eagle-topkk", "4"], "unrecognized arguments: --speculative-eagle-topkk"),
        (["--speculative-ddtree-budget", "4"], "needs --speculative-algorithm DDTREE"),
        (["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "0"], "at least 1"),
        (["--speculative-algorithm", "EAGLE"], "invalid choice"),
        (["--max-running-requests", "0"], "at least 1"),
        (["--port", "x"], "invalid int value"),
    ],
)
def test_what_is_not_understood_is_refused_at_once(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(["--model-path", "m", *flags])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
