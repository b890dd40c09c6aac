"""Words of the field as the screens use them, with what they mean here: `hwsim explain TERM`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Term:
    """One word or phrase."""

    name: str
    meaning: str
    also: tuple[str, ...] = ()
    """Other words for it, among them the heads of columns."""
    see: tuple[str, ...] = ()
    """Terms that belong to it."""
    lesson: str = ""
    """The lesson that shows it."""


def _read(text: str) -> Iterator[Term]:
    """Terms of a text: a line with the name, other words, what to see and the lesson, all of it going on after a `+`;
    below it, indented, the meaning."""
    for block in re.split(r"\n(?![ +])", text.strip("\n")):
        head, _, meaning = block.replace("\n+ ", " ").partition("\n")
        name, *rest = head.split(" | ")
        said = dict(part.split(" ", 1) for part in rest)
        also, see = (tuple(said.get(key, "").split("; ")) if key in said else () for key in ("also", "see"))
        yield Term(name, " ".join(meaning.split()), also, see, said.get("lesson", ""))


_TEXT = """
throughput | also tokens per second; tokens of prompt per second; inputs per second; tokens/s | see knee
  Work done in a second: tokens made, tokens of prompt read, inputs classified. A larger batch raises it as long as the
  weights, which all of the batch share, are what the time goes into; then each answer is slower.
price of an action | also energy prices; prices; dram energy; energy of an operation; picojoule | lesson energy
  Energy of one multiply-add, one instruction or one access, with its source. At 45 nm (Horowitz, ISSCC 2014) an
  addition in fp32 takes 0.9 pJ, a multiplication 3.7 pJ, 32 bits from a small cache some 5 pJ, from DRAM 640 pJ and
  more. hwsim show MACHINE --resolved lists those of a machine, hwsim explain those of a run.
window | also reorder window; reorder buffer; core.window | see mshrs; dependency chain
  Instructions that a core looks at beyond the oldest one that is not done: misses and chains that lie within it
  overlap. One instruction: the core works in order.
amdahl's law | also amdahl; speed-up over cores | see speed-up | lesson parallel
  What is not shared among cores limits the speed-up: with a share s that runs on one core, n cores are at most 1 / (s +
  (1 - s)/n) times as fast.
winograd | also winograd convolution; fft convolution; fast convolution; cook-toom; algorithm=winograd; algorithm=fft
+ | see im2col
  A convolution with fewer products: tiles of images and filters are transformed, multiplied point by point and
  transformed back. 2x2 outputs of a 3x3 filter take 16 products instead of 36; errors grow with the tile.
time to first token | also ttft; first token | see time per output token; continuous batching
  From the arrival of a request to its first token: the wait for a place in the batch, and the prompt.
time per output token | also tpot; inter-token latency; time for each token | see time to first token
  Mean time between the tokens of a request after the first: a step of the batch, and its share of the prompts of
  others.
continuous batching | also token budget; chunked prefill | see time to first token; time per output token
  Requests join and leave the batch at every step instead of waiting for the longest one.
knee | also knee of the load | see time per output token
  The load from which more users no longer bring more tokens per second, and only wait longer.
all-reduce | also all_reduce; allreduce; ring; tree; collective | see bus bandwidth; exposed communication
  Every device has numbers of its own and gets the sums over all devices. A ring moves 2 (n - 1)/n of the bytes through
  each device in 2 (n - 1) steps; a tree needs fewer steps and more bytes; a switch that adds needs one.
bus bandwidth | also busbw | see all-reduce
  The bytes that an ideal algorithm has to move through each device, over the time: 2 (n - 1)/n of them for an
  all-reduce. It can be held against the bandwidth of a port whatever the number of devices.
exposed communication | also exposed talk; talk; overlap of communication | see all-reduce; bubble
  Time in which devices exchange data and nothing else runs beside it.
bubble | also pipeline bubble | see exposed communication
  Time in which the stages of a pipeline wait for each other: (stages - 1) of (microbatches + stages - 1) steps.
serving kernels | also eager kernels; kernels=serving; kernels=eager
  The kernels of an engine that serves: fused attention, norms and activations fused with what is beside them, graphs
  that are launched as one. `eager` ones are those of a framework that runs operation by operation.
