"""Attention of a query or a few over many keys: heads that share keys form one tile, and keys are split among blocks.

The few queries are padded to a tile, so a step costs what it costs for many. Where tiles alone do not fill the GPU, the
library cuts the keys into parts by a rule of its own, and a second kernel joins what the parts found.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from hwsim.targets.gpu.agent import BlockGrid, Portion, queue_grid
from hwsim.targets.gpu.attention import (
    all_bytes,
    block_start,
    join_parts,
    keys_bytes,
    own_bytes,
    parts_of_keys,
    play_attention,
    replay_heads,
    step_cycles,
)
from hwsim.targets.gpu.device import FUSED, START, ClosedForm, Device, KernelCost, element_bytes
from hwsim.targets.gpu.replay import whole_bytes
from hwsim.targets.gpu.spec import AttentionKernelSpec

if TYPE_CHECKING:
    from hwsim.ops.attention_shape import AttentionShape

MOST_SEQUENCES = 992
"""Sequences of a batch up to which the library plans its blocks, each of which then walks over them to find its work:
31 for each of 32 warps (FlashAttention-3, hopper/flash_api.cpp)."""


def decode(
    device: Device,
    shape: AttentionShape,
    precision: str,
    spec: AttentionKernelSpec,
    split: bool = True,
    warm: bool = False,
) -> KernelCost:
    """The library's kernel, and where it splits the keys what joins the parts; `warm` keys lie in the L2."""
    each_head = ceil(shape.queries * shape.heads // shape.kv_heads / spec.queries)
    tiles = shape.batch * shape.kv_heads * each_head
    steps = ceil(shape.keys / spec.keys)
    wanted = split and steps >= spec.split_steps
    parts = parts_of_keys(tiles, device.count * spec.resident, steps) if wanted else 1
    each = ceil(steps / parts)
    blocks, streams = tiles * parts, shape.batch * shape.kv_heads * parts
    missed = replay_heads(
        [1.0] * each_head,
        streams,
        1,
        keys_bytes(shape, precision) / streams,
        own_bytes(shape, precision) / blocks,
        each,
        device.count * spec.resident,
        device.kept_bytes,
    )
    cycles = each * step_cycles(device, spec, shape.d, precision)
    far = 0.0 if warm else missed.total
    joining = parts * spec.join_wait if parts > 1 else 0.0
    walked = shape.batch * spec.sequence_wait if shape.batch <= MOST_SEQUENCES else 0.0
    search = walked + (joining if spec.joins_itself else 0.0)
    grids = [_grid(device, shape, precision, spec, blocks, cycles, search, far)]
    moved = own_bytes(shape, precision) if warm else all_bytes(shape, precision)
    alone = ceil(blocks / device.count) * cycles + block_start(device, spec) + search
    seconds = max(alone, block_start(device, spec) + moved / _rate(device, spec)) / device.clock_hz
    if parts > 1 and not spec.joins_itself:
        grid, cycles = join_parts(device, shape, spec, parts)
        grids.append(grid)
        seconds += cycles / device.clock_hz
    scores = tiles * steps * spec.queries * spec.keys
    closed = ClosedForm(seconds, moved)
    return play_attention(device, shape, precision, spec, tuple(grids), scores, closed, blocks, missed.walked)


def _grid(
    device: Device, shape: AttentionShape, precision: str, spec: AttentionKernelSpec, blocks: int, cycles: float,
    search: float, far_bytes: float,
) -> BlockGrid:  # fmt: skip
    """Equal blocks, SM by SM one after the other: of a block's start, those beside it hide all but their share. What
    they search for and join at their ends, `search` cycles, is seen once. Nothing is loaded before the first have
    started.

    Pages of a cache of keys come from all over memory, as tiles do, where no copy engine fetches whole ones.
    """
    resident = min(spec.resident, ceil(blocks / device.count))
    start = block_start(device, spec)
    tile_bytes = spec.keys * shape.d * 2 * element_bytes(precision)
    first = min(blocks, device.count)
    counts = [first, blocks - first] if blocks > first else [first]
    own = own_bytes(shape, precision) / 2
    queries, results = (whole_bytes(own * count / blocks for count in counts) for _ in range(2))
    near = whole_bytes(max(far_bytes, keys_bytes(shape, precision)) * count / blocks for count in counts)
    far = whole_bytes(far_bytes * count / blocks for count in counts)
    reach = min(device.sm_rate, resident * 2 * tile_bytes / max(1.0, device.memory_latency))
    portions = [
        Portion(
            count=count,
            blocks=count,
            before={} if number else {START: start},
            work=cycles,
            wait=cycles + (start / resident if number else search),
            l2_bytes=near[number] + queries[number],
            dram_bytes=far[number] + queries[number],
            write_bytes=results[number],
            reach=reach,
        )
        for number, count in enumerate(counts)
    ]
    return queue_grid(device, portions, 1, _rate(device, spec), FUSED)


def _rate(device: Device, spec: AttentionKernelSpec) -> float:
    """Bytes per cycle at which keys come from DRAM."""
    return device.stream_rate if spec.streams_keys else device.tile_rate
