"""Five small models of different kinds, the sizes that calls of them come with, and calls that they must turn away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from msgspec import Struct

from tests.adapt.networks import WIDTH, chain, encoder, perceptron, weight
from tests.security.models import model, node, value
from tests.store.samples import positions

Feeds = dict[str, Any]


class Network(Struct, frozen=True):
    """A model, what draws inputs for a size, the sizes, and inputs that are an InputError."""

    name: str
    proto: onnx.ModelProto
    draw: Callable[[np.random.Generator, int], Feeds]
    sizes: tuple[int, ...]
    bad: Feeds


def pictures() -> onnx.ModelProto:
    """Two convolutions, a mean over each channel, and a product."""
    nodes = [
        node("Conv", ["x", "k0"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "k1"], ["c"], strides=[2, 2]),
        node("Relu", ["c"], ["d"]),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Flatten", ["e"], ["f"]),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    weights = [weight("k0", 16, 3, 3, 3), weight("k1", 16, 16, 3, 3), weight("w", 16, 10)]
    return model(nodes, [value("x", ["n", 3, "h", "h"])], [value("y", ["n", 10])], weights)


def _floats(*shape: Any) -> Callable[[np.random.Generator, int], Feeds]:
    """Draws `x` in this shape, where None is the size."""

    def draw(random: np.random.Generator, size: int) -> Feeds:
        return {"x": random.standard_normal([size if axis is None else axis for axis in shape]).astype(np.float32)}

    return draw


def _masked(random: np.random.Generator, size: int) -> Feeds:
    return {**_floats(2, None, WIDTH)(random, size), "mask": np.zeros((2, 1, 1, size), np.float32)}


def networks() -> tuple[Network, ...]:
    """All of them."""
    wrong = {"x": np.zeros((2, 2), np.int64)}
    return (
        Network("perceptron", perceptron(), _floats(None, 20), (1, 3, 8, 64), wrong),
        Network("chain", chain(), _floats(None, 100), (1, 5, 16, 40), wrong),
        Network("encoder", encoder(), _masked, (4, 7, 16, 32), wrong),
        Network("positions", positions(), _floats(1, None, 4), (2, 9, 30, 100), wrong),
        Network("pictures", pictures(), _floats(1, 3, None, None), (8, 12, 17, 24), wrong),
    )
