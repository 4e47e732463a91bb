"""docs/playbooks.md: its example is a playbook, its table of step kinds is the registry's, and nothing is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag import cli, yamlfile
from diag.playbook import load
from diag.playbook.kinds import KINDS
from diag.playbook.schema import Hosts, Shell, StepWords, Var, json_schema

PAGE = Path(__file__).parents[2] / "docs" / "playbooks.md"
TABLE = re.compile(r"(<!-- kinds: .*?-->\n)(.*?)(<!-- end of kinds -->)", re.S)


def table() -> str:
    rows = ["| step | does | parameters | records |", "|---|---|---|---|"]
    for kind in KINDS.values():
        fields = kind.params.model_fields
        names = [f"**`{name}`**" if name == kind.params.main else f"`{name}`" for name in fields]
        values = [f"`{name}` ({means})" for name, means in kind.values.items()]
        star = " \\*" if kind.changes else ""
        rows.append(f"| `{kind.name}`{star} | {kind.says} | {', '.join(names)} | {', '.join(values) or '-'} |")
    return "\n".join(rows) + "\n"


def test_the_table_of_kinds_is_the_registrys(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    found = TABLE.search(page)
    assert found is not None
    if request.config.getoption("--update-transcripts"):
        PAGE.write_text(page[: found.start(2)] + table() + page[found.end(2) :])
        return
    assert found[2] == table()


def test_the_example_is_a_playbook(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert example is not None
    file = tmp_path / "example.yaml"
    file.write_text(example[1])
    book = load.load(str(file))
    assert [step.id for step in book.all_steps] == ["source", "mend", "server", "asked", "step5", "after"]


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text()
    keys = {info.alias or name for model in (Shell, Var, Hosts) for name, info in model.model_fields.items()}
    keys |= set(StepWords.model_fields)
    assert [key for key in sorted(keys) if f"`{key}" not in page] == []
    assert [path.stem for path in load.shipped() if f"| `{path.stem}` |" not in page] == []


@pytest.mark.parametrize("path", load.shipped(), ids=lambda path: path.stem)
def test_what_is_shipped_is_valid_by_the_schema_for_editors(path: Path) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yamlfile.read(path).data, schema)


@pytest.mark.parametrize(
    "step", [{}, {"id": "x"}, {"probe.hosts": {}}, {"probe.host": {"siute": "quick"}}, {"note": "a", "assert": "b"}]
)
def test_the_schema_for_editors_refuses(step: dict[str, Any]) -> None:
    document = {"schema": 1, "kind": "playbook", "name": "x", "steps": [step]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(json.dumps(document)), json_schema())


@pytest.mark.parametrize("command", [("list",), ("show", "health"), ("check", "upgrade-regression")])
def test_documents_of_playbooks_themselves(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["playbook", *command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    name = "playbook-list" if command == ("list",) else "playbook-show"
    jsonschema.validate(told, json.loads((PAGE.parent / "schemas" / f"{name}.json").read_text()))
    assert cli.run(["playbook", *command]) == 0
    assert "health" in capsys.readouterr().out or command[0] == "check"
