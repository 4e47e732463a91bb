"""The documentation names only commands, options, files and links that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from documents import PAGES, ROOT, commands, files, flags, links

from diag.bisect import plan
from diag.cli import cli
from diag.explain import index
from diag.fixes import catalogue
from diag.serving import suspects
from diag.verdict import prompts

# Flags of other programs that the pages speak of. SGLang's were looked up in sglang/srt/server_args.py of 0.5.12.
FOREIGN = {
    *("--x", "--disable-x", "--foo"),
    *("--attention-backend", "--kv-cache-dtype", "--disable-cuda-graph", "--disable-radix-cache"),
    *("--disable-overlap-schedule", "--chunked-prefill-size", "--page-size", "--mem-fraction-static"),
    *("--sampling-backend", "--host", "--model-path", "--speculative-algorithm", "--speculative-ddtree-budget"),
    *("--speculative-eagle-topk", "--speculative-num-draft-tokens", "--speculative-"),
    *("--api-key", "--kv-cache-memory-bytes"),
    *(flag.split(".")[0] for engine in suspects.engines() for s in suspects.table(engine).suspect for flag in s.flags),
    *(
        "--clean",
        "--repeats",
        "--releases",
        "--part",
        "--chunks",
        "--lab",
        "--cache",
        "--examples",
        "--no-texts",
        "--suites",
    ),  # of benchmarks
    *("--wide", "--repeat", "--strikes", "--start-s", "--every", "--skip", "--only"),
    *("--no-install-recommends", "--gres", "--wrap", "--no-requeue"),  # of apt and sbatch
    *("--tp", "--nnodes", "--node-rank", "--dist-init-addr"),
    *("--lab-fault", "--lab-fault-chance", "--lab-fault-above", "--lab-fault-past"),
}


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `diag WORDS` ends at, and the words left for it."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group):
        context = click.Context(command)
        if not rest or rest[0].startswith("-"):
            return command, rest
        found = command.get_command(context, rest[0])
        assert found is not None, f"no such command: {rest[0]}"
        command, rest = found, rest[1:]
    return command, rest


EVERY = [(line, words) for page in PAGES for line, words in commands(page)]


def test_there_are_commands_to_check() -> None:
    assert len(EVERY) > 40


@pytest.mark.parametrize(("line", "words"), EVERY, ids=lambda value: str(value) if not isinstance(value, list) else "")
def test_a_command_line_parses(line, words: list[str]) -> None:
    command, rest = leaf(words)
    if isinstance(command, click.Group) and not rest:
        return
    if _is_a_name_only(command, rest):
        return
    context = command.make_context(command.name, rest, resilient_parsing=False)
    wanted, fix_id = context.params.get("wanted"), context.params.get("fix_id")
    if wanted not in (None, "ID"):
        index.get(wanted)
    if fix_id not in (None, "ID"):
        catalogue.get(fix_id)
    plan_name = context.params.get("plan_name")
    if plan_name is not None and plan_name not in ("PLAN", "FILE") and "/" not in plan_name:
        plan.load(plan_name)


def _is_a_name_only(command: click.Command, rest: list[str]) -> bool:
    """`diag fix apply` in a sentence names a command; in a block it would be wrong."""
    needed = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    return bool(needed) and not rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_hold_whole_commands(page: Path) -> None:
    for line, words in commands(page):
        if not re.search(r"`" + re.escape(line.text), page.read_text()):
            command, rest = leaf(words)
            assert not _is_a_name_only(command, rest), str(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for line, target in links(page):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            assert (page.parent / path).exists(), str(line)
            assert anchor == "" or anchor in _anchors(page.parent / path), str(line)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _our_flags() -> set[str]:
    found = {"--help", "--version"}

    def walk(command: click.Command) -> None:
        found.update(opt for p in command.params for opt in (*p.opts, *p.secondary_opts) if opt.startswith("--"))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                child = command.get_command(click.Context(command), name)
                assert child is not None
                walk(child)

    walk(cli)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    known = _our_flags() | FOREIGN
    unknown = [f"{line} ({flag})" for line, flag in flags(page) if flag not in known]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    missing = [f"{line} ({name})" for line, name in files(page) if not (ROOT / name).exists()]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached = {(ROOT / target).resolve() for _, target in links(ROOT / "README.md")}
    assert {page for page in PAGES if page.parent.name == "docs"} <= reached


def test_the_example_plan_of_the_page_is_a_plan(tmp_path: Path) -> None:
    page = (ROOT / "docs/bisect.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", page, re.S)
    assert example is not None
    file = tmp_path / "example.yaml"
    file.write_text(example[1])
    mine, shipped = plan.load(str(file)), plan.load("ddtree-garble")
    assert mine.space.factors == shipped.space.factors
    assert mine.space.reads == shipped.space.reads
    rules = [[(d.name, d.when.text, d.title) for d in one.space.derived] for one in (mine, shipped)]
    assert rules[0] == rules[1]
    assert mine.spec.command == shipped.spec.command


def test_the_page_of_plans_names_every_field() -> None:
    page = (ROOT / "docs/bisect.md").read_text()
    fields = {info.alias or name for name, info in plan.PlanFile.model_fields.items()}
    fields |= set(plan.FactorSpec.model_fields) | set(plan.DerivedSpec.model_fields)
    fields |= {info.alias or name for name, info in prompts.Suite.model_fields.items()}
    fields |= set(prompts.SuitePrompt.model_fields)
    assert [name for name in sorted(fields) if f"`{name}" not in page] == []


def test_the_inventory_example_of_the_readme_is_an_inventory(tmp_path: Path) -> None:
    from diag.hosts import inventory

    readme = (ROOT / "README.md").read_text()
    example = re.search(r"```toml\n(.*?)```", readme, re.S)
    assert example is not None
    file = tmp_path / "diag.toml"
    file.write_text(example[1])
    host = inventory.load([file]).get("gpu1")
    assert host.labels == {"model": "/models/my-model"}
    assert [key for key in inventory.Host.model_fields if key != "name" and key not in readme] == []
