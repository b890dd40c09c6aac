"""Replacement policies: which line leaves a full set.

A policy says what happens to the value of a line (a column of `lines`, a row per way) or to the tree of its
set when the line is hit or put in (`note_use`), and which way of a full set is given up (`victim`). To add a
policy: give it a code and a line in both functions at the end; the contract test picks it up from POLICIES.
Everything is inlined into the walk.

A cache that gives nothing up (`size: inf`) keeps its lines in a hash table; both models share the hash.
"""

from __future__ import annotations

import numpy as np

from hwsim.jit import inlined

LRU, FIFO, RANDOM, PLRU, SRRIP = range(5)

POLICIES = {"fifo": FIFO, "lru": LRU, "plru": PLRU, "random": RANDOM, "srrip": SRRIP}

SRRIP_DISTANT = 3
"""Re-reference prediction of a line that may leave (2-bit SRRIP, Jaleel et al., ISCA 2010)."""

TAG, VALID, DIRTY, FRESH, VALUE = range(5)
"""Columns of `lines`: line number, sectors present and modified, prefetched and unused, policy's value."""


@inlined
def next_random(rng, instance):  # type: ignore[no-untyped-def]
    """xorshift64: small, fast, and the same on every machine."""
    x = rng[instance]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    rng[instance] = x
    return x


@inlined
def oldest(lines, base, ways):  # type: ignore[no-untyped-def]
    best = base
    for place in range(base + 1, base + ways):
        if lines[place, VALUE] < lines[best, VALUE]:
            best = place
    return best - base


@inlined
def plru_touch(trees, index, ways, way):  # type: ignore[no-untyped-def]
    """Make every node on the path to a way point to its other side."""
    node = np.int64(1)
    half = ways >> 1
    rest = way
    tree = trees[index]
    while half > 0:
        right = np.int64(rest >= half)
        tree = (tree | np.int64(1) << node) ^ (right << node)
        rest -= right * half
        node = (node << 1) | right
        half >>= 1
    trees[index] = tree


@inlined
def plru_victim(trees, index, ways):  # type: ignore[no-untyped-def]
    """Follow the nodes."""
    node = np.int64(1)
    way = np.int64(0)
    half = ways >> 1
    while half > 0:
        right = (trees[index] >> node) & 1
        way += right * half
        node = (node << 1) | right
        half >>= 1
    return way


@inlined
def srrip_victim(lines, base, ways):  # type: ignore[no-untyped-def]
    """The first way predicted distant; all age until there is one."""
    furthest = base
    for place in range(base + 1, base + ways):
        if lines[place, VALUE] > lines[furthest, VALUE]:
            furthest = place
    age = SRRIP_DISTANT - lines[furthest, VALUE]
    for place in range(base, base + ways):
        lines[place, VALUE] += age
    return furthest - base


@inlined
def note_use(policy, lines, trees, clock, base, tree, ways, place, new):  # type: ignore[no-untyped-def]
    """A line was hit, or put in (`new`)."""
    if policy == LRU or (policy == FIFO and new):
        lines[place, VALUE] = clock
    elif policy == PLRU:
        plru_touch(trees, tree, ways, place - base)
    elif policy == SRRIP:
        lines[place, VALUE] = SRRIP_DISTANT - 1 if new else 0


@inlined
def victim(policy, lines, trees, rng, instance, base, index, ways):  # type: ignore[no-untyped-def]
    """The way of a full set that is given up."""
    if policy == PLRU:
        chosen = plru_victim(trees, index, ways)
    elif policy == SRRIP:
        chosen = srrip_victim(lines, base, ways)
    elif policy == RANDOM:
        chosen = np.int64(next_random(rng, instance) % np.uint64(ways))
    else:
        chosen = oldest(lines, base, ways)
    return chosen


FIRST_HASH_SIZE = 1 << 12

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIDDLE = np.uint64(32)


@inlined
def hash_place(line, mask):  # type: ignore[no-untyped-def]
    """Where the search for a line begins in a table of `mask + 1` places.

    The middle bits of the product: its low bits would put all lines of a large power-of-two stride into a few places.
    """
    return ((line * _GOLDEN) >> _MIDDLE) & mask
