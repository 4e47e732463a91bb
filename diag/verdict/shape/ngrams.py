"""What follows what: nats of each symbol of a sequence after those before it, by a table of n-grams with backoff.

A sequence that is not in the table costs what its end alone costs, and what its beginning adds for one that goes on and
is not there: Katz' backoff, as language models have it. The table is a hash table of 32 bits a sequence, of which the
first are its slot and the others tell it from what else falls there; a whole text is looked up at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

COST_STEPS, BACKOFF_STEPS, LOWEST_BACKOFF = 14.0, 10.0, -0.5
"""Of a nat: what costs are kept in, and what a sequence adds for one that goes on and is not there."""

MOST_NATS = 9.0
COST_BITS, BACKOFF_BITS = 7, 6
FREE = (1 << 32) - 1
"""An entry that no sequence has: what tells sequences apart has fewer bits than are left for it."""

_FIRST, _SECOND, _THIRD = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)

Costs = npt.NDArray[np.float32]
Symbols = npt.NDArray[np.uint32]


def hashes(symbols: Symbols, longest: int) -> Symbols:
    """[longest, symbols]: of one symbol that ends at each place, of two ... `longest`; meaningless at the first places,
    which have not so many before them."""
    found = np.empty((longest, len(symbols)), np.uint32)
    one = found[0]
    np.multiply(symbols, _FIRST, out=one)
    one ^= one >> np.uint32(15)
    for order in range(2, longest + 1):
        mixed = found[order - 1]
        np.multiply(found[order - 2], _SECOND, out=mixed)
        mixed[order - 1 :] += (one[: max(0, len(one) - order + 1)] ^ np.uint32(order * 0x01000193)) * _THIRD
        mixed ^= mixed >> np.uint32(13)
        mixed *= _FIRST
        mixed ^= mixed >> np.uint32(16)
    return found


@dataclass(frozen=True)
class Table:
    """entries [2 ** slot bits]: what tells a sequence from others, COST_BITS of its cost, BACKOFF_BITS of what it adds
    for one that goes on; FREE where there is none. single: nats of a symbol alone. longest: symbols of a sequence."""

    entries: Symbols
    single: Costs
    longest: int

    def costs(self, symbols: Symbols) -> Costs:
        """Nats, at most MOST_NATS, of each symbol."""
        telling_bits = 33 - len(self.entries).bit_length()
        found = hashes(symbols, self.longest)[1:]
        entries = self.entries.take(found >> np.uint32(telling_bits))
        there = (entries >> _SAID_BITS) == (found & np.uint32((1 << telling_bits) - 1))
        entries &= _SAID
        own, adds = _COSTS.take(entries), np.where(there, _BACKOFFS.take(entries), _NOTHING)
        cost = self.single[symbols]
        for row, begins in enumerate(range(1, self.longest)):
            if row:
                cost[begins:] += adds[row - 1, begins - 1 : -1]
            there[row, :begins] = False
            np.copyto(cost, own[row], where=there[row])
        return np.minimum(cost, np.float32(MOST_NATS))


_SAID_BITS = np.uint32(COST_BITS + BACKOFF_BITS)
_SAID = np.uint32((1 << (COST_BITS + BACKOFF_BITS)) - 1)
_EVERY = np.arange(1 << (COST_BITS + BACKOFF_BITS))
_COSTS = ((_EVERY >> BACKOFF_BITS) / COST_STEPS).astype(np.float32)
_BACKOFFS = ((_EVERY & ((1 << BACKOFF_BITS) - 1)) / BACKOFF_STEPS + LOWEST_BACKOFF).astype(np.float32)
_NOTHING = np.float32(0)
