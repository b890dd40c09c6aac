"""What `tune` searches when nobody says what: the usual choices of each operation's schedule."""

from __future__ import annotations

from collections.abc import Mapping

from hwsim.api import resolve_machine, resolve_workload
from hwsim.errors import InputError
from hwsim.spec.parameters import parameter_keys

SPACES: Mapping[str, Mapping[str, str]] = {
    "matmul": {"tile": "8..128:x2", "v1": "1,2,4,6,8", "order": "ijk,ikj", "vector": "false,true"},
    "fused_add_mul": {"fused": "false,true", "vector": "false,true", "parallel": "none,rows"},
    "sum2d": {"order": "rows,columns", "vector": "false,true", "parallel": "none,rows"},
}


def usual_space(machine: str, workload: str, given: Mapping[str, object]) -> dict[str, object]:
    """The axes of a search: those given or, where all given ones have a single value, the usual ones as well."""
    spec = resolve_workload(workload, {})
    space = SPACES.get(spec.op)
    if space is None:
        keys = ", ".join(name for name, key in parameter_keys(spec).items() if key.path[0] == "schedule")
        raise InputError(
            f"{spec.name}: say what to search, such as {next(iter(keys.split(', ')), 'n')}=…; "
            f"its schedule has: {keys or 'nothing to choose'}"
        )
    simd = getattr(resolve_machine(machine).compute[0], "simd", None)
    axes = {name: values for name, values in space.items() if name not in given and (name != "vector" or simd)}
    return {**given, **axes}
