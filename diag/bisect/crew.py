"""Several hosts: which of them can be believed, and which trials count. Pure.

Each host begins with a trial of the good configuration, its *control*: its texts are the reference for all that
host shows later. A host whose control does not pass while another's does is quarantined: what it shows says
something about the host, not about the factors.

Where a queue chooses the host, a control first would cost each node a start. There a host is in doubt as long as it has
shown nothing but failures: what passes on it is its control, and else one is made before anything is concluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from diag.bisect.decision import same_config
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial

DOUBTED_AFTER = 3
"""Failures and nothing else: then a control is worth a start, also before there is something to conclude."""


def controls(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> dict[str, Trial]:
    """Host -> its first answer about the good configuration, in the order of `hosts`; those that have one."""
    found: dict[str, Trial] = {}
    for t in trials:  # once through: it is asked for at each of many hosts' trials
        if t.host not in found and t.outcome is not Outcome.INFRA and same_config(t.config, good):
            found[t.host] = t
    return {host: found[host] for host in hosts if host in found}


def control(trials: Sequence[Trial], host: str, good: Config) -> Trial | None:
    """The host's first answer about the good configuration."""
    return controls(trials, (host,), good).get(host)


def sound(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> tuple[str, ...]:
    """Hosts whose control passed."""
    own = controls(trials, hosts, good)
    return tuple(host for host in own if _passed(own[host]))


def quarantined(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> dict[str, str]:
    """Host -> why, for hosts whose good configuration does not pass while that of others does."""
    own = controls(trials, hosts, good)
    shut = {host: t.reason for host, t in own.items() if not _passed(t)}
    return shut if len(shut) < len(own) else {}


def doubted(evidence: Sequence[Trial], good: Config) -> dict[str, int]:
    """Host -> how many failures, where it has shown nothing else and its good configuration was not tried."""
    failures = Counter(t.host for t in evidence if t.outcome is Outcome.FAIL)
    vouched = {t.host for t in evidence if _passed(t) or same_config(t.config, good)}
    return {host: many for host, many in failures.items() if host not in vouched}


def evidence(trials: Sequence[Trial], hosts: Sequence[str], good: Config) -> list[Trial]:
    """What the search may see: no trial that failed on our side, none of a host in quarantine."""
    shut = quarantined(trials, hosts, good) if len(hosts) > 1 else {}
    return [t for t in trials if t.outcome is not Outcome.INFRA and t.host not in shut]


def _passed(trial: Trial) -> bool:
    return trial.outcome is Outcome.PASS
