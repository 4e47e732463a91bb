"""What a text can be judged to be (`kind` of a text in JSON); the kinds of diag/verdict/compare.py."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="identical",
        group="text",
        title="token for token what the good configuration gave",
        what="Compared by token ids, not by text. Healthy.",
        why="At temperature 0 a lossless server has no other choice, near ties apart.",
        do=("Nothing.",),
        more=("docs/verdict.md",),
    ),
    Entry(
        id="near_tie",
        group="text",
        title="differs from the good configuration, but only where two tokens are as good as equal",
        what=(
            "Every emitted token is within 0.25 nats of the model's best at its place, and so is the reference's token "
            "where the two part ways. Healthy."
        ),
        why=(
            "Another batch size or kernel rounds differently; greedy decoding then takes the other of two equal tokens "
            "and goes on sensibly. It is no fault."
        ),
        do=("Nothing. Many near ties from the first token on are worth a second look at the numbers.",),
        more=("docs/verdict.md",),
    ),
    Entry(
        id="plausible",
        group="text",
        title="nothing to compare with, and nothing wrong with it",
        what=(
            "There is no reference text. Every token is within 0.25 nats of the model's best, and the text has what "
            "the prompt expects, where it expects something. Healthy."
        ),
        why=(
            "Weaker than `identical`: a model that is itself wrong (weights, quantisation) finds its own text "
            "excellent. Where the server reports no log-probabilities it is weaker still; the line says so."
        ),
        do=("Nothing. For a stronger test compare with a configuration you trust: diag bisect NAME --check",),
        more=("docs/verdict.md",),
    ),
    Entry(
        id="wrong",
        group="text",
        title="reads well, but is not the right answer",
        what=(
            "The model's own scores find nothing odd, but the text lacks what a right answer must have (`expect` of "
            "the prompt). Unhealthy."
        ),
        why="A fault that hits prefill as well, wrong weights, or the text of another request looks like this.",
        do=(
            "Read the text: fluent and about something else points at mixed-up requests or caches.",
            "Is the model simply too small for the prompt? Try a suite of your own: --suite FILE",
        ),
        more=("docs/verdict.md",),
    ),
    Entry(
        id="garbled",
        group="text",
        title="holds a token that the model itself would not have chosen",
        what=(
            "At least one token is more than 0.25 nats below the model's best at its place; or the reference's token "
            "is, at the place where the two part ways; or the text is empty. Where the server cannot score, any "
            "difference from the reference counts. Unhealthy."
        ),
        why=(
            "Greedy decoding takes the best token at every place. One far below it was not chosen by the model: "
            "something between the model and the text is broken."
        ),
        do=("Read the text and the number: 0.3 nats may be arithmetic, 10 nats is not.",),
        more=("docs/verdict.md",),
    ),
    Entry(
        id="no_answer",
        group="text",
        title="the request failed: an error, an abort or a time-out",
        what="The server answered with an error, aborted the request, or did not answer within 300 s. Unhealthy.",
        why="It says nothing about the text, but a server that fails requests is not healthy.",
        do=(
            "Read the error in the line.",
            "Look at the server's log; an exception in a forward pass shows there.",
        ),
        more=("docs/verdict.md",),
    ),
)