time | also time in all; latency of a run; longest part; sum of all parts | see cycles; bound
  Seconds that the simulated machine takes, from the first cycle to the last result in memory.
error bar | also bar; ?; high end of its bar; low end of its bar; time, high end of its bar; time, low end of its bar;
+ energy, high end of its bar; energy, low end of its bar; power, high end of its bar; power, low end of its bar
  The range in which a time or an energy is expected to lie, from how far the model was off on measurements that it was
  not fitted on; a question mark where nothing was ever compared. Of the rows of a family of kernels those of the same
  machine count first, and of these the ones of the same decade of simulated time (1 to 10 µs, 10 to 100 µs), so that a
  bar changes where a sweep passes from one decade to the next. A machine or a decade of few rows is drawn towards the
  others.
cycles | also values in the run
  Ticks of the clock of the compute units. Time is cycles over clock frequency.
bound | also bound by; bottleneck; longest part | see stall; roofline | lesson roofline
  The part of the machine that decides how long a run takes: with a faster one of these the run would be faster, with a
  faster anything else it would not.
stall | also waits for; waiting; wait | see bound; dependency chain; latency
  Cycles in which a unit could work and does not, because it waits for something: operands from memory, the result of
  the operation before, a port. The table 'why' names what it waits for.
busy | also at work
  Cycles in which a unit works. Busy and waiting cycles of a unit add up to all its cycles.
share | also of the time; of that; of
  A part over the whole, in percent.
dependency chain | also chain; waits in a dependency chain | see latency; register tile
  Operations of which each needs the result of the one before, as the additions of one sum. They take latency after
  latency, however many units there are; several sums at a time fill the gaps.
latency | also step latency; first column; than the level before; than the first; waits for operands of a step; waits
+ for the first column of a command; latency of dram; latency of l2 | see bandwidth; dependency chain | lesson hierarchy
  Time from the start of one operation or transfer to its result.
bandwidth | also bandwidth of dram; bandwidth of l2; bandwidth of inputs; bandwidth of weights; bandwidth of outputs;
+ dram→l2; l2→l1; waits for dram → l2; waits for l2 → l1; dram; l2; inputs; outputs; weights; write; waits for results
+ to leave; writes results; waits for finished sums to leave; waits for room for outputs; waits for a scratchpad to
+ deliver; waits for the buffer to deliver | see latency; roofline | lesson roofline
  Bytes that a link moves in a second, once it is moving.
overlap | also bounds | see double buffering | lesson overlap
  Parts of a run at the same time: the next tile comes in while one is worked on. With full overlap a run takes its
  longest part, with none the sum of all parts.
double buffering | also buffers; stages | see overlap | lesson overlap
  Two buffers for one operand: one is filled while the other is used.
issue | also instruction issue; issues other instructions; issue width
  A core starts a few instructions in each cycle; what is left when its units are not the limit.
instruction | also instructions; other instructions | see SIMD; control | lesson simd
  One command to a core: a load, a store, an arithmetic operation on one number or on a vector.
load port | also store port; waits for a load port; waits for a store port; port
  A core can start only so many loads, or stores, in a cycle.
loop start | also starts innermost loops
  A few cycles at the start of each innermost loop, before it runs at full speed.
short run | also waits for short runs of lines; short runs | see prefetch
  Neighbouring lines from behind the second cache that end within a page: a prefetcher finds out about them when most
  have passed, so the core waits for them.
spawn | also starts the cores; waits for other cores; starting cores; starting and gathering cores; barrier | lesson
+ parallel
  Starting other cores for a parallel loop, and gathering them at its end.
operations | also FLOP; OP; flops; work
  Additions, multiplications and other arithmetic. A multiply-add counts two. FLOP where numbers have a floating point,
  OP where they are whole.
speed | also FLOP/s; OP/s | see peak
  Operations in a second.
peak | also share of the peak | see utilisation
  The most operations that the units at work could do in a second, at full clock. Where a power limit lowers the clock,
  a run also says what it leaves.
utilisation | also of peak; utilization | see peak
  Operations that were done over those that the units could have done in the time at full clock.
fma | also multiply-add; fma unit at work; math; multiply-adds on the SMs; mac; add; add unit at work
  A fused multiply-add: a * b + c in one instruction, with one rounding.
special function | also special; special unit at work; special functions and lanes on the SMs
  Exponentials, divisions, roots: slower and fewer units than for additions.
