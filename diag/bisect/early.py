"""What a run need not be searched for: the two ends are one and the same to the server. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diag.bisect.decision import Verdict, same_config
from diag.bisect.space import Config, Space, level_text, same
from diag.bisect.trial import Outcome, Trial


def no_effect(space: Space, trials: Sequence[Trial]) -> dict[str, str]:
    """Factor -> how it is known that it does nothing: the server reports the same whatever was asked for."""
    told = [t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL)]
    dead = {}
    for factor in space.factors:
        asked = {repr(t.config[factor.name]): t.config[factor.name] for t in told}
        in_force = {repr(t.effective[factor.name]): t.effective[factor.name] for t in told}
        if len(asked) > 1 and len(in_force) == 1:
            (only,) = in_force.values()
            wanted = ", ".join(level_text(level) for level in asked.values())
            dead[factor.name] = f"asked for {wanted}, the server reports {level_text(only)} each time"
    return dead


def ends_alike(space: Space, trials: Sequence[Trial]) -> Verdict | None:
    """A verdict where no factor took effect at either end, so that there is nothing to tell apart."""
    good, bad = _first(trials, space.good), _first(trials, space.bad)
    if good is None or bad is None:
        return None
    suspects = [factor.name for factor in space.factors if factor.suspect]
    if not all(same(good.effective[name], bad.effective[name]) for name in suspects):
        return None
    why = "the server takes none of the factors: what it reports is the same at both ends"
    if good.outcome is bad.outcome:
        return Verdict("not_reproduced", why)
    return Verdict("unexplained", f"{why}, and yet trials {good.number} and {bad.number} differ")


def _first(trials: Sequence[Trial], config: Config) -> Trial | None:
    own = (t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL) and same_config(t.config, config))
    return next(own, None)
