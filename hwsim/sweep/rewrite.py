"""Rewrites of a chain, one rule after the other: each is kept only if the answer is the same and the time falls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwsim.api import resolve_machine, resolve_workload, run_all
from hwsim.errors import InputError
from hwsim.ops.chain import RULES
from hwsim.program.chain_workload import ChainWorkload
from hwsim.result import RunResult
from hwsim.units import ratio


@dataclass(frozen=True)
class Trial:
    """One rule that was tried on top of those that were kept before it."""

    rule: str
    kept: bool
    reason: str
    result: RunResult | None
    """The run with it; None where it changed nothing."""


@dataclass(frozen=True)
class Rewritten:
    """What a search for rewrites did."""

    before: RunResult
    after: RunResult
    trials: tuple[Trial, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that were kept."""
        return tuple(trial.rule for trial in self.trials if trial.kept)


def try_rewrites(
    machine: str | Path, workload: str | Path, parameters: Mapping[str, object], settings: Sequence[str] = ()
) -> Rewritten:
    """Every rule once, in order; the workload's own rewrites are put aside first."""
    computer = resolve_machine(machine, settings)
    work = resolve_workload(workload, parameters)
    if not isinstance(work, ChainWorkload):
        raise InputError(f"{work.name} is one operation; rewrites are for chains, such as resnet_block_plain")

    def run(rules: Sequence[str]) -> RunResult:
        schedule = work.schedule.model_copy(update={"rewrite": tuple(rules)})
        return run_all(computer, work.model_copy(update={"schedule": schedule})).result

    before = best = run(())
    kept: list[str] = []
    trials: list[Trial] = []
    for rule in RULES:
        made = run((*kept, rule))
        refused = next((note for note in made.warnings if note.startswith(f"{rule} ") and "left" not in note), "")
        if refused:
            trials.append(Trial(rule, False, refused.removeprefix(f"{rule} "), None))
        elif made.verified is False:
            trials.append(Trial(rule, False, "the answer is another one", made))
        elif made.time_s < best.time_s:
            trials.append(Trial(rule, True, f"{ratio(best.time_s / made.time_s)} as fast as before", made))
            kept.append(rule)
            best = made
        else:
            trials.append(Trial(rule, False, f"the time does not fall ({ratio(best.time_s / made.time_s)})", made))
    return Rewritten(before, best, tuple(trials))
