"""Prompt suites: what is asked of a server, and what a right answer must have. `probes/prompts/*.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from diag import bundle, yamlfile
from diag.errors import UsageError
from diag.verdict.patterns import pattern

Way = Literal["alone", "together", "chat", "again", "flushed", "cancel"]
"""How a suite is asked, in this order: each prompt alone; several at the same moment; through the chat path; alone once
more, when the prefix is in the cache; alone after the cache was flushed; alone after many requests were hung up on."""


class Fill(BaseModel):
    """Padding in the place of "{fill}": `line` `times` times, "{n}" in it counting from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    line: str
    times: int = Field(ge=1, le=20_000)

    def text(self) -> str:
        return "".join(self.line.replace("{n}", str(n)) for n in range(1, self.times + 1))


class SuitePrompt(BaseModel):
    """text: sent as it is; user: put into the suite's template first. expect: a regular expression that a right
    answer contains, whatever the model; leave it out where only the comparison with a reference counts. absent: one
    that it must not contain, such as another prompt's canary. copies: how often it is asked in one round together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    text: str | None = None
    user: str | None = None
    expect: Annotated[str, AfterValidator(pattern)] | None = None
    absent: Annotated[str, AfterValidator(pattern)] | None = None
    parses: Literal["json"] | None = None
    fill: Fill | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, le=4096)
    copies: int = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _one_of(self) -> SuitePrompt:
        if (self.text is None) == (self.user is None):
            raise ValueError("exactly one of text and user is needed")
        if (self.fill is not None) != ("{fill}" in (self.text or self.user or "")):
            raise ValueError("fill and {fill} go together")
        return self

    @property
    def asked(self) -> str:
        """Its own words, padded."""
        words = self.text if self.text is not None else self.user or ""
        return words if self.fill is None else words.replace("{fill}", self.fill.text())


class Suite(BaseModel):
    """template: holds "{user}"; the default is ChatML, which SmolLM, Qwen and many others were trained on. ways: how
    `diag probe prompts` asks it; sizes: of the groups that are asked together, empty: all prompts at once; rounds: how
    often all of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = Field(alias="schema", ge=1, le=1)
    name: str
    title: str = ""
    max_new_tokens: int = Field(default=32, ge=1, le=4096)
    template: str = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    ways: tuple[Way, ...] = Field(default=("alone", "together"), min_length=1)
    sizes: tuple[Annotated[int, Field(ge=1, le=256)], ...] = ()
    rounds: int = Field(default=1, ge=1, le=1000)
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
            return prompt.asked
        return self.template.replace("{user}", prompt.asked)

    def tokens(self, prompt: SuitePrompt) -> int:
        """New tokens that this prompt is given."""
        return prompt.max_new_tokens or self.max_new_tokens


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
