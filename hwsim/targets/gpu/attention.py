"""Attention over many queries (prefill), fused in one kernel. Decoding, a query or a few, is in decode.py.

A fused block keeps a tile of queries and goes over the keys step by step: two matrix products and a softmax each.
With a causal mask, blocks differ in length; kernels differ in which they hand out first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from hwsim.errors import InputError
from hwsim.targets.gpu.agent import BlockGrid, Portion, play_kernel, queue_grid, reduce_grid
from hwsim.targets.gpu.device import (
    FUSED,
    Activity,
    ClosedForm,
    Device,
    KernelCost,
    element_bytes,
    moved_bytes,
)
from hwsim.targets.gpu.replay import Missed, Turn, replay_turns, whole_bytes
from hwsim.targets.gpu.spec import AttentionKernelSpec

if TYPE_CHECKING:
    from hwsim.ops.attention_shape import AttentionShape


@dataclass(frozen=True)
class EqualBlocks:
    """So many blocks that take equally long."""

    count: int
    cycles: float


def makespan(groups: Iterable[EqualBlocks], slots: int) -> float:
    """Cycles until the last block ends, when groups are handed out in the given order."""
    times, counts = [0.0], [slots]
    for group in groups:
        left = group.count
        while left:
            if len(times) == 1 and left >= slots:
                times[0] += group.cycles * (left // slots)
                left %= slots
                continue
            taken = min(counts[0], left)
            _put(times, counts, times[0] + group.cycles, taken)
            counts[0] -= taken
            left -= taken
            if not counts[0]:
                del times[0], counts[0]
    return times[-1]


def _put(times: list[float], counts: list[int], time: float, count: int) -> None:
    """Slots that become free at a time join those that do so already."""
    place = bisect_left(times, time)
    if place < len(times) and times[place] == time:
        counts[place] += count
    else:
        times.insert(place, time)
        counts.insert(place, count)


DECODE = "flash_decode"
"""The library's kernel that splits keys among blocks."""
VECTOR_OPERATIONS = {False: 4, True: 6}
"""Operations on the lanes for each score: scale and shift, maximum, sum, conversion; in a backward pass, which needs no
maximum and no sum, its gradient and a second conversion as well."""
PRODUCTS = {False: 2, True: 5}
"""Matrix products of a step; a backward pass makes the scores again."""
MOST_LENGTHS = 96
"""Different lengths of blocks that are played one by one."""
FULL = 0.8
"""Share of the slots that tiles fill from which on keys are not split (FlashAttention-2, num_splits_heuristic)."""
GOOD = 0.85
"""Of the best use of the slots that any number of parts gives: the smallest number that reaches it is taken (there)."""
MOST_PARTS = 128
SUM_BYTES = 4
"""Parts are exchanged in 32 bits."""


@dataclass(frozen=True)
class _Work:
    """Blocks of a fused kernel by length, with what they do in all."""

    lengths: tuple[tuple[int, float], ...]
    """So many blocks of so many steps each, in the order in which they are handed out."""
    step: float
    """Cycles of a step of a block alone on its SM."""
    rows: int
    keys: int

    @property
    def blocks(self) -> int:
        return sum(count for count, _ in self.lengths)

    @property
    def steps(self) -> float:
        return sum(count * steps for count, steps in self.lengths)


def find_kernel(device: Device, name: str, head_dim: int) -> AttentionKernelSpec:
    """The library's kernel of a name that serves a head size."""
    kernels = [kernel for kernel in device.sm.library.attention if kernel.name == name]
    if not kernels:
        known = sorted({kernel.name for kernel in device.sm.library.attention})
        raise InputError(f"{device.machine.name} has no attention kernel '{name}'; it has {', '.join(known) or 'none'}")
    fitting = [kernel for kernel in kernels if kernel.head_dim >= head_dim]
    if not fitting:
        largest = max(kernel.head_dim for kernel in kernels)
        raise InputError(f"{name} on {device.machine.name} serves heads of up to {largest}, found {head_dim}")
    return min(fitting, key=lambda kernel: kernel.head_dim)