loads | also loaded | see stores
  Numbers that go from memory into registers.
stores | also stored | see loads
  Numbers that go from registers to memory.
verified
  Whether the answer of the run, computed in its number format, agrees with NumPy in float64 within what the format
  allows.
level | also lies in; memory level; unit | see cache; scratchpad; DRAM | lesson hierarchy
  One memory of the hierarchy: registers, caches, scratchpads, DRAM.
cache | see line; hit rate; set; associativity | lesson hierarchy
  A small fast memory that keeps the lines used last and decides by itself what to throw out.
scratchpad | also buffer; shared memory; unified_buffer; weight_fifo; accumulators; operands; sums; room used; holds;
+ stays | see tile
  A small fast memory that the program fills and empties itself: shared memory of a GPU, buffers of an accelerator.
DRAM | also main memory | see row hit; footprint | lesson hierarchy
  Main memory: large, and hundreds of cycles away.
line | also cache line; lines filled; accesses per line; lines for each set | see cache; stride | lesson strides
  The piece in which caches move memory, usually 64 bytes. One touched byte brings all of it.
access | also accesses; read; written; commands
  One load or store that reaches a level.
hit rate | also hits; found there | see miss
  Accesses that find their line in a cache, over all accesses to it.
miss | also misses; l1 misses; l2 misses; lines filled | see hit rate; conflict miss | lesson tiling
  An access whose line is not in the cache and has to come from the level behind it.
conflict miss | also conflicts; conflict; cold; capacity; kind | see set | lesson tiling
  A miss although the cache has room elsewhere: too many lines in use fall into the same set. Other misses are cold (the
  first use of a line) or for want of capacity.
set | also sets | see associativity
  A cache is divided into sets; the address decides in which one a line may lie.
associativity | also ways | see set
  How many lines a set holds: its ways.
replacement | also LRU; eviction
  Which line of a full set goes when another one comes: the least recently used one (LRU), or another rule.
memory traffic | also traffic; moved; traffic of the array; bytes to and from; moved in; moved out;
+ to and from the array; over the pins; at the banks; bytes | see arithmetic intensity
  Bytes that a level exchanges with its neighbours.
footprint | also memory; peak memory; memory footprint; memory of a device; activations; gradients; optimizer; kv cache
+ and weights; total; keys and values | see DRAM; memory traffic
  The most bytes that the tensors of a run take at one time: the column `memory`. Of a model, its weights, keys and
  values, activations and, in training, gradients and the optimizer's numbers. How much of it moves is traffic.
padding | also ld; leading dimension; padded; padded rows | see set; stride; conflict miss | lesson tiling
  Elements without use at the end of each row: `ld=272` stores rows of 256 elements 272 apart. Elements of a column then
  fall into different sets of a cache.
packed | also packing; packed=true; packed tiles | see padding; tile
  Each tile is stored in one piece, so that its lines follow each other, whatever the length of a row of the matrix.
loop order | also order; ijk; ikj; kij; loop interchange | see stride; schedule | lesson strides
  Which loop runs outside and which inside: `ijk` takes k, the sum, innermost, `ikj` the columns, so that B is read
  along its rows. The answer is the same up to rounding.
store forwarding | also store to load forwarding; forwarding; waits for store forwarding | see dependency chain
  A load takes its value from a store that is not yet in the cache. It takes some cycles, so a sum that lies in memory
  waits so long for each addition.
first bytes | see latency; overlap
  What the first transfers of a run take before anything can work: nothing can hide it.
tensor parallelism | also tp; model parallelism; shards | see all-reduce; exposed communication; data parallelism
  Each device holds a part of every weight matrix and computes a part of every product; `tp=8` cuts them in eight. After
  attention and after the feed-forward part all devices sum what they have: two all-reduces in each layer.
pipeline parallelism | also pp; microbatch; microbatches; micro | see bubble; tensor parallelism
  Each device holds some of the layers. A batch goes through them in pieces (`micro=`), so that all have work.
data parallelism | also dp | see tensor parallelism
  Each group of devices holds the whole model and takes a part of the batch; in training they sum their gradients.
expert parallelism | also ep | see tensor parallelism
  Each device holds some of the experts of a mixture, and tokens travel to theirs.
