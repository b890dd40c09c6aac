"""What an engine file may say: how an engine batches requests, keeps keys and values, and what its host costs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Name, Spec
from hwsim.systems.spec import Duration, Source


class HostCostSpec(Spec):
    """What the host does for each step, beside the devices."""

    step: Duration = Field(description="Scheduling, launching and sampling of one step.")
    request: Duration = Field(description="For each request of the step, on top.")
    overlap: bool = Field(
        description="Whether the host prepares the next step while the devices work: then a step takes the longer of "
        "both, otherwise their sum."
    )
    arrival: Duration | None = Field(
        None,
        description="Between a request that is sent and its place in the queue: received, turned into tokens.",
    )
    token: Duration | None = Field(
        None,
        description="For each token that is given out, in a process of its own (turned into text, sent): tokens wait "
        "in line where steps make them faster.",
    )
    source: Source | dict[str, str] = Field(description="Where the numbers come from; fitted ones say on what.")


class EngineSpec(Spec):
    """A serving engine."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the engine is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    tokens: int = Field(ge=1, le=1 << 20, description="Token budget of a step: decoding requests count one each.")
    requests: int = Field(ge=1, le=1 << 20, description="Requests that are in the batch at most.")
    block: int = Field(ge=1, le=4096, description="Tokens in one block of keys and values.")
    memory: float = Field(gt=0, le=1, description="Share of a device's memory for weights, keys and values.")
    chunked: bool = Field(description="Whether a prompt may be read in pieces, as far as the token budget allows.")
    mixed: bool = Field(
        description="Whether prompts and decoding share a step; otherwise prompts go first, and decoding waits."
    )
    library: Name = Field(description="Library of the system for all-reduces of a step; the system's first if unknown.")
    host: HostCostSpec = Field(description="Cost of the host.")
    source: Source | dict[str, str] = Field(description="Where budget, limits and policies come from.")
