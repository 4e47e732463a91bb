"""The registry: every kind of step, by the name that it has in a playbook."""

from __future__ import annotations

from diag.playbook.kind import Kind
from diag.playbook.steps import bisection, fixes, probes, servers, words

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*probes.KINDS, *fixes.KINDS, *servers.KINDS, *bisection.KINDS, *words.KINDS)
}
