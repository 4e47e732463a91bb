"""Which variable, or combination of variables, breaks the output?

    space       factors, their levels, derived factors, constraints: what can be set and what follows from it
    expr        the little language of derived factors and constraints
    hypotheses  what could be to blame, each a predicate over a configuration
    decision    the protocol: trials so far in, the next configuration or a verdict out
    bayesian    the search, from the parts in `bayes`, on the statistics of `engine`; refine: the rule behind a number
    over        which version, which commit
    plan        the YAML file a person writes
    trial       what one server start showed
    journal     one fsynced line a trial
    run         the shell: starts servers, asks prompts, feeds the search

For programs, `search` and `factors` (docs/api.md); they are imported when they are asked for, and numpy with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.bisect.api import factors, search
    from diag.bisect.decision import Verdict
    from diag.bisect.space import Space
    from diag.bisect.trial import Outcome, Trial

_WHERE = {
    "factors": "api",
    "search": "api",
    "Outcome": "trial",
    "Space": "space",
    "Trial": "trial",
    "Verdict": "decision",
}

__all__ = ["Outcome", "Space", "Trial", "Verdict", "factors", "search"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
