"""Edges: what one operation of a chain leaves in memory for another, and what moving it cost."""

from __future__ import annotations

from dataclasses import dataclass

from hwsim.results.result import RunResult


@dataclass(frozen=True)
class Edge:
    """A tensor between two stages."""

    tensor: str
    producer: str
    consumer: str
    bytes: int
    """Size of the tensor."""
    loads: int
    """Elements of it that the consumer loaded."""
    misses: dict[str, int]
    """Lines of it that each cache did not have when the consumer asked for them."""


def find_edges(result: RunResult) -> tuple[Edge, ...]:
    """Every tensor that one stage stored and a later one loaded, in the order of the stages."""
    made: dict[str, str] = {}
    edges = []
    for stage in result.stages:
        for name, traffic in stage["tensors"].items():
            if traffic["loads"] and made.get(name, stage["name"]) != stage["name"]:
                size = result.tensors[name]["bytes"]
                misses = {level: traffic["misses"][level] for level in result.caches if level in traffic["misses"]}
                edges.append(Edge(name, made[name], stage["name"], size, traffic["loads"], misses))
            if traffic["stores"]:
                made[name] = stage["name"]
    return tuple(edges)
