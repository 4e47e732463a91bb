"""Steps that look, and change nothing: probe.host, probe.source, probe.kernels, probe.prompts, source.show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import Field

from diag.errors import UsageError
from diag.playbook.kind import Kind, Params, Result, near, problems_of
from diag.playbook.stage import Stage

_PYTHON = "the engine's interpreter on the host, instead of those found"


class HostParams(Params):
    """As the options of `diag probe host`."""

    python: str | None = Field(default=None, description=_PYTHON)
    suite: str = Field(default="quick", description="what running servers are asked")
    prompts: bool = Field(default=True, description="false: running servers are asked for their configuration only")
    verify_all: bool = Field(default=False, description="hash every file of the engine's package")


def probe_host(params: HostParams, stage: Stage) -> Result:
    from diag import probe
    from diag.report import host as report
    from diag.verdict.findings import exit_code, findings

    seen = probe.host(
        stage.transport(),
        python=params.python,
        suite_name=params.suite,
        ask=params.prompts,
        verify_all=params.verify_all,
        say=stage.say,
    )
    found = findings(seen)
    document = report.document(seen, found)
    code = exit_code(found)
    faults = tuple(dict.fromkeys(each.id for each in found if each.severity == "fault"))
    servers = document["servers"]
    garbled = sum(server["verdict"] == "garbled" for server in servers)
    told = "healthy" if code == 0 else f"faults: {', '.join(faults)}" if faults else "not everything could be told"
    return Result(
        f"{told}; {_count(len(servers), 'server')} running" + (f", {garbled} garbled" if garbled else ""),
        {
            "healthy": code == 0,
            "faults": faults,
            "findings": tuple(dict.fromkeys(each.id for each in found)),
            "servers": len(servers),
            "garbled": garbled,
            "exit_code": code,
        },
        code,
        document,
        tuple(f"{each.severity}: {each.what}" for each in found),
    )


class SourceParams(Params):
    """As the options of `diag probe source`."""

    python: str | None = Field(default=None, description=_PYTHON)
    backends: tuple[str, ...] = Field(default=(), description="attention backends that are served with")
    oracle: bool = Field(default=False, description="also run the installed code, without a server or a GPU")
    diff: bool = Field(default=False, description="how edited files differ from the release's wheel")


def probe_source(params: SourceParams, stage: Stage) -> Result:
    from diag.report import source as report
    from diag.source import inspection, targets

    target = targets.Target(stage.host.name, "host", host=stage.host)
    seen = inspection.inspect(
        target,
        transport=stage.transport(),
        python=params.python,
        backends=params.backends,
        oracle=params.oracle,
        fetch=params.diff,
        say=stage.say,
    )
    present = [f for f in seen.faults if f.severity == "fault" and f.detection.state == "present"]
    faults = tuple(dict.fromkeys(each.fix.id for each in present))
    edited = tuple(file.path for file in seen.installation.files if file.integrity == "edited")
    version = seen.installation.version or ""
    files = "no file of those looked at is edited" if not edited else f"edited: {', '.join(edited)}"
    return Result(
        f"{seen.installation.package} {version or '(version unknown)'}: {', '.join(faults) or 'no fault'}; {files}",
        {
            "faults": faults,
            "version": version,
            "edited": edited,
            "pristine": not edited,
            "exit_code": seen.exit_code,
        },
        seen.exit_code,
        report.document(seen),
    )


class KernelParams(Params):
    """As the options of `diag probe kernels`."""

    python: str | None = Field(default=None, description=_PYTHON)
    quick: bool = Field(default=False, description="a small grid of shapes")
    gpu: int | None = Field(default=None, ge=0, description="take this GPU, even if it is in use")
    cpu: bool = Field(default=False, description="take no GPU: Triton's interpreter, a small grid")


def probe_kernels(params: KernelParams, stage: Stage) -> Result:
    from diag import kernel_check
    from diag.report import kernels as report

    seen = kernel_check.check(
        stage.transport(), python=params.python, quick=params.quick, gpu=params.gpu, cpu=params.cpu, say=stage.say
    )
    wrong = sum(bool(step.wrong or step.untouched) for step in seen.steps)
    return Result(
        f"{seen.verdict.replace('_', ' ')}: {seen.why}",
        {"verdict": seen.verdict, "wrong_cases": seen.wrong_cases, "wrong_steps": wrong, "exit_code": seen.exit_code},
        seen.exit_code,
        report.document(seen),
    )


class PromptParams(Params):
    """As the options of `diag probe prompts`."""

    server: str | None = Field(default=None, description="the step that started the server; without it, the only one")
    port: int = Field(default=0, ge=0, le=65535, description="of a server that runs there already; 0: the only one")
    suite: str = Field(default="smoke", description="of probes/prompts, or a file beside the playbook")
    reference: str | None = Field(default=None, description="an earlier step whose answers are known to be good")


def probe_prompts(params: PromptParams, stage: Stage) -> Result:
    from diag.report import prompts as report
    from diag.serving.endpoint import opened
    from diag.serving.probing import probe
    from diag.verdict.prompts import load

    suite = load(near(params.suite, stage.folder))
    with ExitStack() as stack:
        endpoint = stack.enter_context(opened(_address(params, stage)))
        good = _answers(stage.results, params.reference) if params.reference is not None else None
        found = probe(endpoint, suite, reference=good, say=stage.say)
    verdict, code = report.verdict(found), report.exit_code(found)
    told = found.summary
    return Result(
        f"{verdict}: {told.rate.garbled} of {_count(told.rate.tried, 'answer')} garbled",
        {
            "verdict": verdict,
            "garbled": told.rate.garbled,
            "suspect": told.suspect,
            "answers": told.rate.tried,
            "rate": told.rate.garbled / told.rate.tried if told.rate.tried else 0.0,
            "leads": tuple(dict.fromkeys(lead.id for lead in found.leads if lead.state == "found")),
            "exit_code": code,
        },
        code,
        report.document(found),
    )


def _address(params: PromptParams, stage: Stage) -> str:
    server = params.server
    if server is None:
        return f"{stage.host.name}:{params.port}" if params.port else stage.host.name
    held = stage.servers.get(server)
    if held is None:
        raise UsageError(
            f"The server of step '{server}' is not up.", next=f"Ask it after '{server}' and before it is stopped."
        )
    return f"{stage.host.name}:{held.server.port}"


def _answers(results: Mapping[str, Result], step: str) -> Any:
    from diag.serving.earlier import lone_answers

    result = results.get(step)
    found = lone_answers(result.document) if result is not None and result.document is not None else {}
    if not found:
        raise UsageError(
            f"Step '{step}' has no answers that were asked for alone.", next="Give it a suite that asks `alone`."
        )
    return found


class ShowParams(Params):
    """As the arguments of `diag source`."""

    main = "place"
    place: str = Field(pattern=r"^[A-Za-z_]", description="MODULE, or MODULE:CLASS.METHOD")
    python: str | None = Field(default=None, description=_PYTHON)
    context: int = Field(default=0, ge=0, le=1000, description="lines around what is shown")
    grep: str | None = Field(default=None, description="only lines that match this regular expression")
    against: str | None = Field(default=None, description="RECORD, or another version: what differs from it")


def source_show(params: ShowParams, stage: Stage) -> Result:
    from diag.report import source as report
    from diag.source import targets, view

    where = view.place(f"{stage.host.name}:{params.place}")
    target = targets.Target(stage.host.name, "host", host=stage.host)
    seen = view.look(
        where,
        target,
        transport=stage.transport(),
        python=params.python,
        context=params.context,
        grep=params.grep,
        against=params.against,
        say=stage.say,
    )
    lines = sum(len(block) for block in seen.blocks)
    same = seen.against is not None and not seen.against.diff
    differs = "" if seen.against is None else f"; {'the same as' if same else 'differs from'} {seen.against.what}"
    return Result(
        f"{_count(lines, 'line')} of {seen.file.path} ({seen.file.integrity}){differs}",
        {"lines": lines, "integrity": seen.file.integrity, "same": same},
        0,
        report.view_document(seen),
        tuple(line for _, line in report.view_rows(seen)),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _suite(params: HostParams | PromptParams, folder: Path) -> Iterator[tuple[str, str]]:
    from diag.verdict.prompts import load

    yield from problems_of("suite", lambda: load(near(params.suite, folder)))


_EXIT = "0 healthy, 1 a fault, 3 cannot tell"
KINDS = (
    Kind(
        "probe.host",
        HostParams,
        "facts, environments, servers with their configuration, sources, known faults, a short prompt suite",
        {
            "healthy": "no fault, and everything could be told",
            "faults": "ids of what is wrong",
            "findings": "ids of everything that was found",
            "servers": "inference servers that run",
            "garbled": "how many of them garble",
            "exit_code": _EXIT,
        },
        probe_host,
        check=_suite,
    ),
    Kind(
        "probe.source",
        SourceParams,
        "the installed source against its wheel and against the catalogue of faults",
        {
            "faults": "ids of the faults that are present",
            "version": "of the package, empty where it is not known",
            "edited": "files that are not the wheel's",
            "pristine": "no file that was looked at is edited",
            "exit_code": _EXIT,
        },
        probe_source,
    ),
    Kind(
        "probe.kernels",
        KernelParams,
        "the installed attention kernel against plain torch, and with the offsets that its backend computes",
        {
            "verdict": "right, wrong or cannot_tell",
            "wrong_cases": "shapes in which the kernel itself is wrong",
            "wrong_steps": "verify steps that go wrong by what the backend tells it",
            "exit_code": _EXIT,
        },
        probe_kernels,
    ),
    Kind(
        "probe.prompts",
        PromptParams,
        "a suite of prompts to a server, every answer judged",
        {
            "verdict": "healthy, garbled, suspect or unknown",
            "garbled": "garbled answers",
            "suspect": "suspect answers",
            "answers": "answers that could be judged",
            "rate": "garbled of those, from 0 to 1",
            "leads": "ids of false leads that were found",
            "exit_code": _EXIT,
        },
        probe_prompts,
        refers={"server": "server.start", "reference": "probe.prompts"},
        check=_suite,
    ),
    Kind(
        "source.show",
        ShowParams,
        "the exact lines that run on the host",
        {
            "lines": "how many are shown",
            "integrity": "pristine, edited or unlisted, by the wheel's RECORD",
            "same": "with `against`: nothing differs",
        },
        source_show,
    ),
)
