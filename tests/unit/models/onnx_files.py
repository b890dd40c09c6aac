"""Networks as ONNX files, made here with random weights: what the importer is held to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


class Network:
    """Operators one after the other."""

    def __init__(self, channels: int, side: int) -> None:
        self.nodes, self.weights = [], []
        self.channels, self.count = channels, 0
        self.input = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", channels, side, side])
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        values = self.random.standard_normal(shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(kind, list(inputs), [f"t{self.count}"], **attributes))
        return f"t{self.count}"

    def conv(self, x: str, given: int, made: int, side: int, stride: int = 1, group: int = 1, norm: bool = True) -> str:
        pad = side // 2
        weight = self.weight(made, given // group, side, side)
        x = self.node("Conv", x, weight, strides=[stride] * 2, pads=[pad] * 4, group=group)
        if not norm:
            return x
        return self.node("BatchNormalization", x, *(self.weight(made) for _ in range(4)))

    def save(self, x: str, path: Path, classes: int) -> Path:
        out = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", classes])
        graph = helper.make_graph(self.nodes, "net", [self.input], [out], self.weights)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
        return path

    def classify(self, x: str, width: int, classes: int) -> str:
        x = self.node("Flatten", self.node("GlobalAveragePool", x))
        return self.node("Gemm", x, self.weight(classes, width), self.weight(classes), transB=1)


def resnet18(path: Path) -> Path:
    """He and others, 2016, table 1."""
    net = Network(3, 224)
    x = net.node("Relu", net.conv("image", 3, 64, 7, 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    given = 64
    for made, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        y = net.node("Relu", net.conv(x, given, made, 3, stride))
        y = net.conv(y, made, made, 3)
        short = x if given == made else net.conv(x, given, made, 1, stride)
        x = net.node("Relu", net.node("Add", y, short))
        given = made
    return net.save(net.classify(x, 512, 1000), path, 1000)


def mobilenet_v2(path: Path) -> Path:
    """Sandler and others, 2018, table 2."""
    net = Network(3, 224)
    x = net.node("Clip", net.conv("image", 3, 32, 3, 2))
    given = 32
    for grow, made, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            stride, inner, y = (first if number == 0 else 1), given * grow, x
            if grow > 1:
                y = net.node("Clip", net.conv(y, given, inner, 1))
            y = net.node("Clip", net.conv(y, inner, inner, 3, stride, inner))
            y = net.conv(y, inner, made, 1)
            x = net.node("Add", x, y) if stride == 1 and given == made else y
            given = made
    x = net.node("Clip", net.conv(x, 320, 1280, 1))
    return net.save(net.classify(x, 1280, 1000), path, 1000)
