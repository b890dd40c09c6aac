"""Programs of torch.export: what the importer is held to.

    python -m tests.unit.models.torch_programs

makes the files in `programs/`, with PyTorch (2.13 was used). They hold the graph and nothing else: weights, sample
inputs and the traces of whoever exported them are left out.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FOLDER = Path(__file__).parent / "programs"


class Residual(nn.Module):
    """A basic block (He and others, 2016, figure 5, left)."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(made)
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        short: list[nn.Module] = [nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)]
        self.short = nn.Sequential(*(short if given != made else []))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """A network of basic blocks: (64, 64, 128, ...) channels; the resolution is halved where they grow."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.pool = nn.MaxPool2d(3, 2, 1)
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.layers = nn.Sequential(*(Residual(given, made, 1 if given == made else 2) for given, made in pairs))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.pool(functional.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class DecoderLayer(nn.Module):
    """Norm first, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (each.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for each in split)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A small language model whose head is its table of words."""

    def __init__(self, words: int, width: int, heads: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Gated(nn.Module):
    """A wide layer of two halves behind a norm that is written out, as Llama has them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        root = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.scale * (x.float() * root).to(x.dtype)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def exported(model: nn.Module, path: Path, given: Tensor, *, core: bool = False, **options: Any) -> Path:
    """A program as people save it; `core`: in the operators that others are made of."""
    program = torch.export.export(model.eval(), (given,), **options)
    torch.export.save(program.run_decompositions() if core else program, path)
    return path


def stripped(path: Path) -> None:
    """Keep the graph alone, without traces of where it was made."""
    with zipfile.ZipFile(path) as archive:
        name = next(each for each in archive.namelist() if "/models/" in each)
        program = json.loads(archive.read(name))
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {key: text for key, text in node["metadata"].items() if key == "nn_module_stack"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), json.dumps(program, separators=(",", ":")), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = (
        exported(ResNet((8, 8, 16), 10), FOLDER / "resnet_small.pt2", torch.randn(1, 3, 32, 32)),
        exported(Decoder(100, 32, 4, 3, 16), FOLDER / "decoder_small.pt2", torch.zeros(2, 16, dtype=torch.long)),
    )
    layers = nn.Sequential(Gated(32, 96), Gated(32, 96)).to(torch.bfloat16)
    made = (*made, exported(layers, FOLDER / "gated_small.pt2", torch.zeros(1, 16, 32, dtype=torch.bfloat16)))
    for each in made:
        stripped(each)
