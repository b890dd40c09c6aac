"""Operations that a Python file of the user's own declares.

    # my_kernels.py
    import hwsim

    @hwsim.operation("X[m,n] -> Y[m,n]", "Y[i,j] = max(X[i,j], 0) * 0.5", m=64, n=64)
    def half_relu(X):
        return (X + abs(X)) / 4

``hwsim run course_cpu my_kernels.py:half_relu`` runs it. Sizes of the signature that are given as keywords are the
sizes of its
workload, with these defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from hwsim.errors import InputError
from hwsim.ops.formula import FormulaSchedule, formula_layout
from hwsim.program import operation as core
from hwsim.program.operation import OPERATIONS, Operation, StatementOperator
from hwsim.spec.base import Spec
from hwsim.spec.schedule import Extent


def operation(tensors: str, statements: str, **options: Any) -> Callable[[Callable[..., Any]], Operation]:
    """Declares an operation by its statements; the decorated function is its answer in float64, by other means.

    `tensors` is the signature, `X[m,n] W[n] -> Y[m,n]`. A keyword with the name of a size of the signature is its
    default; any
    other is a parameter that the statements may name. It is scheduled as a formula is: order, tile, unroll, vector,
    fused.
    """
    names = {name for shape in core.signature_of(tensors) for axis in shape for name in axis.split("|")}
    sizes = {name: options.pop(name) for name in sorted(names & set(options))}
    missing = sorted(name for name in names - set(sizes) if not name.isdigit())
    if missing:
        raise InputError(
            f"signature '{tensors}': give the sizes {', '.join(missing)} a default, such as {missing[0]}=64"
        )
    fields: dict[str, Any] = {name: (Extent, Field(size, description="An extent.")) for name, size in sizes.items()}
    model = create_model("OwnSizes", __base__=Spec, **fields)
    schedule = {"sizes": model, "schedule": FormulaSchedule, "layout": formula_layout}
    declare = core.operation(tensors, statements, **{**schedule, **options})

    def declare_with_loops(reference: Callable[..., Any]) -> Operation:
        made = declare(reference)
        made.workload.loops = tuple(StatementOperator(made, made.shapes(made.sizes())).program.extents)
        return made

    return declare_with_loops


@cache
def import_operations_of(file: Path, shown: str) -> dict[str, Operation]:
    """Runs a Python file, and gives the operations that it declares; errors of the file are told with their line."""
    if not file.is_file():
        raise InputError(f"there is no file {shown}")
    before = dict(OPERATIONS)
    spec = spec_from_file_location(f"hwsim_own_{file.stem}", file.resolve())
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        line = _line_of(error, file)
        raise InputError(f"{shown}:{line}: {type(error).__name__}: {error}") from error
    return {name: made for name, made in OPERATIONS.items() if before.get(name) is not made}


def _line_of(error: BaseException, file: Path) -> int:
    """The last line of the file that an error passed."""
    line = getattr(error, "lineno", 1) or 1
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return int(line)
