"""Phases of a model: reading a prompt, making one token after it, one pass over all, a step of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hwsim.models.graph import LAST, SOURCE, Flow, GraphBlock, ModelNode

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
        return block.stream != SOURCE and node.out.rows != SOURCE

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
