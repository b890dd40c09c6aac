"""Where the energy of a run went, in the groups that people ask for."""

from __future__ import annotations

from hwsim.energy import MEMORY
from hwsim.results.result import RunResult


def energy_split(result: RunResult) -> dict[str, float]:
    """Joules by cause, memory level by level; the largest first. Empty without energy prices."""
    shares: dict[str, float] = {}
    for cause, actions in (result.energy_by_cause or {}).items():
        for action, line in actions.items():
            group = action.partition(".")[0] if cause == MEMORY else cause
            shares[group] = shares.get(group, 0.0) + line["joules"]
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))
