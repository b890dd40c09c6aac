"""A model as a file that people read and change: short lines, an operation on each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from hwsim.ops.model import ModelWorkload

FIRST = ("format", "name", "description", "source", "op", "precision", "input", "width", "context", "sizes", "use")
WIDTH = 116


def model_yaml(model: ModelWorkload) -> str:
    """The text of a model file: what was said, without defaults."""
    data = model.model_dump(mode="json", exclude_unset=True)
    lines = [f"{name}: {_inline(data[name])}" for name in FIRST if data.get(name) not in (None, {}, "")]
    lines.append("blocks:")
    for block in data["blocks"]:
        about = [f"    {name}: {_inline(block[name])}" for name in ("repeat", "stream", "inputs") if name in block]
        lines += [f"  - name: {block['name']}", *about, "    operations:"]
        lines += [f"      - {line}" for each in block["operations"] for line in _operation(each)]
    return "\n".join(lines) + "\n"


def _operation(data: dict[str, Any]) -> Iterator[str]:
    ordered = {name: data[name] for name in ("name", "op", "inputs") if name in data} | data
    yield _inline(ordered)


def _inline(value: Any) -> str:
    """As one line of YAML; a long text keeps its line, which YAML allows."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n...\n").rstrip("\n")
