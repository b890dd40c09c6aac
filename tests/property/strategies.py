"""Random nests and cache hierarchies, small enough that sets fill up and lines fight."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest


def cache(name, sets, ways, line, **more):
    return CacheSpec(kind="cache", name=name, size=f"{sets * ways * line} B", line=f"{line} B", ways=ways, **more)


@st.composite
def plain_hierarchies(draw):
    """Levels that the fast filters take: write-back, write-allocate, neither inclusive nor exclusive."""
    line = draw(st.sampled_from([16, 32, 64]))
    levels = []
    sets, ways = draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (3, 2), (4, 8), (1, 16), (2, 16)]))
    for number in range(draw(st.integers(1, 3))):
        policy = draw(st.sampled_from(["lru", "fifo", "random", "lru"]))
        levels.append(cache(f"l{number + 1}", sets, ways, line, replacement=policy))
        sets, ways = draw(st.sampled_from([(sets * 2, ways), (sets, ways * 2), (sets * 3, ways), (sets * 4, 8)]))
    return levels


@st.composite
def general_hierarchies(draw):
    """Levels with every option."""
    line = draw(st.sampled_from([16, 32, 64]))
    sector = draw(st.sampled_from([line, line // 2]))
    count = draw(st.integers(1, 3))
    levels = []
    sets, ways = draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (2, 4)]))
    for number in range(count):
        inclusion = draw(st.sampled_from(["none", "inclusive", "exclusive"])) if number else "none"
        through = inclusion != "exclusive" and draw(st.booleans())
        levels.append(
            cache(
                f"l{number + 1}", sets, ways, line, sector=f"{sector} B",
                replacement=draw(st.sampled_from(["lru", "fifo", "random", "plru", "srrip"])),
                write="through" if through else "back",
                write_allocate=inclusion == "exclusive" or draw(st.booleans()),
                inclusion=inclusion,
                index=draw(st.sampled_from(["modulo", "xor"])),
                prefetch={"kind": draw(st.sampled_from(["none", "none", "next_line", "stride"])),
                          "degree": draw(st.integers(1, 3)), "streams": draw(st.integers(1, 3))},
            )
        )  # fmt: skip
        sets, ways = draw(st.sampled_from([(sets * 2, ways), (sets, ways * 2), (sets * 4, ways)]))
    return levels


@st.composite
def nests(draw, most=4, regular=False):
    """A loop nest of up to three loops; `regular` ones are aligned and stay on disjoint tensors."""
    trips = tuple(draw(st.lists(st.integers(1, 7), min_size=0 if not regular else 1, max_size=3)))
    accesses = []
    for number in range(draw(st.integers(1, most))):
        depth = draw(st.integers(0, len(trips)))
        element = draw(st.sampled_from([4, 8]))
        step = st.sampled_from([0, 1, 2, 3, 8, 16, 17, 64, -1]).map(lambda s, e=element: s * e)
        if not regular:
            step = step | st.integers(-9, 70)
        base = 1 << 16
        if regular:
            base += number << 14
        else:
            base += draw(st.integers(0, 300))
        nbytes = element if regular else draw(st.sampled_from([1, 4, 8, 16, 30, 100]))
        accesses.append(
            Access(
                base,
                tuple(draw(step) for _ in range(depth)),
                nbytes,
                write=draw(st.booleans()),
                after=draw(st.booleans()),
            )
        )
        if draw(st.integers(0, 3)) == 0:
            # A store to the place that was just loaded, or right beside it: a pair for run compression, or nearly one.
            last = accesses[-1]
            accesses.append(replace(last, base=last.base + draw(st.sampled_from([0, 0, last.nbytes])), write=True))
    return Nest(trips, tuple(accesses))
