"""Documents of commands against their schemas in docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def document(name: str, text: str) -> dict[str, Any]:
    """What a command printed; fails where it is not as docs/schemas/NAME.json says."""
    told: dict[str, Any] = json.loads(text)
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    problems = [f"{error.json_path}: {error.message[:300]}" for error in Draft202012Validator(schema).iter_errors(told)]
    assert problems == []
    return told
