"""A run for a CI gate, in the XML that test runners agree on: failed where a fault was found, in error where nobody can
tell. Pure: a document in, text out.

    a bisection     one case: its verdict; the trials are in its output
    a playbook      a case for each step, and one for the verdict
    a probe         a case for each host: its findings
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as xml

from diag.report import run_page
from diag.report.text import visible

_NOT_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Case:
    """state: passed, failed, error or skipped."""

    name: str
    state: str
    message: str = ""
    output: str = ""
    seconds: float = 0.0


_ELEMENT = {"failed": "failure", "error": "error", "skipped": "skipped"}


def suite(made: Mapping[str, Any]) -> str:
    cases = [*_steps(made), _verdict(made)]
    counts = {
        "tests": len(cases),
        **{
            f"{name}s": sum(case.state == state for case in cases)
            for state, name in (("failed", "failure"), ("error", "error"))
        },
        "skipped": sum(case.state == "skipped" for case in cases),
    }
    numbers = {name: str(count) for name, count in counts.items()}
    time = f"{made['elapsed_s'] or 0:.3f}"
    root = xml.Element("testsuites", {**numbers, "name": "diag", "time": time})
    own = xml.SubElement(root, "testsuite", {**numbers, "name": _safe(f"diag {made['program']}"), "time": time})
    own.set("hostname", _safe(", ".join(made["hosts"]) or "localhost"))
    if made["began_unix"] is not None:
        own.set("timestamp", datetime.fromtimestamp(made["began_unix"], UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    properties = xml.SubElement(own, "properties")
    for name in ("run", "verdict", "journal"):
        xml.SubElement(properties, "property", {"name": name, "value": _safe(str(made[name] or ""))})
    for case in cases:
        _write(own, case, _safe(f"diag.{made['program']}.{made['name']}"))
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _write(own: xml.Element, case: Case, group: str) -> None:
    named = {"name": _safe(case.name), "classname": group, "time": f"{case.seconds:.3f}"}
    element = xml.SubElement(own, "testcase", named)
    if case.state in _ELEMENT:
        told = xml.SubElement(element, _ELEMENT[case.state], {"message": _safe(case.message)})
        if case.state != "skipped":
            told.set("type", case.state)
            told.text = _safe(case.message)
    if case.output:
        xml.SubElement(element, "system-out").text = _safe(case.output)


def _verdict(made: Mapping[str, Any]) -> Case:
    state = {0: "passed", 1: "failed"}.get(made["exit_code"], "error")
    lines = [line for _, line in run_page.page(made)]
    name = str(made["hosts"][0]) if made["program"] == "probe" and len(made["hosts"]) == 1 else "verdict"
    return Case(name, state, " ".join(made["answer"][:1]), "\n".join(lines), float(made["elapsed_s"] or 0.0))


def _steps(made: Mapping[str, Any]) -> Iterator[Case]:
    for step in made["steps"]:
        state = {"done": "passed", "undone": "passed", "skipped": "skipped", "failed": "failed"}.get(
            step["state"], "error"
        )
        if state == "passed" and step["exit_code"] == 3:
            state = "error"
        told = step["why"] or step["summary"]
        name = f"{step['id']} on {step['host']}" if step["host"] else step["id"]
        yield Case(name, state, told, "\n".join(step["said"]), float(step["seconds"] or 0.0))


def _safe(text: str) -> str:
    """What XML can hold."""
    return _NOT_XML.sub("?", visible(text))
