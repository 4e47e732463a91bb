"""`diag probe prompts`: ask a server a suite of prompts and judge its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, console, print_json
from diag.errors import UsageError

if TYPE_CHECKING:
    from diag.serving.client import Answer
    from diag.serving.endpoint import Endpoint
    from diag.verdict.prompts import Suite


@click.command()
@click.argument("target")
@click.option("--suite", "suite_name", default="smoke", show_default=True, help="One of probes/prompts, or a file.")
@click.option(
    "--reference", metavar="TARGET|RUN.json", help="A server that is known to be good, or what --json said of one."
)
@JSON
def prompts(target: str, suite_name: str, reference: str | None, as_json: bool) -> int:
    """Ask TARGET, a URL, HOST or HOST:PORT of the inventory, the prompts of a suite and judge every answer: by its
    look, by what the prompt expects, by log-probabilities, and by what the server counted.

    Any SGLang or OpenAI-compatible server. With a --reference, tokens are scored by it, within a margin that is
    measured there. A key is read from DIAG_API_KEY, or OPENAI_API_KEY for a URL. Suites: smoke, batch, leak,
    length, needle, cache, languages, code-json, cancel, stress, quick, garble.

    Exit code 0: healthy; 1: an answer is garbled; 3: suspect, or nothing could be judged.
    """
    from contextlib import ExitStack

    from diag.report import prompts as report
    from diag.report.text import visible
    from diag.serving.endpoint import opened
    from diag.serving.probing import probe
    from diag.verdict.prompts import load

    suite = load(suite_name)
    if reference is not None and reference.rstrip("/") == target.rstrip("/"):
        what = f"{target} cannot be its own reference: whatever it writes, it finds excellent."
        raise UsageError(what, next="Name another server, known to be good, or leave --reference out.")
    err = console(stderr=True)
    with ExitStack() as stack:
        good = stack.enter_context(_reference(reference, suite)) if reference is not None else None
        status = stack.enter_context(err.status("connecting"))
        endpoint = stack.enter_context(opened(target))
        found = probe(endpoint, suite, reference=good, say=lambda line: status.update(visible(line)))
    if as_json:
        print_json(report.document(found))
    else:
        out = console()
        for style, line in report.page(found):
            out.print(visible(line), style=style)
    return report.exit_code(found)


@contextmanager
def _reference(named: str, suite: Suite) -> Iterator[Endpoint | Mapping[str, Answer]]:
    if named.endswith(".json"):
        yield _earlier(Path(named), suite)
        return
    from diag.serving.endpoint import opened

    with opened(named) as endpoint:
        yield endpoint


def _earlier(path: Path, suite: Suite) -> dict[str, Answer]:
    """The lone answers of an earlier run of that suite, from what --json said of it. Raises UsageError."""
    import json

    from diag.serving.earlier import lone_answers

    told = "Save one with: diag probe prompts TARGET --suite NAME --json > RUN.json"
    try:
        found = lone_answers(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", next="Check the name of the file.") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what diag probe prompts --json prints.", next=told) from None
    if not found:
        raise UsageError(f"{path} holds no answers that were asked for alone.", next=told)
    if not found.keys() & {prompt.name for prompt in suite.prompts}:
        raise UsageError(f"{path} answers no prompt of the suite '{suite.name}'.", next=told)
    return found
