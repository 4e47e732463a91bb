"""Unknown rates. What a boot shows is x garbled of n requests:

    active   p_boot Bin(x | n, g) + (1 - p_boot) Bin(x | n, q)       the boot, not the request, decides
    idle     Bin(x | n, q)

theta = (p_boot, g, q) is integrated out on a grid. The grid's nodes are those of Gauss-Jacobi quadrature under Beta
priors: likelihoods are polynomials in each rate, so m nodes integrate 2 m - 1 trials exactly. With n = 1 (a boot is
just garbled or not) p_boot and g are one rate of active boots, alarms included, and the grid gives the closed form
betaln(a+f, b+p) - betaln(a, b).

Priors: active Beta(1, .5), mean 2/3; false alarms Beta(.5, 20), mean 2 %. A share of the weight, CERTAIN,
lies on faults that show every time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, roots_jacobi

from diag.bisect.engine.rows import Floats

ACTIVE = (1.0, 0.5)
IDLE = (0.5, 20.0)
SHARP_ACTIVE = (200.0, 0.4)
SHARP_IDLE = (0.4, 200.0)
CERTAIN = 0.1
"""Prior weight of rates that are exactly 0 and 1. More of it ends earlier and is wrong more often: with .6 (of 92
public reports 37 were intermittent) 96 % right in 12.8 trials, with .1 99 % in 14.6 (single, 30 %, 2 %)."""
NEVER = 1e-9
SHARE = (1.0, 1.0)
"""Of the requests in a garbled boot, how many garble: anything."""


_ONE = (np.array([1.0]), np.array([1.0]))


@dataclass(frozen=True, eq=False)
class Rates:
    """The grid, flattened. boot, garbled, alarms: (theta,); log_weight: prior, sums to 1. garbled None: boots are
    just garbled or not."""

    boot: Floats
    garbled: Floats | None
    alarms: Floats
    log_weight: Floats

    def logs(self, x: Floats, n: Floats) -> tuple[Floats, Floats]:
        """(trials, theta) log-likelihoods: (active, idle)."""
        x, n = x[:, None], n[:, None]
        choose = gammaln(n + 1) - gammaln(x + 1) - gammaln(n - x + 1)
        if self.garbled is None:  # one rate: how often an active boot is garbled
            plain: Floats = x * np.log(self.boot) + (n - x) * np.log1p(-self.boot)
            quiet: Floats = x * np.log(self.alarms) + (n - x) * np.log1p(-self.alarms)
            return plain, quiet
        shown = choose + x * np.log(self.garbled) + (n - x) * np.log1p(-self.garbled)
        idle: Floats = choose + x * np.log(self.alarms) + (n - x) * np.log1p(-self.alarms)
        active: Floats = np.logaddexp(np.log(self.boot) + shown, np.log1p(-self.boot) + idle)
        return active, idle


def constant() -> Rates:
    """A fault that shows every time, and never where it is not: one trial against a row is its end."""
    return Rates(np.array([1 - NEVER]), None, np.array([NEVER]), np.zeros(1))


def beta_nodes(a: float, b: float, count: int) -> tuple[Floats, Floats]:
    """Nodes in (0, 1) and weights that sum to 1, exact for polynomials of degree 2 count - 1 under Beta(a, b)."""
    t, weight = roots_jacobi(count, b - 1, a - 1)
    nodes: Floats = np.clip((t + 1) / 2, 1e-12, 1 - 1e-12)
    return nodes, weight / weight.sum()


@lru_cache(maxsize=32)
def bits(certain: float) -> Rates:
    """For boots that are just garbled or not. certain: prior weight of a fault that shows every time."""
    parts = []
    for share, active, idle, nodes in (
        (1 - certain, ACTIVE, IDLE, (14, 8)),
        (certain, SHARP_ACTIVE, SHARP_IDLE, (3, 3)),
    ):
        if share > 0:
            parts.append((share, beta_nodes(*active, nodes[0]), _ONE, beta_nodes(*idle, nodes[1])))
    return replace(_grid(parts), garbled=None)


@lru_cache(maxsize=32)
def counts(certain: float) -> Rates:
    """For boots of several requests. certain: prior weight of "every boot decides alike, and healthy ones are
    wholly healthy"."""
    parts = []
    for share, boot, idle, nodes in (
        (1 - certain, ACTIVE, IDLE, (6, 14, 6)),
        (certain, SHARP_ACTIVE, SHARP_IDLE, (2, 14, 2)),
    ):
        if share > 0:
            parts.append(
                (
                    share,
                    beta_nodes(*boot, nodes[0]),
                    beta_nodes(*SHARE, nodes[1]),
                    beta_nodes(*idle, nodes[2]),
                )
            )
    return _grid(parts)


def _grid(
    parts: list[tuple[float, tuple[Floats, Floats], tuple[Floats, Floats], tuple[Floats, Floats]]],
) -> Rates:
    axes: list[list[Floats]] = [[], [], [], []]
    for share, first, second, third in parts:
        nodes = np.meshgrid(first[0], second[0], third[0], indexing="ij")
        weights = np.meshgrid(first[1], second[1], third[1], indexing="ij")
        for axis, node in zip(axes, nodes):
            axis.append(node.ravel())
        axes[3].append(np.log(share) + np.log(weights[0] * weights[1] * weights[2]).ravel())
    a, b, c, d = (np.concatenate(axis) for axis in axes)
    return Rates(a, b, c, d)
