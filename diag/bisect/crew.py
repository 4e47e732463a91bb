"""Several hosts: which of them can be believed, and which trials count. Pure.

Each host begins with a trial of the good configuration, its *control*: its texts are the reference for all that
host shows later. A host whose control does not pass while another's does is quarantined: what it shows says
something about the host, not about the factors.
"""

from __future__ import annotations

from collections.abc import Sequence

from diag.bisect.decision import same_config
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial


def control(trials: Sequence[Trial], host: str, good: Config) -> Trial | None:
    """The host's first answer about the good configuration."""
    own = (t for t in trials if t.host == host and t.outcome is not Outcome.INFRA and same_config(t.config, good))
    return next(own, None)


def sound(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> tuple[str, ...]:
    """Hosts whose control passed."""
    controls = {host: control(trials, host, good) for host in hosts}
    return tuple(host for host, own in controls.items() if own is not None and own.outcome is Outcome.PASS)


def quarantined(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> dict[str, str]:
    """Host -> why, for hosts whose good configuration does not pass while that of others does."""
    if not sound(trials, hosts, good):
        return {}
    controls = {host: control(trials, host, good) for host in hosts}
    return {host: own.reason for host, own in controls.items() if own is not None and own.outcome is not Outcome.PASS}


def evidence(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> list[Trial]:
    """What the search may see: no trial that failed on our side, none of a host in quarantine."""
    shut = quarantined(trials, hosts, good) if len(hosts) > 1 else {}
    return [t for t in trials if t.outcome is not Outcome.INFRA and t.host not in shut]
