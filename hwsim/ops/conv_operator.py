"""A convolution as it runs: its statements in each algorithm, their loops, and the answer by other means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format, find_format
from hwsim.ops.conv_schedule import (
    EPSILON,
    OPTIONAL,
    After,
    ConvSchedule,
    block_size,
    conv_formulas,
    loop_order,
    make_epilogue,
    ordered,
)
from hwsim.ops.conv_transform import (
    Fourier,
    find_transform,
    transform_extents,
    transform_statements,
    transformed_products,
)
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.bind import Program, bind
from hwsim.program.contraction import ConvShape
from hwsim.program.kernel import MOST, Formula, Rounding, Setting
from hwsim.program.loop_kernel import LoopKernel, Names, OperatorKernel, OperatorRun, need_floats
from hwsim.program.loops import LoopOperation, LoopPlan, Operand, first_shared
from hwsim.program.operation import Operation, Operator
from hwsim.program.statement import all_statements, parse_statements
from hwsim.program.tiling import Group, LoopCuts, fit_plan, needs_floats

MOST_TILES = 2048
"""Around an epilogue that is done tile by tile, not more tiles than this are told apart."""


class Conv2d(Operator):
    """y = pool(epilogue(x * w)): images x, filters w, and a port for each operand of the epilogue."""

    name = "conv2d"

    def __init__(
        self,
        shape: ConvShape,
        schedule: ConvSchedule | None = None,
        epilogue: Sequence[str | After] = (),
        pool: int | None = None,
    ) -> None:
        self.shape, self.pool = shape, pool
        self.schedule: ConvSchedule = schedule or ConvSchedule()
        self.transform = find_transform(self.schedule.algorithm, shape)
        """Of tiles, where the algorithm has one."""
        self.after = make_epilogue(epilogue, self.schedule.layout.index("c"))
        if pool is not None and pool > min(shape.out):
            raise ShapeError(f"pool: squares of {pool} do not fit an output of {shape.out[0]}x{shape.out[1]}")
        if pool is not None and not self.followed:
            self._pool_way(1)
        self.shapes = self._shapes()
        maps = [self._map(number) for number in range(len(self.after) + 1)]
        made = [port for each in self.after if each.norm for port in each.ports]
        wide = [*maps, *made, "y", "sums", *(port for port in self.shapes if port not in ("x", "w"))]
        operation = Operation(
            "conv2d",
            "\n".join(self._plain()),
            dict.fromkeys(self.shapes, ()),
            {"y": ()},
            self._answer,
            schedule=ConvSchedule,
            formats=dict.fromkeys(wide, "sums"),
            positive=frozenset(each.norm[3] for each in self.after if each.norm),
            floats=False,
            extents=self._used(self._plain()),
            absorb=_absorbed,
            follow=_tables if isinstance(self.transform, Fourier) else None,
        )
        super().__init__(operation, self.shapes, None, self.schedule)
        if self.transform is not None:  # tiles at the edge of an image reach further beyond it than windows do
            halos = self.written(find_format("fp32"), 1)[0].halos
            self.inputs = tuple(replace(port, halo=halos.get(port.name, ())) for port in self.inputs)

    def make_kernel(self, run: OperatorRun, setting: Setting) -> OperatorKernel:
        from hwsim.ops.conv import FoldedConv  # which makes a convolution of this one

        return FoldedConv(self, run, setting) if self.schedule.fold else super().make_kernel(run, setting)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        if any(each.norm for each in self.after):
            need_floats("batch norm", kernel.fmt)
        if self.transform is not None:
            need_floats(f"algorithm={self.schedule.algorithm}", kernel.fmt)
        for each in self.after:
            if needs_floats(all_statements(parse_statements(f"t = {each.expression('x[i]', ('y[i]', 'z[i]'))}"))):
                need_floats(each.op, kernel.fmt)
        super().emit(kernel, names)

    def tolerance(self, rounding: Rounding) -> float:
        """Transforms make the errors of what they add up larger."""
        growth = 1.0 if self.transform is None else self.transform.growth
        return min(MOST, growth * super().tolerance(rounding))

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        found = conv_formulas(self.shape, self.schedule, setting, fmt, self.pool or 1)
        if self.transform is not None:
            products = transformed_products(self.transform, self.shape)
            said = Formula("products of tiles", "n·tiles·points·co·ci", products, "multiply-adds", "macs")
            found = (said, *(formula for formula in found if formula.compare != "macs"))
        # What the epilogue multiplies and adds is no product of the convolution.
        late = any(each.op in ("scale_shift", "scale_add", "add_scaled", "gelu") for each in self.after)
        return tuple(formula for formula in found if formula.compare != "macs" or not late)

    # Tensors and indices ----------------------------------------------------------------------------------------------

    @cached_property
    def extents(self) -> dict[str, int]:
        """All loops; images and groups only where there are several."""
        shape, side = self.shape, self.pool or 1
        several = {"n": shape.batch, "g": shape.groups}
        own = {
            "co": shape.co // shape.groups,
            "h": shape.out[0],
            "w": shape.out[1],
            "ci": shape.ci // shape.groups,
            "kh": shape.window[0],
            "kw": shape.window[1],
        }
        pooled = {"c": shape.co, "ph": shape.out[0] // side, "pw": shape.out[1] // side, "u": side, "v": side}
        return {i: e for i, e in several.items() if e > 1} | own | {"k": shape.depth, **pooled}

    @property
    def summed(self) -> tuple[str, ...]:
        """The loops of a sum, in the order in which the filters lie in memory."""
        return ("ci", "kh", "kw") if self.schedule.w_layout == "oihw" else ("kh", "kw", "ci")

    @cached_property
    def out_loops(self) -> tuple[str, ...]:
        """The loops over the output, as it lies in memory."""
        order = ("n", "g", "co", "h", "w") if self.schedule.layout == "nchw" else ("n", "h", "w", "g", "co")
        return tuple(index for index in order if index in self.extents)

    @property
    def default_order(self) -> tuple[str, ...]:
        """As the output lies in memory, then as the filters do; a loop that runs once is not the innermost one."""
        return (*self.out_loops, *sorted(self.summed, key=lambda index: self.extents[index] > 1))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Every input in memory."""
        shape, schedule = self.shape, self.schedule
        (h, w), (kh, kw) = shape.image, shape.window
        filters = {"o": shape.co, "i": shape.ci // shape.groups, "h": kh, "w": kw}
        found = {
            "x": ordered(schedule.layout, n=shape.batch, c=shape.ci, h=h, w=w),
            "w": tuple(filters[axis] for axis in schedule.w_layout),
        }
        if isinstance(self.transform, Fourier):
            found |= {name: table.shape for name, table in self.transform.tensors.items()}
        y = ordered(schedule.layout, n=shape.batch, c=shape.co, h=shape.out[0], w=shape.out[1])
        for each in self.after:
            for port in each.norm:
                found[port] = (shape.co,)
            for port, axes in () if each.norm else each.places:
                if list(axes) != sorted(set(axes)) or not all(0 <= axis < 4 for axis in axes) or not axes:
                    raise InputError(f"{port}: {axes} are not axes of {y} in ascending order")
                own = tuple(y[axis] for axis in axes)
                if found.setdefault(port, own) != own:
                    raise InputError(f"{port} has shape {found[port]} in one stage and {own} in another")
        return found

    @property
    def _places(self) -> dict[str, str]:
        """Positions along each axis."""
        shape = self.shape
        several = shape.groups > 1
        return {
            "n": "n" if shape.batch > 1 else "0",
            "g": "g" if several else "0",
            "out": f"{shape.co // shape.groups}*g+co" if several else "co",
            "in": f"{shape.ci // shape.groups}*g+ci" if several else "ci",
        }

    def _image(self, name: str, square: bool = False) -> str:
        """The images, or a tensor of the output's shape, at the loops of an output; `square` adds those of a pool."""
        at, (sh, sw), (ph, pw), (dh, dw) = self._places, self.shape.stride, self.shape.padding, self.shape.dilation
        if name != "x":
            positions = ordered(self.schedule.layout, n=at["n"], c=at["out"], h="h", w="w")
            return f"{name}[{','.join((*positions, *(('u', 'v') if square else ())))}]"
        side = self.pool or 1
        rows, columns = (f"{sh * side}*h+{sh}*u", f"{sw * side}*w+{sw}*v") if square else (f"{sh}*h", f"{sw}*w")
        rows, columns = f"{rows}+{dh}*kh-{ph}", f"{columns}+{dw}*kw-{pw}"
        return f"x[{','.join(ordered(self.schedule.layout, n=at['n'], c=at['in'], h=rows, w=columns))}]"

    def _filters(self, flat: bool = False) -> str:
        """With `flat`, one index runs through a whole filter."""
        out = self._places["out"]
        if flat:
            return f"w[k,{out}]" if self.schedule.w_layout == "hwio" else f"w[{out},k]"
        at = {"o": out, "i": "ci", "h": "kh", "w": "kw"}
        return f"w[{','.join(at[axis] for axis in self.schedule.w_layout)}]"

    def _matrix(self, name: str, channels: int, flat: bool) -> str:
        """The matrix of windows: along outputs where images are stored channel by channel, along channels otherwise."""
        extents, place, step = {**self.extents, "ci": channels}, [], 1
        for index in reversed(self.summed):
            place.append(f"{step}*{index}")
            step *= extents[index]
        k = "k" if flat else "+".join(reversed(place))
        n, g = self._places["n"], self._places["g"]
        positions = (n, g, k, "h", "w") if self.schedule.layout == "nchw" else (n, "h", "w", g, k)
        return f"{name}[{','.join(positions)}]"

    def _operands(self, each: After) -> list[str]:
        """What an operation reads beside the value."""
        at = ordered(self.schedule.layout, n=self._places["n"], c=self._places["out"], h="h", w="w")
        return [f"{port}[{','.join(at[axis] for axis in axes)}]" for port, axes in each.places]

    def _map(self, number: int) -> str:
        """What a pass leaves in memory for the next one: the sums, or what an operation has made of them."""
        return f"{self.after[number - 1].name}_{number}" if number else "conv"

    # Statements -------------------------------------------------------------------------------------------------------

    @property
    def followed(self) -> bool:
        """Whether what follows runs in passes of its own."""
        return bool(self.after or self.pool) and (not self.schedule.fused or self.transform is not None)

    @property
    def target(self) -> str:
        return self._map(0) if self.followed else "y"

    def _plain(self) -> list[str]:
        """What is computed, as it stands; tables of a Fourier transform are among what is given."""
        if isinstance(self.transform, Fourier):
            return self._transform_way()[0]
        if self.pool and not self.followed:
            return [*self._statistics(), *self._pooled()]
        value = self._image(self.target)
        main = f"conv: {value} += {self._image('x')} * {self._filters()}"
        return [*self._statistics(), main, *self._finish(value), *self._passes()]

    def _statistics(self) -> Iterator[str]:
        """Scale and shift of each batch norm."""
        for each in self.after:
            if each.norm:
                every = "co" if self.shape.groups == 1 else "c"
                gamma, beta, mean, var = (f"{port}[{every}]" for port in each.norm)
                scale, shift = (f"{port}[{every}]" for port in each.ports)
                yield f"scale: {scale} = {gamma} / sqrt({var} + {EPSILON})"
                yield f"shift: {shift} = {beta} - {mean} * {scale}"

    def _finish(self, value: str) -> list[str]:
        """The epilogue on a value where it stands."""
        fused = () if self.followed else self.after
        return [f"{value} = {each.expression(value, self._operands(each))}" for each in fused]

    def _pooled(self) -> list[str]:
        sums = self._image("sums", square=True)
        main = f"conv_pool: {sums} += {self._image('x', square=True)} * {self._filters()}"
        return [main, *self._finish(sums), f"{self._image('y')} max= {sums}"]

    def _passes(self) -> Iterator[str]:
        """Each operation of the epilogue reads what the one before has stored; then the pool."""
        if not self.followed:
            return
        for number, each in enumerate(self.after, 1):
            last = number == len(self.after) and self.pool is None
            value = each.expression(self._image(self._map(number - 1)), self._operands(each))
            yield f"{each.name}: {self._image('y' if last else self._map(number))} = {value}"
        if self.pool is not None:
            at = {"n": self._places["n"], "c": "c", "h": f"{self.pool}*ph+u", "w": f"{self.pool}*pw+v"}
            source = ",".join(at[axis] for axis in self.schedule.layout)
            target = ",".join({**at, "h": "ph", "w": "pw"}[axis] for axis in self.schedule.layout)
            yield f"max_pool: y[{target}] max= {self._map(len(self.after))}[{source}]"

    # How it runs ------------------------------------------------------------------------------------------------------

    def layout(self, lanes: int) -> LoopCuts:
        return self._way(find_format("fp32"), lanes)[1]

    def written(self, fmt: Format, lanes: int) -> tuple[Program, LoopCuts]:
        text, layout = self._way(fmt, lanes)
        shapes, depth = dict(self.shapes), self.shape.depth
        if any("w[k," in line or ",k]" in line for line in text):
            shapes["w"] = (depth, self.shape.co) if self.schedule.w_layout == "hwio" else (self.shape.co, depth)
        bound = bind(
            parse_statements("\n".join(text)),
            shapes=shapes,
            sizes=self._used(text),
            inputs=tuple(self.operation.inputs),
            outputs=("y",),
        )
        return bound, layout

    def _used(self, text: Sequence[str]) -> dict[str, int]:
        """How far the indices of a text run; with a fused pool, rows and columns are those of squares."""
        extents = self.extents
        if self.pool and not self.followed:
            extents = {**extents, "h": extents["ph"], "w": extents["pw"]}
        if self.transform is not None:
            extents = {**extents, **transform_extents(self.transform, self.shape)}
        lines = all_statements(parse_statements("\n".join(text)))
        named = " ".join(each.text for each in lines)
        return {index: extent for index, extent in extents.items() if _names_index(named, index)}

    def _way(self, fmt: Format, lanes: int) -> tuple[list[str], LoopCuts]:
        lanes = lanes if self.schedule.vector else 1
        if self.pool and not self.followed:
            return self._pool_way(lanes)
        if self.transform is not None:
            return self._transform_way()
        if self.schedule.algorithm == "implicit":
            return self._implicit_way(fmt, lanes)
        return self._sum_way(lanes, flat=self.schedule.algorithm == "im2col")

    def _sum_way(self, lanes: int, flat: bool) -> tuple[list[str], LoopCuts]:
        """Loops over the images themselves or, with `flat`, over a matrix of all windows that is written before."""
        inner = ("k",) if flat else self.summed
        order = loop_order(self.schedule, (*self.out_loops, "k") if flat else self.default_order)
        along = self.schedule.along or self._along(flat)
        plan = self._plan(order, lanes, along, self.schedule.tile)
        value, finished = self._image(self.target), self._completes(plan)
        main = f"{value} += {self._image('x')} * {self._filters()}"
        if flat:
            main = f"{value} += {self._matrix('windows', self.extents['ci'], flat=True)} * {self._filters(flat=True)}"
        body, tile = [f"{'gemm' if flat else 'conv'}: {main}", *self._finish(value)], dict(plan.tile)
        if len(body) > 1 and not finished:
            body[1] = f"epilogue: {body[1]}"
            around, tile = self._peeled(plan, inner)
            body = _tiled(around, body)
        copy = (
            [f"im2col: {self._matrix('windows', self.extents['ci'], flat=False)} = {self._image('x')}"] if flat else []
        )
        stages = {self.target: ("gemm" if flat else self._stage(), self._shared(plan))}
        if flat:
            stages["windows"] = ("im2col", first_shared(self.extents, [i for i in "nhw" if i in self.extents]))
        text = [*self._statistics(), *copy, *body, *self._passes()]
        return text, self._layout(stages, lanes, order, along, tile, self.schedule.unroll)

    def _transform_way(self) -> tuple[list[str], LoopCuts]:
        """Transforms, products of all points, transforms back: cores wait for each other between any two loops."""
        assert self.transform is not None
        at, layout = self._places, self.schedule.layout
        filters = {"o": at["out"], "i": "ci", "h": "{}", "w": "{}"}
        elements = {
            "x": f"x[{','.join(ordered(layout, n=at['n'], c=at['in'], h='{}', w='{}'))}]",
            "w": f"w[{','.join(filters[axis] for axis in self.schedule.w_layout)}]",
            "y": f"{self.target}[{','.join(ordered(layout, n=at['n'], c=at['out'], h='{}', w='{}'))}]",
        }
        body = transform_statements(self.transform, self.shape, {**at, **elements})
        text = [*self._statistics(), *body, *self._passes()]
        return text, LoopCuts(vector=self.schedule.vector, fuse=False, phases=True)

    def _pool_way(self, lanes: int) -> tuple[list[str], LoopCuts]:
        """h and w run over squares, u and v inside of a square; sums and maximum stay in registers."""
        schedule, side = self.schedule, self.pool or 1
        if schedule.algorithm != "direct":
            raise InputError(f"a fused pool needs algorithm: direct, found {schedule.algorithm}; or take fused: false")
        squares = {schedule.layout.index(axis) for axis in "hw"}
        whole = [each.name for each in self.after for _, axes in each.places if squares & set(axes)]
        if whole:
            raise InputError(
                f"epilogue: {', '.join(whole)} reads a tensor with rows or columns of the map that a fused pool never "
                "stores; take fused: false"
            )
        *outer, first, second, third = self.default_order
        order = loop_order(schedule, (*outer, "u", "v", first, second, third))
        unroll = {"u": side, "v": side, **schedule.unroll}
        along = schedule.along or self._along(flat=False)
        plan = self._plan(order, lanes, along, schedule.tile, unroll)
        inner = ("u", "v", *self.summed)
        if not self._completes(plan):
            raise InputError(
                f"schedule: a fused pool keeps its sums in registers, so the loops {', '.join(inner)} must be the "
                "innermost ones, without tiles; or take fused: false"
            )
        stages = {"y": (self._stage(), self._shared(plan))}
        return self._plain(), self._layout(stages, lanes, order, along, plan.tile, unroll)

    def _implicit_way(self, fmt: Format, lanes: int) -> tuple[list[str], LoopCuts]:
        """Block after block: its windows are copied, then multiplied by the filters; outputs collect over blocks."""
        schedule, extents = self.schedule, self.extents
        wrong = [index for index in schedule.tile if index not in ("co", "h", "w", "ci")]
        if wrong:
            raise InputError(f"schedule.tile: implicit is cut along co, h, w and ci, not along {', '.join(wrong)}")
        block = block_size(self.shape, schedule, fmt.element_bytes)
        whole = block["ci"] == extents["ci"]
        flat = whole or schedule.w_layout == "oihw"
        inner = ("k",) if flat else self.summed
        asked = loop_order(schedule, (*self.out_loops, "k"), also=("ci",))
        order = tuple(loop for index in asked for loop in (inner if index == "k" else (index,)))
        along = schedule.along or self._along(flat=True)
        along = "ci" if along == "k" and not flat else along
        plan = self._plan(order, lanes, along, {"h": block["h"], "w": block["w"]})
        tile = {"co": min(schedule.tile["co"], extents["co"])} if "co" in schedule.tile else {}
        finished = whole and self._completes(replace(plan, tile=tile))
        value = self._image(self.target)
        copy = f"copy: {self._matrix('block', block['ci'], flat=False)} = {self._image('x')}"
        main = f"gemm: {value} += {self._matrix('block', block['ci'], flat=flat)} * {self._filters(flat)}"
        after = self._finish(value)
        if after and not finished:
            after[0] = f"epilogue: {after[0]}"
        body = [copy, main] if whole else _tiled([("ci", block["ci"])], [copy, main])
        around = {"n": 1, "g": 1, "h": block["h"], "w": block["w"]}
        tiles = [(i, size) for i, size in around.items() if i in extents and (size < extents[i] or i == "h")]
        text = [*self._statistics(), *_tiled(tiles, [*body, *after]), *self._passes()]
        layout = self._layout(
            {"block": (self._stage(), self._block_share())}, lanes, order, along, tile, schedule.unroll, around
        )
        return text, layout

    def _layout(
        self,
        stages: Mapping[str, tuple[str, str]],
        lanes: int,
        order: Sequence[str],
        along: str,
        tile: Mapping[str, int],
        unroll: Mapping[str, int],
        block: Mapping[str, int] | None = None,
    ) -> LoopCuts:
        """Plans of the loops of sums and of the pool behind; other loops run as their results lie in memory."""
        found = {name: stage for name, stage in self._other_stages().items() if name not in stages} | dict(stages)

        def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan | None:
            if group.name == "max_pool":
                axis = "pw" if self.schedule.layout == "nchw" else "c"
                return fit_plan(tuple(extents), extents, as_operation(group, operands), along=axis, lanes=lanes)
            if group.name not in ("conv", "gemm", "conv_pool"):
                return None
            asked = {"h": block["h"], "w": block["w"]} if block else tile
            operation = as_operation(group, operands)
            made = fit_plan(order, extents, operation, tile=asked, unroll=unroll, along=along, lanes=lanes)
            return replace(made, tile=tile) if block else made

        return LoopCuts(vector=self.schedule.vector, plan=plan, stages=found)

    def _other_stages(self) -> dict[str, tuple[str, str]]:
        norms = {each.ports[0]: ("statistics", "") for each in self.after if each.norm}
        if not self.followed:
            return norms
        passes = {self._map(number): (each.name, "") for number, each in enumerate(self.after, 1)}
        if self.pool is None:
            passes["y"] = passes.pop(self._map(len(self.after)))
            return norms | passes
        order = ("n", "c", "ph", "pw") if self.schedule.layout == "nchw" else ("n", "ph", "pw", "c")
        share = first_shared(self.extents, [index for index in order if index in self.extents])
        return norms | passes | {"y": ("max_pool", share)}

    def _stage(self) -> str:
        """The convolution waits for scale and shift."""
        return "conv" if any(each.norm for each in self.after) else ""

    def _plan(
        self,
        order: Sequence[str],
        lanes: int,
        along: str,
        tile: Mapping[str, int],
        unroll: Mapping[str, int] | None = None,
    ) -> LoopPlan:
        """As far as it is known before there are tensors."""
        extents = self.extents
        if self.pool and not self.followed:
            extents = {**extents, "h": extents["ph"], "w": extents["pw"]}
        own = {index: extents[index] for index in order}
        asked = self.schedule.unroll if unroll is None else unroll
        return fit_plan(order, own, LoopOperation((), None), tile=tile, unroll=asked, along=along, lanes=lanes)

    def _completes(self, plan: LoopPlan) -> bool:
        output = Operand("", 0, 1, dict.fromkeys(self.out_loops, 1))
        return plan.completes(LoopOperation((), output))

    def _peeled(self, plan: LoopPlan, summed: Sequence[str]) -> tuple[list[tuple[str, int]], dict[str, int]]:
        """The outermost loops over the output, as loops over tiles with room for an epilogue, and the tiles left.

        Only those outside of all sums: what runs inside of a sum comes back to the same output later.
        """
        around: list[tuple[str, int]] = []
        tile, extents = dict(plan.tile), self.extents
        for index in [*(index for index in plan.order if index in plan.tile), *plan.order]:
            known = {name for name, _ in around}
            tiles = prod(-(-extents[name] // size) for name, size in around)
            if index in summed or index in known or tiles >= MOST_TILES:
                break
            around.append((index, tile.pop(index, plan.step(index))))
        return around, tile

    def _along(self, flat: bool) -> str:
        """The loop along which outputs are neighbours or, where filters have none there, the sum itself."""
        if self.schedule.layout == "nchw":
            return "w"
        if self.shape.groups > 1 and self.shape.co == self.shape.groups and not flat:
            return "g"
        return "co" if self.schedule.w_layout == "hwio" else "k" if flat else "ci"

    def _shared(self, plan: LoopPlan) -> str:
        """The loop that cores share: the one asked for, or the outermost over the output with something to share."""
        asked, extents = self.schedule.share, self.extents
        loops = sorted(plan.order, key=lambda index: index not in plan.tile)
        free = [index for index in loops if index in self.out_loops]
        if asked is None or asked in OPTIONAL:
            if self.pool and not self.followed:
                extents = {**extents, "h": extents["ph"], "w": extents["pw"]}
            first = [asked] if asked in free else []
            return str([*first, *(index for index in free if extents[index] > 1), *free][0])
        if asked not in free:
            raise InputError(
                f"schedule.share: {asked} runs {extents.get(asked, 1)} times over the same outputs, so cores would "
                f"have to add up each other's sums; share one of {', '.join(free)}"
            )
        return asked

    def _block_share(self) -> str:
        """Cores share whole blocks, so that none is copied twice."""
        asked, extents = self.schedule.share, self.extents
        free = [index for index in ("n", "g", "h", "w") if index in extents]
        if asked is not None and asked not in ("n", "g", "h", "w"):
            raise InputError(
                f"schedule.share: with implicit, cores share blocks of outputs: one of {', '.join(free)}, not {asked}"
            )
        first = [asked] if asked in free else []
        return str([*first, *(index for index in free if extents[index] > 1), *free][0])

    # By other means ---------------------------------------------------------------------------------------------------

    def _answer(self, **tensors: Array) -> Array:
        """Images by filters, then one operation after the other."""
        axes = [self.schedule.layout.index(axis) for axis in "nchw"]
        w = tensors["w"].transpose([self.schedule.w_layout.index(axis) for axis in "oihw"])
        y = convolved(tensors["x"].transpose(axes), w, self.shape).transpose(np.argsort(axes))
        for each in self.after:
            if each.norm:
                channel = tuple(slice(None) if axis == "c" else None for axis in self.schedule.layout)
                gamma, beta, mean, var = (tensors[port][channel] for port in each.norm)
                y = gamma * (y - mean) / np.sqrt(var + EPSILON) + beta
                continue
            own = [
                tensors[port][tuple(slice(None) if axis in axes else None for axis in range(4))]
                for port, axes in each.places
            ]
            y = POINTWISE[each.op].check(y, *own, *([] if each.value is None else [each.value]))
        return y if self.pool is None else _largest(y, self.pool, self.schedule.layout.index("h"))


def _tables(operator: Operator, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    assert isinstance(operator, Conv2d) and isinstance(operator.transform, Fourier)
    return operator.transform.tensors


def convolved(x: Array, w: Array, shape: ConvShape) -> Array:
    """Images [n, c, h, w] by filters [o, i, h, w]: one element of the filters after the other, over whole images."""
    (h, wide), (sh, sw), (dh, dw) = shape.out, shape.stride, shape.dilation
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in shape.padding)))
    x = x.reshape(shape.batch, shape.groups, -1, *x.shape[2:])
    w = w.reshape(shape.groups, -1, *w.shape[1:])
    y: Array = np.zeros((shape.batch, shape.groups, shape.co // shape.groups, h, wide))
    for u in range(shape.window[0]):
        for v in range(shape.window[1]):
            seen = x[..., u * dh : u * dh + (h - 1) * sh + 1 : sh, v * dw : v * dw + (wide - 1) * sw + 1 : sw]
            y += np.einsum("ngchw,goc->ngohw", seen, w[..., u, v], optimize=True)
    return y.reshape(shape.batch, shape.co, h, wide)


def _absorbed(operators: Sequence[Operator]) -> Operator | None:
    from hwsim.ops.conv import absorbed  # which makes convolutions of these

    return absorbed(operators)


def _tiled(around: Sequence[tuple[str, int]], lines: Sequence[str]) -> list[str]:
    """Statements inside of loops over tiles."""
    found = list(lines)
    for index, size in reversed(around):
        found = [f"for {index} by {size}:", *(f"  {line}" for line in found)]
    return found


def _names_index(text: str, index: str) -> bool:
    """Whether an index occurs in the positions of a text; a name before a bracket is a tensor."""
    return re.search(rf"\b{index}\b(?!\[)", text) is not None


def _largest(y: Array, side: int, axis: int) -> Array:
    """The largest of each square, square by square of whole rows."""
    for each in (axis, axis + 1):
        squares = y.shape[each] // side
        cut = np.take(y, range(squares * side), axis=each)
        y = cut.reshape(*cut.shape[:each], squares, side, *cut.shape[each + 1 :]).max(axis=each + 1)
    return y


def as_operation(group: Group, operands: Sequence[Operand]) -> LoopOperation:
    """What the loops of a group touch."""
    if not operands:
        return LoopOperation((), None)
    count = len(group.reads)
    return LoopOperation(tuple(operands[:count]), operands[-1], late=tuple(operands[count:-1]))