sequence parallelism | also sp | see tensor parallelism
  What lies between the products is divided along the tokens: each device keeps the activations of its own.
address translation | also tlb; page walk; waits for address translation | see latency
  From the addresses of a program to those of memory. A few recent pages are kept; any other page is looked up first.
array's ends | also entering weights; leaving sums | see dataflow
  Weights that enter the cells before anything streams, and sums that leave them at the end.
products and softmax | also products and softmax on the SMs | see fusion; special function
  The longest part of a fused attention kernel: products of queries, keys and values and the exponentials between them,
  which take turns on the units of an SM.
overhead inside kernels | see launch overhead; latency
  What a kernel spends on neither arithmetic nor memory: the latencies of its steps, its start, its last blocks.
percentile | also p50; p90; p99; mean; median; tail latency | see time to first token
  p99 is the time within which 99 of 100 requests lie, p50 the median, mean the average.
phase | also prefill; decode; prompt; token; forward; train; training step; context | see KV cache
  A part of what a model does: reading the prompt (prefill), making one token after the other (decode), a training step.
  They are bound by different things: prefill by arithmetic, decode by reading the weights.
operation of a run | also operation; op; made by; read by; step; stage; size | see fusion; tile
  One operation of a chain or a model, as a product or a norm, with the tensors that it reads and makes.
part | also alone; compute; everything else; other; count | see bound; overlap
  One thing that takes time or energy: a unit, a link, a wait. `alone`: how long a run would take if it were nothing but
  this part; `count`: how often the action happens.
point | also best; value; at; the worst is; machine; workload; on; cores at work | see Pareto front
  One combination of machine, workload and parameters. `on` are the units that take part in it, `at` where the best
  lies.
write-back | also writebacks; writeback
  A changed line goes to the level behind only when it is thrown out.
write-allocate | lesson fusion
  A store to a line that is not in the cache brings the line in first.
prefetch | also prefetcher
  Lines that the hardware fetches before they are asked for, because it sees a pattern.
outstanding misses | also mshrs
  Misses that a cache can wait for at the same time; they hide each other's latency.
row hit | also row hits; row activation; opens rows; refresh; refreshes its rows; activation
  DRAM opens a row to read from it; the next access to the same row is quicker.
reuse | also uses per load; reuse distance; reuse factor | see tile; locality | lesson strips
  How often a number is used for each time it is brought in.
locality | see reuse; line
  Data used together lies together (in space), and is used again soon (in time).
stride | also strides; offset; row major; column major; view; broadcast; slice | see contiguous | lesson strides
  How many elements further the next one along an axis lies. Row major: the last axis has stride 1. Transposing swaps
  strides, slicing shifts the offset, broadcasting makes a stride 0: nothing is copied.
contiguous | see stride | lesson strides
  Elements lie in memory in the order of their indices, without a gap.
tile | also tiles; block; tiling; at a time; passes; passes played; layer; layers; times | see reuse; register tile
+ | lesson tiling
  A part of a tensor that is worked on while it lies in a fast memory.
register tile | also v1; v2; unroll | see tile | lesson strips
  Several sums that stay in registers together, so that each loaded number is used several times.
schedule | also loop; mapping | see tile; loop order
  How something is computed: order of loops, tiles, vectors, cores. It changes the cost, never the answer.
fusion | also fused; epilogue; fuse | see memory traffic | lesson fusion
  Operations in one pass, so that what lies between them never goes to memory.
epilogue | see fusion | lesson graph
  Operations on single elements behind a product, done before its result leaves the registers.
dataflow | also weight stationary; output stationary; input stationary; ws; os; is | see fold | lesson mapping
  What stays in the cells of an array while the rest streams past: weights (ws), outputs (os), inputs (is).
arithmetic intensity | also flop per byte; op per byte; flop/byte; op/byte; operations per byte; FLOP per element;
+ intensity | see roofline | lesson roofline
  Operations for each byte that is moved. Per level: bytes that this level exchanges. Per element it is larger by the
  bytes of an element: count which one is meant.
roofline | also roof; ridge | see arithmetic intensity; peak; bandwidth | lesson roofline
  Attainable speed is the smaller of the peak, and arithmetic intensity times bandwidth.
closed form | also formula; predicted; estimated; why they differ; difference; least possible; simulated; says; ratio;
+ elements; tensor
  A formula for what is simulated, printed beside it with the reason for a difference.
