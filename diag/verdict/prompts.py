"""Prompt suites: what is asked of a server, and what a right answer must have. `probes/prompts/*.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from diag import bundle, yamlfile
from diag.errors import UsageError
from diag.verdict.patterns import pattern


class SuitePrompt(BaseModel):
    """text: sent as it is; user: put into the suite's template first. expect: a regular expression that a right
    answer contains, whatever the model; leave it out where only the comparison with a reference counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    text: str | None = None
    user: str | None = None
    expect: Annotated[str, AfterValidator(pattern)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> SuitePrompt:
        if (self.text is None) == (self.user is None):
            raise ValueError("exactly one of text and user is needed")
        return self


class Suite(BaseModel):
    """template: holds "{user}"; the default is ChatML, which SmolLM, Qwen and many others were trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = Field(alias="schema", ge=1, le=1)
    name: str
    title: str = ""
    max_new_tokens: int = Field(default=32, ge=1, le=4096)
    template: str = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    prompts: tuple[SuitePrompt, ...] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        if "{user}" not in self.template:
            raise ValueError("template must hold {user}")
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) < len(names):
            raise ValueError("two prompts have the same name")
        return self

    def rendered(self, prompt: SuitePrompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self.template.replace("{user}", prompt.user or "")


def load(name: str, beside: Path | None = None) -> Suite:
    """A suite by its bundled name ("quick") or by path; a relative path is taken from `beside`, a folder."""
    folder = bundle.folder("probes") / "prompts"
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        path = folder / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
            raise UsageError(f"There is no prompt suite '{name}'.", next=f"Known ones: {known}; or name a file.")
    else:
        path = Path(name).expanduser()
        if beside is not None and not path.is_absolute():
            path = beside / path
    return yamlfile.validate(yamlfile.read(path), Suite)
