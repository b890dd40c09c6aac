"""The compiled walks against a plain-Python hierarchy, access by access in the order of `Nest.addresses`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory.counters import Topology
from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Hierarchy
from tests.oracle import Oracle
from tests.property.strategies import general_hierarchies, nests, plain_hierarchies

SEED = 7


def run_oracle(specs, program):
    oracle = Oracle(specs, Topology.build(specs).random_seeds(SEED))
    for nest in program:
        for address, nbytes, write in nest.addresses():
            oracle.access(address, nbytes, write)
    return oracle


def assert_equal(specs, hierarchy, oracle):
    for depth, counters in enumerate(hierarchy.counters().values()):
        found = {name: number for name, number in counters.to_dict().items() if number}
        expected = {name: number for name, number in oracle.levels[depth].counts.items() if number}
        assert found == expected, f"level {depth + 1} of {specs}"
    memory = hierarchy.dram.counters
    for name in ("reads", "writes", "bytes_read", "bytes_written"):
        assert getattr(memory, name) == oracle.memory.counts[name], name
    for depth, instance in enumerate(hierarchy.topology.instances):
        assert [set(lines) for lines in hierarchy.contents(instance.name)] == oracle.contents(depth)


@settings(max_examples=150, deadline=None)
@given(plain_hierarchies(), st.lists(nests(), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_the_fast_filters_equal_the_oracle(specs, program, compress, warp):
    hierarchy = Hierarchy(specs, seed=SEED, compress=compress, warp=warp, warp_from=0)
    for nest in program:
        hierarchy.replay(nest)
    assert hierarchy.model == "stream"
    assert_equal(specs, hierarchy, run_oracle(specs, program))


@settings(max_examples=300, deadline=None)
@given(general_hierarchies(), st.lists(nests(), min_size=1, max_size=3))
def test_the_general_model_equals_the_oracle(specs, program):
    hierarchy = Hierarchy(specs, seed=SEED)
    for nest in program:
        hierarchy.replay(nest)
    assert_equal(specs, hierarchy, run_oracle(specs, program))


@settings(max_examples=60, deadline=None)
@given(plain_hierarchies(), st.lists(nests(), min_size=1, max_size=2))
def test_the_general_model_equals_the_fast_filters_on_plain_hierarchies(specs, program):
    hierarchy = Hierarchy(specs, seed=SEED)
    general = CoupledCaches(Topology.build(specs), Dram.build(None), SEED)
    for nest in program:
        hierarchy.replay(nest)
        general.walk(nest, 0)
    assert (general.counters == hierarchy.caches.counters).all()
    assert (general.causes == hierarchy.caches.causes).all()
    assert (general.dram.counts == hierarchy.dram.counts).all()
