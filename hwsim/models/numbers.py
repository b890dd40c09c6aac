"""Number formats by part of a model: weights, activations, kept keys and values."""

from __future__ import annotations

from dataclasses import dataclass

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
