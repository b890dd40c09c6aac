"""How a model is run: number formats by part, and phases.

Weights, activations and kept keys and values have formats of their own. Phases are reading a prompt, making one token
after it, one pass over all, a step of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hwsim.models.graph import LAST, SOURCE, Flow, GraphBlock, ModelNode
from hwsim.numerics.datapath import find_datapath
from hwsim.ops.model import ModelWorkload

FORMATS = {"fp8": "fp8_e4m3", "int4": "w4a16"}
"""Short names: int4 stands for weights of four bits, which are multiplied in 16."""
WEIGHT_ONLY = ("w8a16", "w4a16")
WIDE = ("fp32", "tf32", "bf16", "fp16")
"""Formats in which everything but products is computed."""


@dataclass(frozen=True)
class Formats:
    """Formats of the parts of a model."""

    weights: str
    activations: str
    kv: str

    @classmethod
    def of(cls, model: ModelWorkload) -> Formats:
        """As the file and the command line say; what is not said follows from the precision of the model."""
        use, base = model.use, FORMATS.get(str(model.precision), str(model.precision))
        weights = FORMATS.get(use.weights or "", use.weights) or base
        given = FORMATS.get(use.activations or "", use.activations)
        activations = given or (base if base not in WEIGHT_ONLY else "fp16")
        if given is None and activations.startswith(("fp8", "mx")):
            activations = "bf16"
        kv = FORMATS.get(use.kv or "", use.kv) or activations
        return cls(weights, activations, "fp16" if kv in WEIGHT_ONLY else kv)

    @property
    def product(self) -> str:
        """The precision of a product of activations with weights, as a workload says it."""
        return self.weights

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded to the narrower format of the weights before they are multiplied."""
        return self.weights != self.activations and self.weights not in (*WEIGHT_ONLY, *WIDE)

    def weight_bytes(self, count: int) -> float:
        return count * stored_bits(self.weights) / 8

    def activation_bytes(self, count: int) -> float:
        return count * stored_bits(self.activations) / 8

    def kv_bytes(self, count: int) -> float:
        return count * stored_bits(self.kv) / 8

    def words(self) -> str:
        """`bf16`, or the parts where they differ."""
        if self.weights == self.activations == self.kv:
            return self.weights
        return f"weights {self.weights}, activations {self.activations}, kv {self.kv}"


def stored_bits(precision: str) -> float:
    """Bits of a stored weight, activation or key in memory, without scales."""
    return float(find_datapath(precision).stored_bits_b)


PREFILL: Final = "prefill"
DECODE: Final = "decode"
FORWARD: Final = "forward"
TRAIN: Final = "train"


@dataclass(frozen=True)
class Pass:
    """One pass through the graph: how many sequences, how many new tokens of each, and how many before them."""

    name: Literal["prefill", "decode", "forward", "train"]
    batch: int
    tokens: int
    """New tokens of each sequence."""
    cached: int = 0
    """Tokens before them, whose keys and values are kept."""
    source: int = 0
    """Tokens of the source, where the model reads one."""

    @property
    def context(self) -> int:
        """Tokens that a new one may look at."""
        return self.cached + self.tokens

    def rows(self, flow: Flow) -> int:
        """Rows of all sequences together; of images, the images."""
        if isinstance(flow.rows, int):
            return self.batch * flow.rows
        if flow.rows == LAST:
            return self.batch * (1 if self.name in (PREFILL, DECODE) else self.tokens)
        return self.batch * (self.source if flow.rows == SOURCE else self.tokens)

    def elements(self, flow: Flow) -> int:
        return self.rows(flow) * flow.per_row

    def runs(self, block: GraphBlock, node: ModelNode) -> bool:
        """What was made of the source stays; it is not made again for every token."""
        if self.name != DECODE:
            return True
        return block.stream != SOURCE and node.out.rows != SOURCE and set(node.makers) != {SOURCE}

    def keys(self, node: ModelNode, causal: bool, window: int | None) -> int:
        """Keys that the tokens of a sequence look at."""
        if node.op.cross:  # type: ignore[attr-defined]
            return self.source
        if isinstance(node.out.rows, int):
            return node.out.rows
        if node.out.rows == SOURCE:
            return self.source
        if not causal:
            return self.tokens
        return self.context if window is None else min(self.context, window + self.tokens - 1)

    def queries(self, node: ModelNode) -> int:
        """Rows of one sequence that look."""
        return self.rows(node.out) // self.batch


def prefill(batch: int, tokens: int, cached: int = 0, source: int = 0) -> Pass:
    """A prompt is read at once, and the next token found."""
    return Pass(PREFILL, batch, tokens, cached, source)


def decode(batch: int, context: int, source: int = 0) -> Pass:
    """One token for each sequence, after `context` others."""
    return Pass(DECODE, batch, 1, context, source)


def forward(batch: int, tokens: int, source: int = 0) -> Pass:
    """One pass, with results for all tokens."""
    return Pass(FORWARD, batch, tokens, 0, source)


def train(batch: int, tokens: int, source: int = 0) -> Pass:
    """Forward, backward, and new weights."""
    return Pass(TRAIN, batch, tokens, 0, source)