speed-up | also speedup; gain; against the fastest; efficiency; speed-up (efficiency)
  Time of the first over time of this one.
SIMD | also vector; vectors; lanes | see instruction | lesson simd
  One instruction for several numbers, side by side in a wide register.
Pareto front | also front; pareto | see energy × time
  Points that no other point beats in everything at once.
energy | also pJ; joules; action; cause | see static; control; operand supply; arithmetic | lesson energy
  Joules: what every counted action costs, priced by the machine's table, and static power times time.
power | see power limit
  Energy over time, in watts.
power limit | also TDP; throttle; slowed by the power limit; power cap
  Watts that a machine may draw; above them clock and voltage are lowered until it does not.
energy × time | also edp; energy × delay
  Energy-delay product: a slower, thriftier run has to be better in it.
static | also static power; leakage | see energy | lesson energy
  Energy that flows whether anything happens or not: leakage and clocks, as power times time. A faster run pays less of
  it.
arithmetic | see energy | lesson energy
  The energy, or the time, of the operations themselves. On a GPU the price of a multiply-add holds its registers,
  shared memory and control as well (the power of a whole card was measured, which does not tell them apart): its share
  is not to be compared with that of a core or an array, where each of these is a row of its own.
control | also instruction overhead | see SIMD; operand supply | lesson simd
  The energy of fetching, decoding and ordering instructions. Vectors and larger instructions share it.
operand supply | see control | lesson specialisation
  The energy of bringing operands to the units: register files, and wires between cells.
Dennard scaling | also dennard | see energy; technology node
  Smaller transistors at lower voltage: per area, power stayed the same while everything became faster, until about
  2006. Voltage has hardly fallen since, so a chip can no longer switch all it has at once. hwsim's energy tables from
  45 to 5 nm show how much less an operation costs at each node.
technology node | also node; nm | see Dennard scaling
  A name for a generation of chips, such as 7 nm. It was a length once. From 70 to 3 nm that would be a factor of 23
  along a side and 544 in area; the notes say 20 times more cores. Names of nodes have long ceased to be lengths of
  anything: hwsim scales energy between nodes by published prices of operations, never by names.
precision | also number format; format | see rms error | lesson precision
  The number format of tensors: fp32, bf16, fp16, fp8, int8 and others, with their rounding.
largest error | also error; max rel err; largest error of the arithmetic, inputs taken as rounded; error of arithmetic
  The largest difference of an element from float64, relative to the largest element.
rms error | also rms; rms error, rounding of the inputs counted in; error of format | see precision | lesson precision
  The root of the mean squared difference from float64, relative to that of the answer.
accumulator | also accumulate | see precision
  The register that a sum is kept in; usually wider than what is added.
quantisation | also quantization; scale | see precision | lesson precision
  Numbers as small integers times a scale.
SM | also sm; multiprocessor | see warp; occupancy | lesson cuda
  A streaming multiprocessor of a GPU: lanes, tensor cores, registers, shared memory.
warp | also warps per SM | see occupancy; coalescing | lesson cuda
  32 threads of a GPU that execute the same instruction.
thread block | also blocks; grid; kernel | see wave
  Threads of a GPU that share an SM and its shared memory. A kernel is a grid of them.
occupancy | also limited by
  Warps on an SM over those that it could hold; limited by registers, shared memory or blocks.
wave | also waves; tail; waits for the last blocks; start; starts and ends blocks
  As many thread blocks as a GPU holds at once. The last wave is often not full: the tail.
launch overhead | also launch; starts kernels; starting kernels | see fusion
  Microseconds between asking for a kernel and its first block.
coalescing | also coalesced; sector; load/store; loads and stores on the SMs | see warp | lesson cuda
  Loads of a warp that fall on the same 32-byte sectors become one transaction.
tensor core | also matrix unit; mma | see SM | lesson cuda
  A unit that multiplies small matrices in one instruction.
systolic array | also array; cell; values stream through the array; the vector unit works; weights enter the elements;
+ columns stream past the units; columns stream past the units, element by element | see fold; dataflow | lesson mapping
  A grid of multiply-add cells through which operands move in step.
fold | also folds; fill and drain; the array fills or drains | see systolic array | lesson mapping
  The part of a product that an array holds at one time. Each fold fills, streams and drains.
