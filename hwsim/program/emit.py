"""From the statements of a program to loops with operands, counts and math, added to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import product as combinations
from math import prod

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.datapath import Operand as Factor
from hwsim.numerics.datapath import accumulate
from hwsim.numerics.format import Array, BlockFormat, Format
from hwsim.numerics.quantize import ScaledFormat
from hwsim.program.bind import Program
from hwsim.program.evaluate import (
    Frame,
    Groups,
    Product,
    evaluate,
    find_product,
    gathered,
    multiply,
    reduce_value,
    run_recurrences,
    window,
)
from hwsim.program.expression import Affine, Apply, Element, Expr, IndexValue, Local, indices_of, mapped, walk
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Item, Loop, LoopPlan, Operand, Range, Ranges, TileLoop, TileRange, all_loops, gather
from hwsim.program.statement import Statement, TileBlock, all_statements
from hwsim.program.tensors import AxisStep
from hwsim.program.tiling import (
    AxisView,
    Group,
    GroupLine,
    LoopCuts,
    Place,
    Private,
    TileEdge,
    all_groups,
    count_registers,
    make_groups,
)
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView


class Emitter:
    """Adds the loops of one program to one kernel; `names` is the kernel's tensor behind each tensor of the program."""

    def __init__(
        self,
        kernel: LoopKernel,
        program: Program,
        names: Mapping[str, str],
        layout: LoopCuts,
        formats: Mapping[str, Format] | None = None,
        views: Mapping[str, AxisView] | None = None,
        over: Mapping[str, str] | None = None,
    ) -> None:
        """`over` are scratch tensors that take the memory of others where these have the same format."""
        self.kernel = kernel
        self.views = dict(views or {})
        self.program = program
        self.shapes = program.shapes
        self.names = dict(names)
        self.layout = layout
        self.formats = dict(formats or {})
        self.lines = make_groups(program, fuse=layout.fuse, completes=layout.completes(program))
        self.groups = all_groups(self.lines)
        self.tiled = dict(_tile_sizes(program, program.lines))
        self.live = _live(program, self.groups)
        self.flat = _is_flat(program) and all(
            kernel.tensor(names[name]).is_contiguous() for name in (*program.inputs, *program.outputs)
        )
        """Whether one loop runs over all elements, as all tensors lie in one piece and are read alike."""
        if self.flat:
            self.program = program = _flattened(program)
            self.lines = make_groups(program, fuse=layout.fuse, completes=layout.completes(program))
            self.groups = all_groups(self.lines)
        self._first_writer: dict[str, Group] = {}
        for group in self.groups:
            for each in (*group.body, *group.late):
                self._first_writer.setdefault(each.name, group)
        self._private: dict[str, Private] = {}
        self._tiles: dict[tuple[str, Place], Array] = {}
        self._sums: dict[str, Array] = {}
        self._locals: dict[str, dict[str, tuple[int, Size]]] = {}
        self._seen: dict[str, tuple[TensorView, Size, dict[int, AxisStep]]] = {}
        first = {each.name: each.target for each in reversed(program.statements) if isinstance(each.target, Element)}
        for name in self.names:
            if name in self.live and name not in (*program.inputs, *program.outputs):
                self._add_scratch(name, first[name], (over or {}).get(name, ""))

    def emit(self) -> None:
        """Add all loops, in phases: cores wait for each other where one needs what another has made."""
        if self.layout.stages:
            self._emit_stages()
            return
        if self.layout.phases:
            title = self.kernel.program[-1].name
            for line in self.lines:
                self.kernel.begin_phase(line.name if self.layout.titles and isinstance(line, Group) else title)
                self._add(self._items([line]), all_groups([line]))
            return
        phases = [[*self.groups]] if self.layout.together or len(self.lines) != len(self.groups) else self._phases()
        for groups in phases:
            if len(phases) > 1:
                self.kernel.begin_phase(groups[0].name)
            items = self._items(self.lines if len(phases) == 1 else groups)
            for index, size in reversed(list(self.layout.together.items())):
                items = (TileLoop(index, self.program.extents[index], size, items),)
            self._add(items, groups)

    def _add(self, items: Sequence[Item], groups: Sequence[Group]) -> None:
        for item in items:
            self.kernel.add(item)
        self.kernel.shared_index = self._shared_index(groups)

    def _emit_stages(self) -> None:
        stages = {self.names[name]: stage for name, stage in self.layout.stages.items() if name in self.names}
        for item in self._items(self.lines):
            first = next(iter(all_loops([item]))).operation.output
            name, share = stages.pop(first.tensor if first is not None else "", ("", ""))
            if name:
                self.kernel.begin_phase(name)
            self.kernel.add(item)
            if share:
                self.kernel.shared_index = share

    def _phases(self) -> list[list[Group]]:
        """Loops that cores can run through one after the other with a share of their own, and where they cannot."""
        phases: list[list[Group]] = []
        for group in self.groups:
            if phases and self._shareable([*phases[-1], group]):
                phases[-1].append(group)
            else:
                phases.append([group])
        return phases

    def _shareable(self, groups: Sequence[Group]) -> list[str]:
        """Indices that every loop has, none sums over, and along which all read only what they have made themselves."""
        summed = {index for group in groups for index in group.reduced}
        usable = [i for i in groups[-1].indices if all(i in each.indices for each in groups) and i not in summed]
        made = [e.target for group in groups for e in (*group.body, *group.late) if isinstance(e.target, Element)]
        for group in groups:
            for element in (*group.reads, *group.late_reads):
                for target in made:
                    if target.tensor == element.tensor:
                        usable = [i for i in usable if _axis(target, i) == _axis(element, i) is not None]
        return usable

    def _shared_index(self, groups: Sequence[Group]) -> str:
        """What cores share: the first index with enough iterations for all, or the longest."""
        usable = self._shareable(groups)
        chosen = [index for index in self.layout.share if index in usable]
        enough = [index for index in chosen or usable if self.program.extents[index] >= self.kernel.setting.cores]
        if enough or chosen:
            return (enough or chosen[-1:])[0]
        return max(usable, key=lambda index: self.program.extents[index]) if usable else ""

    def _items(
        self, lines: Sequence[GroupLine], around: tuple[TileBlock, ...] = (), known: Expr | None = None
    ) -> tuple[Item, ...]:
        found: list[Item] = []
        for line in lines:
            if isinstance(line, Group):
                found.append(self._loop(line if known is None else _simplified(line, known), around))
            else:
                found += self._tile_loops(*line, around)
        return tuple(found)

    # Tiles -----------------------------------------------------------------------------------------------------------

    def _tile_loops(
        self, block: TileBlock, body: tuple[GroupLine, ...], around: tuple[TileBlock, ...]
    ) -> Iterator[TileLoop]:
        """One loop over tiles or, with a condition, two: tiles where it always holds, and those at its edge."""
        extent, size = self.program.extents[block.index], self.program.size(block)
        around = (*around, block)
        if block.condition is None:
            yield TileLoop(block.index, extent, size, self._items(body, around))
            return
        edge = TileEdge(block.index, size, extent, block.condition)
        inside, across = (TileRange(frozenset(indices_of(edge.condition)), each) for each in (edge.inside, edge.across))
        yield TileLoop(block.index, extent, size, self._items(body, around, block.condition), inside)
        yield TileLoop(block.index, extent, size, self._items(body, around), across)

    def _begins_in(self, tensor: str, around: tuple[TileBlock, ...]) -> frozenset[str]:
        """Indices of the blocks in each tile of which a sum begins anew: nobody outside the block knows of it."""
        if tensor in self.program.outputs:
            return frozenset()
        return frozenset(block.index for block in around if self._is_inside(tensor, block))

    def _add_scratch(self, name: str, element: Element, over: str = "") -> None:
        """Memory for what is neither given nor asked for; inside a block of tiles, a tile's worth for each core."""
        blocks = [block for block in self._around(name) if self._is_inside(name, block)] if self.tiled else []
        sizes = {block.index: self.program.size(block) for block in blocks}
        fmt = self.formats.get(name)
        if not any(index in sizes for index in element.indices):
            if self.names[name] not in self.kernel.tensors:  # else it takes memory that an earlier one has left
                self.kernel.add_scratch(self.names[name], *self.shapes[name], fmt=fmt)
            return
        self.formats.setdefault(name, fmt or self.kernel.fmt)
        users = [set(group.indices) for group in self.groups if name in _touched(group)]
        if over in self._private and self.formats[over].name == self.formats[name].name:
            self._private[name] = replace(self._private[over], users=users)
            return
        reach = {index: sizes.get(index, self.program.extents[index]) for index in element.indices}
        shape = tuple(position.last(reach) + 1 for position in element.positions)
        view = self.kernel.add_private(self.names[name], *shape, fmt=fmt)
        self._private[name] = Private(view, element, shape, sizes, users)

    def _is_inside(self, tensor: str, block: TileBlock) -> bool:
        """Whether only a block uses a tensor."""
        inside = {id(each) for each in all_statements(block.body)}
        outside = [each for each in self.program.statements if id(each) not in inside]
        return not any(tensor in (each.name, *(e.tensor for e in each.reads)) for each in outside)

    def _around(self, name: str) -> tuple[TileBlock, ...]:
        """The blocks of tiles outside of which nobody knows of a tensor, outermost first."""
        found: list[TileBlock] = []
        lines: Sequence[object] = self.program.lines
        while True:
            users = [line for line in lines if name in _tensors_of(line)]
            if len(users) != 1 or not isinstance(users[0], TileBlock):
                return tuple(found)
            found.append(users[0])
            lines = users[0].body

    # Loops -----------------------------------------------------------------------------------------------------------

    def _loop(self, group: Group, around: tuple[TileBlock, ...]) -> Loop:
        extents = self.layout.extents(group, self.program)
        reads = [self.operand(element) for element in group.reads]
        late = [self.operand(e) for e in group.late_reads if not any(e.same(seen) for seen in group.reads)]
        stored = group.result.tensor in self.live and group.result.tensor not in self.layout.returned
        write = self.operand(group.result) if stored else None
        stores = [self.operand(element) for element in group.stores if element.tensor in self.live]
        operands = [*reads, *late, *stores, *([write] if write is not None else [])]
        plan = self._narrowed(group, self.layout.plan(group, extents, operands), operands)
        continues = self._continues(group)
        begins = self._begins_in(group.target.tensor, around)
        follows = self._follows(group)
        compute = self._compute(group, plan, extents, continues, begins, follows)
        if plan is not None:
            extents = {index: extents[index] for index in plan.order}
        tiled = {block.index for block in around} - begins
        resumed = any(follows.get(index, (index, 1))[0] in tiled for index in group.reduced)
        sums = Operand("", 0, 1, dict.fromkeys(group.target.indices, 1))
        needed = len(reads) + len(late) + 1 if plan is None else count_registers(plan, [*reads, sums])
        self.kernel.registers_needed = max(self.kernel.registers_needed, needed)
        return self.kernel.make_loop(
            group.name, extents, reads, write, group.body_cost, compute, plan=plan, vector=self.layout.vector,
            accumulates=group.accumulates, late=late, stores=stores, late_body=group.late_cost(extents),
            continues=True if continues else False if self.tiled and not resumed else None, follows=follows,
        )  # fmt: skip

    def _narrowed(self, group: Group, plan: LoopPlan | None, operands: Sequence[Operand]) -> LoopPlan | None:
        """The plan with fewer lanes where a vector holds numbers of a wider format than that of the tensors."""
        if plan is None or not self.layout.narrow or any(find_product(each, plan.order) for each in group.body):
            return plan
        widest = max((each.element_bytes for each in operands if plan.vector in each.strides), default=0)
        lanes = max(1, int(plan.lanes * self.kernel.fmt.element_bytes // widest)) if widest else plan.lanes
        return replace(plan, lanes=min(lanes, plan.lanes), vector=plan.vector if lanes > 1 else None)

    def _follows(self, group: Group) -> dict[str, tuple[str, int]]:
        """Indices that run over what a tile has left in scratch space, and so move with that tile."""
        found: dict[str, tuple[str, int]] = {}
        for element in (*group.reads, *group.late_reads):
            private = self._private.get(element.tensor)
            if private is not None:
                found |= dict(private.follows(element, self.program.extents))
        return found

    def _continues(self, group: Group) -> bool:
        """Whether the sum goes on from what an earlier statement has left."""
        return group.accumulates and self._first_writer[group.target.tensor].body != group.body

    def operand(self, element: Element) -> Operand:
        """An element as the loops see it: where it begins, and how far a step of each index moves it."""
        private = self._private.get(element.tensor)
        halo = self.program.halos.get(element.tensor)
        name = self.names[element.tensor]
        if private is not None or self._is_viewed(element):
            view = self.kernel.tensor(name) if private is None else private.view
            view = view if private is not None else self.views[element.tensor].of(view)
            base, steps = view.start, {axis: AxisStep(view.byte_stride(axis)) for axis in range(len(view.shape))}
        else:
            if element.tensor not in self._seen:
                found = self.kernel.steps(name, halo or (), self.program.shapes[element.tensor])
                self._seen[element.tensor] = (self.kernel.tensor(name), *found)
            view, base, steps = self._seen[element.tensor]
        strides, far = dict[str, Size](), dict[str, tuple[int, Size]]()
        table = None
        for axis, step in steps.items():
            position = element.positions[axis]
            base += (position.constant + (halo[axis] if halo else 0)) * step.stride
            for index, factor in position.factors:
                strides[index] = strides.get(index, 0) + factor * step.stride
            if step.block:
                assert position.is_plain, f"{element}: blocks are for tensors with one index along each axis"
                far[position.factors[0][0]] = (step.block, step.far)
            if position.lookup is not None:
                table = (position.lookup, step.stride)
        if private is not None:
            outer = {index: 0 for index in self.layout.together if index not in strides}
            local = private.local(element, self.program.extents)
            return Operand(view.name, base, view.element_bytes, {**outer, **strides}, local)
        if table is None:
            return Operand(view.name, base, view.element_bytes, strides, far)
        lookup, along = table
        if len(lookup.indices) != 1:
            raise InputError(f"{element}: a position is looked up by one index, not by {', '.join(lookup.indices)}")
        (index,) = lookup.indices
        moves = [(self.kernel.arrays[self.names[lookup.tensor]], along)]
        if strides.get(index):
            moves.append((np.arange(self.program.extents[index]), strides[index]))
        return Operand(view.name, base, view.element_bytes, {**strides, index: 0}, gather=gather(index, *moves))

    def _is_viewed(self, element: Element) -> bool:
        return element.tensor in self.views and not self.flat

    # Math ------------------------------------------------------------------------------------------------------------

    def _compute(
        self,
        group: Group,
        plan: LoopPlan | None,
        extents: Mapping[str, int],
        continues: bool,
        begins: frozenset[str],
        follows: Mapping[str, tuple[str, int]],
    ) -> Callable[[Ranges], None]:
        indices = tuple(extents)
        body = [(each, find_product(each, indices), self._goes_to_memory(each, group)) for each in group.body]
        late = [(each, None, self._goes_to_memory(each, group)) for each in group.late]
        product = next(found for each, found, _ in body if each is group.main)
        last = self.groups[-1] is group
        reduced = [(index, follows.get(index, (index, 1))[0] in begins) for index in group.reduced]

        def compute(ranges: Ranges) -> None:
            whole = {index: ranges[index] if anew else (0, extents[index]) for index, anew in reduced}
            frames = [
                Frame(indices, cut, partial(self._load, indices=indices, ranges=cut), self.kernel.fmt.computed)
                for cut in self._cuts(group, plan, ranges)
            ]
            if group.carried:
                self._go_on(group, frames[0], whole)
                return
            if len(frames) > 1 and self.layout.whole_sums:
                self._sum_up(group, product, frames, whole, continues)
                return
            for frame in frames:
                for each, found, stored in body:
                    self._run(each, found, stored, frame, whole, continues)
                if late and all(sum(frame.ranges[index]) == sum(whole[index]) for index in whole):
                    for each, found, stored in late:
                        self._run(each, found, stored, frame, whole, False)
            if last and self._private:
                self._forget(ranges)

        return compute

    def _go_on(self, group: Group, frame: Frame, whole: Ranges) -> None:
        """Recurrences over a range, from what is in memory where it is not the first."""
        (index,) = group.reduced
        targets = {each.name: each.target for each in group.body if isinstance(each.target, Element)}
        state: dict[str, Array] = {}
        if frame.ranges[index][0] != whole[index][0]:
            state = {name: frame.load(target) for name, target in targets.items()}
        run_recurrences(group.body, frame, index, state)
        for name, target in targets.items():
            self._store(target, state[name], frame)

    def _sum_up(
        self, group: Group, product: Product | None, frames: Sequence[Frame], whole: Ranges, continues: bool
    ) -> None:
        """A sum in pieces, which is kept in the format of sums until it is stored."""
        target, sums = group.target, self.kernel.find_sum_format()
        parts = [self._reduced(group.main, product, frame) for frame in frames]
        total = sums.store(np.zeros(parts[0].shape, parts[0].dtype))
        if continues or any(frames[0].ranges[index][0] != whole[index][0] for index in group.reduced):
            total = sums.store(frames[0].load(target))
        for part in parts:
            accumulate(total, part, sums)
        self._store(target, sums.load(total), frames[-1])

    def _cuts(self, group: Group, plan: LoopPlan | None, ranges: Ranges) -> Iterator[Ranges]:
        """A range, cut at the tiles of what is summed where a machine rounds its sums there."""
        at_tiles = self.kernel.setting.numbers.at_tiles and not group.late and not group.carried
        tile = plan.tile if plan is not None and at_tiles and group.accumulates else {}
        cut = [index for index in plan.order if index in tile and index in group.reduced] if plan is not None else []
        if not cut:
            yield ranges
            return
        pieces: list[list[tuple[str, Range]]] = []
        for index in cut:
            first, extent = ranges[index]
            starts = range(first, first + extent, tile[index])
            pieces.append([(index, (start, min(tile[index], first + extent - start))) for start in starts])
        for combination in combinations(*pieces):
            yield {**ranges, **dict(combination)}

    def _run(
        self,
        statement: Statement,
        product: Product | None,
        stored: bool,
        frame: Frame,
        whole: Ranges,
        continues: bool,
    ) -> None:
        """One statement over a range: its value stays in a register, and is `stored` where somebody reads it in
        memory."""
        target = statement.target
        if isinstance(target, Local):
            value = evaluate(statement.value, frame)
            # A register keeps its value, whatever goes to memory later.
            frame.registers[target.name] = value.copy() if isinstance(statement.value, Element) else value
            return
        if statement.accumulates:
            away = [index for index in whole if index not in target.indices]
            resumed = continues or any(frame.ranges[index][0] != whole[index][0] for index in away)
            if resumed and product is not None and self._goes_on(product, target):
                onto = self._memory(target, frame.indices, frame.ranges)
                value = multiply(product, frame.indices, frame.ranges, self._factor, self.kernel.dot, onto)
                self._store(target, value, frame)
                frame.registers[target.key] = value
                return
            value = self._reduced(statement, product, frame)
            if resumed or any(frame.ranges[index] != whole[index] for index in away):
                value = self._added(statement, target, value, frame, resumed, continues)
            elif stored:
                self._store(target, value, frame)
            frame.registers[target.key] = value
            return
        value = evaluate(statement.value, frame)
        frame.registers[target.key] = value
        if stored:
            self._store(target, value, frame)

    def _reduced(self, statement: Statement, product: Product | None, frame: Frame) -> Array:
        assert isinstance(statement.target, Element)
        if product is not None:
            return multiply(product, frame.indices, frame.ranges, self._factor, self.kernel.dot)
        return reduce_value(statement, evaluate(statement.value, frame), frame, statement.target.indices)

    def _goes_on(self, product: Product, target: Element) -> bool:
        """Whether the datapath itself goes on with a sum in memory, which holds what its accumulator does: it rounds on
        the way, or multiplies by scales."""
        kernel, names = self.kernel, self.names
        factors = {names.get(product.left.tensor, ""), names.get(product.right.tensor, "")}
        own = kernel.setting.numbers.asked() or factors & kernel.quantized.keys()
        return bool(own) and len(product.inner) == 1 and self._format(target.tensor) == kernel.find_sum_format()

    def _added(
        self, statement: Statement, target: Element, value: Array, frame: Frame, resumed: bool, continues: bool
    ) -> Array:
        """A part of a sum, added to what is in memory; the first part begins it."""
        fmt, numbers = self._format(target.tensor), self.kernel.setting.numbers
        in_memory = numbers.at_tiles or numbers.chunk or fmt.is_native or target.tensor in self._private
        if statement.sign == "+=" and not in_memory and not continues:
            return self._kept_outside(target, value, frame, not resumed)
        memory = self._memory(target, frame.indices, frame.ranges) if resumed else None
        if memory is None:
            self._store(target, value, frame)
        elif statement.sign == "+=":
            accumulate(memory, value, fmt)
        else:
            better = np.maximum if statement.sign == "max=" else np.minimum
            self._store(target, better(fmt.load(memory), value), frame)
        return fmt.load(memory if memory is not None else self._memory(target, frame.indices, frame.ranges))

    def _kept_outside(self, target: Element, value: Array, frame: Frame, first: bool) -> Array:
        """A part of a sum on a machine that keeps sums that are not whole outside of memory, and wide."""
        sums = self._sums.get(target.tensor)
        if sums is None:
            wide = self._format(target.tensor).computed
            sums = self._sums[target.tensor] = np.zeros(self.program.shapes[target.tensor], wide)
        here = window(sums, (0,) * sums.ndim, target, frame.indices, frame.ranges)
        if first:
            here[...] = value
        else:
            np.add(here, value, out=here, casting="unsafe")
        self._store(target, here, frame)
        return here

    def _goes_to_memory(self, statement: Statement, group: Group) -> bool:
        """Whether a value is stored: somebody reads it in memory, and no later statement of the pass stores it."""
        target = statement.target
        if isinstance(target, Local) or target.tensor not in self.live:
            return False
        every = (*group.body, *group.late)
        own = next(number for number, each in enumerate(every) if each is statement)
        return not any(each.target.same(target) for each in every[own + 1 :] if isinstance(each.target, Element))

    # Memory ----------------------------------------------------------------------------------------------------------

    def _format(self, tensor: str) -> Format:
        if tensor in self._private:
            return self.formats[tensor]
        return self.kernel.formats[self.names[tensor]]

    def _load(self, element: Element, indices: Sequence[str], ranges: Ranges) -> Array:
        return self._format(element.tensor).load(self._memory(element, indices, ranges))

    def _factor(self, element: Element, groups: Groups, ranges: Ranges) -> Factor:
        """One side of a product as a matrix: stored numbers, with their scales where these are kept apart."""
        order = [index for group in groups for index in group]
        shape = [prod(ranges[index][1] for index in group) for group in groups]
        name = self.names.get(element.tensor, "")
        if name in self.kernel.turned:
            return self._window(self.kernel.turned[name], element, order, ranges).reshape(shape)
        quantized = self.kernel.quantized.get(name)
        if quantized is None:
            return self._memory(element, order, ranges).reshape(shape)
        along = element.positions[quantized.axis].factors[0][0]
        axis = next(place for place, group in enumerate(groups) if along in group) - len(groups)

        def view(array: Array, first: int, count: int) -> Array:
            within = {**ranges, along: (first, count)}
            found = self._window(array, element, order, within)
            return found.reshape([prod(within[index][1] for index in group) for group in groups])

        return quantized.seen(view, *ranges[along], axis)

    def _window(self, array: Array, element: Element, order: Sequence[str], ranges: Ranges) -> Array:
        return window(array, (0,) * array.ndim, element, order, ranges)

    def _memory(self, element: Element, indices: Sequence[str], ranges: Ranges) -> Array:
        """Stored values over a range, with an axis for each index: a view, but for what is looked up."""
        if element.tensor in self._private:
            return self._tile(element, indices, ranges)
        name, halo = self.names[element.tensor], self.program.halos.get(element.tensor)
        array = self.kernel.padded(name, halo)[1] if halo else self.kernel.arrays[name]
        assert array is not None
        if self._is_viewed(element):
            array = self.views[element.tensor].values(array)
        array = array if halo else array.reshape(self.program.shapes[element.tensor])
        if any(position.lookup is not None for position in element.positions):
            return gathered(array, element, indices, ranges, lambda each: self._memory(each, indices, ranges))
        return window(array, halo or (0,) * array.ndim, element, indices, ranges)

    def _store(self, target: Element, value: Array, frame: Frame) -> None:
        fmt, private = self._format(target.tensor), self._private.get(target.tensor)
        if private is not None:
            key = (target.tensor, private.place_in(frame.ranges, self._sharing))
            if key not in self._tiles:
                self._tiles[key] = np.zeros(private.shape, fmt.held)
        shape = frame.shape(target.indices)
        if value.shape == shape and not isinstance(fmt, BlockFormat | ScaledFormat):
            self._memory(target, frame.indices, frame.ranges)[...] = fmt.store(value)
            return
        whole = np.broadcast_to(value, np.broadcast_shapes(value.shape, shape))
        away = tuple(axis for axis, index in enumerate(frame.indices) if index not in target.indices)
        left = [index for index in frame.indices if index in target.indices]
        seen = whole.squeeze(away).transpose([left.index(index) for index in target.indices])
        # Neighbours in memory share a scale in some formats, so that values are stored as they lie there.
        memory = self._memory(target, target.indices or frame.indices[:1], frame.ranges)
        memory[...] = fmt.store(seen.reshape(memory.shape))

    def _tile(self, element: Element, indices: Sequence[str], ranges: Ranges) -> Array:
        """Values of the tile that a range lies in: a view."""
        private = self._private[element.tensor]
        values = self._tiles[element.tensor, private.place_in(ranges, self._sharing)]
        kept = element.key
        if kept not in self._locals:
            self._locals[kept] = private.local(element, self.program.extents)
        local, own = self._locals[kept], dict(ranges)
        for index, (size, _) in local.items():
            own[index] = (ranges[index][0] % size, ranges[index][1])
        return window(values, (0,) * values.ndim, element, indices, own)

    @cached_property
    def _sharing(self) -> dict[str, str]:
        """The index that cores share while they use a tensor."""
        return {
            operand.tensor: phase.shared_index
            for phase in self.kernel.program
            for loop in all_loops(phase.items)
            for operand in loop.operation.operands
        }

    def _forget(self, ranges: Ranges) -> None:
        """A tile is done: what was kept for it goes."""
        for name, place in list(self._tiles):
            sizes = self._private[name].sizes
            if all(ranges[i][0] // sizes.get(i, 1) == first for i, first in place if i in ranges):
                del self._tiles[name, place]


def _simplified(group: Group, known: Expr) -> Group:
    """A group where a condition is known to hold: choices by it are made."""

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Apply) and part.function == "where" and part.arguments[0] == known:
            return mapped(part.arguments[1], change)
        return None

    def chosen(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(replace(each, value=mapped(each.value, change)) for each in statements)

    return Group(group.name, chosen(group.body), chosen(group.late))


def _axis(element: Element, index: str) -> int | None:
    """The axis along which an index moves an element, one by one; None where it does not."""
    for axis, position in enumerate(element.positions):
        if index in position.indices:
            return axis if position.is_plain else None
    return None


def _is_flat(program: Program) -> bool:
    """Whether every statement is element by element over tensors of one shape."""
    tiled = any(isinstance(line, TileBlock) for line in program.lines)
    return not tiled and not program.halos and _in_one_place(program.statements)


@lru_cache(maxsize=1024)
def _in_one_place(statements: tuple[Statement, ...]) -> bool:
    """Whether statements touch every tensor at the same plain positions, whose values they do not use."""
    places = {
        element.positions
        for each in statements
        for element in (*each.reads, *([each.target] if isinstance(each.target, Element) else []))
    }
    values = any(isinstance(part, IndexValue) for each in statements for part in walk(each.value))
    return len(places) == 1 and not values and all(position.is_plain for position in next(iter(places)))


def _flattened(program: Program) -> Program:
    """The same program over all elements in one row."""
    size = prod(program.extents.values())
    everywhere = (Affine((("e", 1),)),)

    def change(part: Expr) -> Expr | None:
        return replace(part, positions=everywhere) if isinstance(part, Element) else None

    def moved(target: Element | Local) -> Element | Local:
        return replace(target, positions=everywhere) if isinstance(target, Element) else target

    lines = tuple(
        replace(each, target=moved(each.target), value=mapped(each.value, change)) for each in program.statements
    )
    return replace(program, lines=lines, extents={"e": size}, shapes=dict.fromkeys(program.shapes, (size,)))


def _tile_sizes(program: Program, lines: Sequence[object]) -> Iterator[tuple[str, int]]:
    for line in lines:
        if isinstance(line, TileBlock):
            yield line.index, program.size(line)
            yield from _tile_sizes(program, line.body)


def _live(program: Program, groups: Sequence[Group]) -> set[str]:
    """Tensors that lie in memory: given, asked for, or read in other loops than those that make them."""
    found = {*program.inputs, *program.outputs}
    if len(groups) == 1:
        return found
    makers: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for each in (*group.body, *group.late):
            if isinstance(each.target, Element):
                makers.setdefault(each.name, set()).add(number)
    for number, group in enumerate(groups):
        used = {element.tensor for element in (*group.reads, *group.late_reads)}
        used |= {group.target.tensor} if group.accumulates else set()
        found |= {name for name in used if makers.get(name, set()) - {number}}
    return found


def _touched(group: Group) -> set[str]:
    """Every tensor that a group reads or makes."""
    made = {each.name for each in (*group.body, *group.late) if isinstance(each.target, Element)}
    return made | {element.tensor for element in (*group.reads, *group.late_reads)}


def _tensors_of(line: object) -> set[str]:
    """Every tensor that a statement, or a block of them, reads or makes."""
    if isinstance(line, TileBlock):
        return set[str]().union(*map(_tensors_of, line.body))
    assert isinstance(line, Statement)
    return {line.name, *(element.tensor for element in line.reads)}