def parts_of_keys(tiles: int, slots: int, steps: int) -> int:
    """Into how many parts the library cuts the keys: the fewest that use its slots nearly as well as any number does.

    Numbers that leave the longest part as long as one part less would are not looked at.
    """
    if tiles >= FULL * slots:
        return 1
    use = {}
    for parts in range(1, min(MOST_PARTS, slots, steps) + 1):
        if parts == 1 or ceil(steps / parts) != ceil(steps / (parts - 1)):
            rounds = tiles * parts / slots
            use[parts] = rounds / ceil(rounds)
    limit = GOOD * max(use.values())
    return min(parts for parts, share in use.items() if share >= limit)


def join_parts(
    device: Device, shape: AttentionShape, kernel: AttentionKernelSpec, parts: int
) -> tuple[BlockGrid, float]:
    """The kernel that joins what blocks found in parts of the keys, and its cycles by closed form."""
    joined = 2 * parts * shape.batch * shape.heads * shape.queries * shape.d * SUM_BYTES
    waits = (0.0 if kernel.joins_early else block_start(device, kernel)) + parts * kernel.join_wait
    return reduce_grid(device, waits, joined, 0.0, 0.0), waits + joined / device.l2_rate


def fused(
    device: Device, shape: AttentionShape, precision: str, spec: AttentionKernelSpec, warm: bool = False,
    backward: bool = False,
) -> KernelCost:  # fmt: skip
    """One kernel for all of attention; scores never leave the SM. `warm` keys lie in the L2.

    In a `backward` pass blocks keep keys and step over queries, in tiles of the same size: as many steps, with five
    products each.
    """
    packed = shape.repeat if spec.packs_heads else 1
    tiles = ceil(shape.queries * packed / spec.queries)
    step = step_cycles(device, spec, shape.d, precision, backward)
    visible = [_visible(shape, spec.queries / packed, tile) for tile in reversed(range(tiles))]
    counts = [ceil(keys / spec.keys) for keys in visible]
    streams = shape.batch * shape.heads // packed
    parts = 1
    if spec.splits_prompts and counts[0] >= spec.split_steps:
        parts = parts_of_keys(streams * tiles, device.count * spec.resident, counts[0])
    split = [ceil(count / parts) for count in counts]
    blocks = [(streams, sum(counts))] if spec.whole_heads else _handed_out(split, streams * parts, device.count, spec)
    work = _Work(_merged(blocks), step, spec.queries, spec.keys)
    missed = replay_heads(
        [keys / shape.keys for keys in visible],
        streams,
        shape.repeat // packed,
        keys_bytes(shape, precision) / (shape.batch * shape.kv_heads),
        own_bytes(shape, precision) / (streams * tiles),
        ceil(shape.keys / spec.keys),
        device.count * spec.resident,
        device.kept_bytes,
        whole=spec.whole_heads,
    )
    closed = _closed_bytes(device, shape, precision, tiles, shape.repeat // packed, device.count * spec.resident)
    if warm:
        missed, closed = Missed((0.0,)), own_bytes(shape, precision)
    return _cost(device, shape, precision, spec, work, missed, closed, parts, PRODUCTS[backward])


def all_bytes(shape: AttentionShape, precision: str) -> float:
    """Queries, keys, values and results."""
    rows = 2 * shape.heads * shape.queries + 2 * shape.kv_heads * shape.keys
    return shape.batch * shape.d * element_bytes(precision) * rows


def keys_bytes(shape: AttentionShape, precision: str) -> float:
    """Keys and values."""
    return 2 * shape.kv_heads * shape.batch * shape.keys * shape.d * element_bytes(precision)


def own_bytes(shape: AttentionShape, precision: str) -> float:
    """Queries and results."""
    return all_bytes(shape, precision) - keys_bytes(shape, precision)


def _closed_bytes(device: Device, shape: AttentionShape, precision: str, tiles: int, sharing: int, slots: int) -> float:
    """Keys once, or once for every tile of queries where those that are used at once exceed the L2."""
    keys = keys_bytes(shape, precision)
    at_once = max(1.0, slots / tiles) * keys / (shape.kv_heads * shape.batch)
    again = sharing * tiles if min(keys, at_once) > device.kept_bytes else 1
    return own_bytes(shape, precision) + again * keys


def step_cycles(
    device: Device, kernel: AttentionKernelSpec, head_dim: int, precision: str, backward: bool = False
) -> float:
    """Cycles of one step of a block alone on its SM: its products, and what of the softmax they do not hide."""
    scores = kernel.queries * kernel.keys
    products = PRODUCTS[backward] * scores * head_dim / (device.fma_rate(precision, "tensor") * kernel.math_share)
    vector = scores * (1 / device.sm.special + VECTOR_OPERATIONS[backward] / device.fma_rate("fp32", "lanes"))
    return products + kernel.softmax_share * vector + kernel.step_latency


def _visible(shape: AttentionShape, queries: float, tile: int) -> int:
    """Keys that the last query of a tile of so many may see."""
    if not shape.causal:
        return shape.keys
    last = min(shape.queries, ceil((tile + 1) * queries))
    return max(1, min(shape.keys, last + shape.keys - shape.queries))


def _handed_out(
    counts: Sequence[int], streams: int, slots: int, kernel: AttentionKernelSpec
) -> list[tuple[int, float]]:
    """Blocks in the order in which they start, from their lengths, the longest first.

    All heads may begin with their longest blocks. Where each begins with its shortest, the heads that run at once end
    with their longest: of those that come last two rounds are laid out, which decide when the kernel ends.
    """
    if kernel.longest_first or counts[0] == counts[-1]:
        return [(streams, count) for count in counts]
    together = min(streams, ceil(slots / len(counts)))
    last: list[tuple[int, float]] = [
        (together, count) for _ in range(min(2, streams // together)) for count in reversed(counts)
    ]
    earlier = streams * len(counts) - sum(each for each, _ in last)
    return [(earlier, sum(counts) / len(counts)), *last] if earlier else last


def _merged(blocks: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Blocks of equal length become one entry; of very many lengths, neighbours are taken as their mean."""
    joined: list[tuple[int, float]] = []
    together = ceil(len(blocks) / MOST_LENGTHS)
    for first in range(0, len(blocks), together):
        group = blocks[first : first + together]
        count = sum(each for each, _ in group)
        steps = sum(each * length for each, length in group) / count
        if joined and joined[-1][1] == steps:
            joined[-1] = joined[-1][0] + count, steps
        else:
            joined.append((count, steps))
    return tuple(joined)


def block_start(device: Device, kernel: AttentionKernelSpec) -> float:
    """Cycles of a block before its first and after its last step."""
    return float(kernel.block_start + device.drain("tensor", special=True))


def _grid(
    device: Device, shape: AttentionShape, precision: str, kernel: AttentionKernelSpec, work: _Work, missed: Missed
) -> BlockGrid:
    """Every block takes as long as its steps. Those that share an SM share its units, which is as if they followed each
    other; each hides the starts of the others."""
    resident = min(kernel.resident, ceil(work.blocks / device.count))
    start = block_start(device, kernel) / resident
    size = element_bytes(precision)
    tile_bytes = work.keys * shape.d * 2 * size
    own = own_bytes(shape, precision)
    counts = [count for count, _ in work.lengths]
    keys = [count * steps for count, steps in work.lengths]
    queries = whole_bytes(own / 2 * count / work.blocks for count in counts)
    results = whole_bytes(own / 2 * count / work.blocks for count in counts)
    far = whole_bytes(missed.total * amount / work.steps for amount in keys)
    near = whole_bytes(max(1.0, missed.total / (work.steps * tile_bytes)) * amount * tile_bytes for amount in keys)
    portions = [
        Portion(
            count=count,
            blocks=count,
            work=steps * work.step,
            wait=steps * work.step + start,
            l2_bytes=near[number] + queries[number],
            dram_bytes=far[number] + queries[number],
            write_bytes=results[number],
            reach=min(device.sm_rate, resident * 2 * tile_bytes / max(1.0, device.memory_latency)),
        )
        for number, (count, steps) in enumerate(work.lengths)
    ]
    return queue_grid(device, portions, 1, unit=FUSED)


def _closed(
    device: Device, shape: AttentionShape, precision: str, kernel: AttentionKernelSpec, work: _Work, moved: float
) -> float:
    """Cycles by the longest of what blocks do one after the other, all traffic from the L2, and that from DRAM."""
    resident = min(kernel.resident, ceil(work.blocks / device.count))
    tile_bytes = work.keys * shape.d * 2 * element_bytes(precision)
    groups = [
        EqualBlocks(count, steps * work.step + block_start(device, kernel) / resident) for count, steps in work.lengths
    ]
    busy = min(work.blocks, device.count)
    reach = busy * min(device.sm_rate, resident * 2 * tile_bytes / max(1.0, device.memory_latency))
    return max(
        makespan(groups, device.count),
        work.steps * tile_bytes / min(device.l2_rate, reach),
        moved / min(device.tile_rate, reach),
    )


def _cost(
    device: Device,
    shape: AttentionShape,
    precision: str,
    kernel: AttentionKernelSpec,
    work: _Work,
    missed: Missed,
    closed_bytes: float,
    parts: int,
    products: int,
) -> KernelCost:
    grids = [_grid(device, shape, precision, kernel, work, missed)]
    cycles = _closed(device, shape, precision, kernel, work, closed_bytes)
    if parts > 1:
        grid, more = join_parts(device, shape, kernel, parts)
        grids.append(grid)
        cycles += more
    closed = ClosedForm(cycles / device.clock_hz, closed_bytes)
    scores = work.steps * work.rows * work.keys
    return play_attention(
        device, shape, precision, kernel, tuple(grids), scores, closed, work.blocks, missed.walked, products
    )


def play_attention(
    device: Device, shape: AttentionShape, precision: str, kernel: AttentionKernelSpec, grids: tuple[BlockGrid, ...],
    scores: float, closed: ClosedForm, blocks: int, walked: float, products: int = 2,
) -> KernelCost:  # fmt: skip
    """Kernels that are laid out, played one after the other."""
    return play_kernel(
        device,
        f"attention {kernel.name} {precision} {kernel.queries} queries x {kernel.keys} keys",
        grids,
        Activity(products * scores * shape.d, "tensor", precision, moved_bytes(grids), scores),
        closed,
        blocks,
        kernel.resident,
        walked,
        tile=(kernel.queries, kernel.keys),
    )


def replay_heads(
    shares: Sequence[float], streams: int, sharing: int, keys_bytes: float, passing: float, steps: int, at_once: int,
    capacity: float, *, whole: bool = False,
) -> Missed:  # fmt: skip
    """Keys and values of fused attention: the query tiles of a head run one after the other, then the next head.

    `shares` is the part of its keys that each query tile of a head sees, the largest first; `sharing` heads have the
    same keys, of `keys_bytes`; each tile reads its queries and writes its results, `passing` bytes that nobody else
    needs. A turn walks its heads as deep as the block that sees most. With `whole` heads one block takes all tiles of a
    head.
    """
    tiles = len(shares)

    def turn(number: int) -> Turn:
        if whole:
            group, tile = divmod(number, tiles)
            first, last = group * at_once, min((group + 1) * at_once, streams)
            deepest = shares[tile]
            heads = range(first // sharing, (last - 1) // sharing + 1)
        else:
            first, last = number * at_once, min((number + 1) * at_once, streams * tiles)
            heads = range(first // tiles // sharing, (last - 1) // tiles // sharing + 1)
            deepest = shares[first % tiles] if last <= (first // tiles + 1) * tiles else shares[0]
        return Turn(tuple(heads), (last - first) * passing, deepest)

    turns = ceil(streams / at_once) * tiles if whole else ceil(streams * tiles / at_once)
    return replay_turns(turns, turn, lambda _: keys_bytes, steps, capacity)