processing in memory | also bank; banks; waits for what the banks are told
  Arithmetic units at the banks of DRAM, where a matrix is read without passing the pins.
staging | also staging from disk | lesson hierarchy
  Inputs that come from a disk or another computer before the run.
KV cache | also kv | lesson kv_cache
  Keys and values of all tokens so far, kept for the next one.
online softmax | also flash attention; flashattention | see fusion | lesson attention
  A softmax in one pass: largest value and sum so far, rescaled when a larger value comes.
im2col | also implicit gemm | lesson convolution
  All windows of an image copied into a matrix, so that a convolution becomes a product.
reverse mode | also autodiff; backpropagation; forward mode; adjoint; gradient | lesson autodiff
  Derivatives of one result by all inputs in one pass backwards through the graph. Forward mode takes a pass for each
  input.
stack | also dataflow graph; runtime; ml system
  The layers of a machine-learning system: the model as a graph of operations, automatic differentiation, graph
  optimisation, parallelisation over devices, the runtime that schedules and moves memory, and the operators with their
  kernels. hwsim covers graph optimisation (hwsim rewrite), derivatives (hwsim gradient), runtime and overlap, and
  operators on a machine.
Anton | see specialisation
  A supercomputer for molecular dynamics by D. E. Shaw Research: 512 special chips that compute forces between pairs of
  particles, two orders of magnitude faster than general machines at that time, and good for nothing else. The far end
  of the ladder of specialisation (Shaw et al., ISCA 2007).
specialisation | also ASIC; FPGA; accelerator; fixed function | see control; operand supply; Anton | lesson
+ specialisation
  Giving up what a machine can do in exchange for energy and speed at what it does.
vendor kernels | also library; cuDNN; MKL; OpenBLAS
  Products, convolutions and attention written by those who sell the hardware (oneDNN, MKL, cuBLAS, cuDNN): what
  frameworks call. hwsim's GPU kernels stand for such a library; threads.kernel chooses hand-written ones instead.
"""

_WAITS = "waits for "

TERMS: Mapping[str, Term] = {term.name: term for term in _read(_TEXT)}
"""By name, in the order of the page."""


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    """Every word under which a term can be found; a name goes before an alias."""
    found: dict[str, str] = {}
    for term in TERMS.values():
        for word in (term.name, *term.also):
            found.setdefault(_folded(word), term.name)
    found |= {_folded(name): name for name in TERMS}
    return found


def find_term(words: str) -> Term | None:
    """A term by its name, by another word for it, or by its plural; None where there is none.

    What a unit `waits for` is looked up as it is, and otherwise as what it waits for.
    """
    asked = _folded(words)
    if _LINK.fullmatch(asked):
        return TERMS["bandwidth"]
    of_level = _OF_LEVEL.sub("", asked)
    of_table = _OF_TABLE.sub("", asked)
    forms = (asked, asked.removesuffix("s"), asked.removesuffix("es"), f"{asked}s", asked.removeprefix(_WAITS))
    for form in (*forms, of_level, of_table):
        if form in _words():
            return TERMS[_words()[form]]
    return None


_LINK = re.compile(r"(waits for )?[a-z0-9_.]+ ?→ ?[a-z0-9_.]+")
"""`dram→l3`, from one level to another."""
_OF_LEVEL = re.compile(r"^(l\d|dram|regs) ")
"""`l3 misses`: a column about one level."""
_OF_TABLE = re.compile(r"^why: | of .*$")
"""`why: cycles of 1 core`: the head of the table that says where the time went."""


def near_terms(words: str) -> list[str]:
    """Terms that one may have meant."""
    import difflib

    asked = _folded(words)
    close = difflib.get_close_matches(asked, _words(), n=4, cutoff=_NEAR)
    inside = [word for word in _words() if re.search(rf"\b{re.escape(asked)}", word)] if len(asked) > _SHORT else []
    return list(dict.fromkeys(_words()[word] for word in (*close, *inside)))[:6]


_NEAR = 0.78
"""Words less alike than this are other words: `nothing` is no `tiling`."""
_SHORT = 2
"""So few letters begin too many words."""


def _folded(text: str) -> str:
    return re.sub(r"[\s_\-]+", " ", text).strip().casefold()
