"""The sizes of Winograd's sums: at least those of the convolution itself."""

from __future__ import annotations

import numpy as np
import pytest

from tierup.ir.graph import Attrs, Node
from tierup.reference.core_windows import conv_last
from tierup.reference.winograd import summed_sizes

ATTRS = Attrs({"group": 1, "kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "algorithm": "winograd"})
NODE = Node("core.conv_last", 1, (0, 1, 2), (3,), ATTRS)


@pytest.mark.parametrize("shape", [(1, 4, 4, 2), (2, 7, 5, 3), (1, 1, 6, 1), (0, 5, 5, 2)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3)])
def test_no_smaller_than_the_convolution(shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, w, around = random.random(shape), random.random((9 * shape[-1], 5)), np.array(pads)
    if min(shape[1] + pads[0] + pads[2], shape[2] + pads[1] + pads[3]) < 3:
        assert summed_sizes(NODE, x, w, around).size == 0
        return
    sizes, plain = summed_sizes(NODE, x, w, around), conv_last(NODE, x, w, around)
    assert sizes.shape == plain.shape
    assert (sizes >= plain * (1 - 1e-12)).all()


def test_a_result_depends_on_its_own_places_alone() -> None:
    x, w, none = np.zeros((1, 6, 6, 1)), np.ones((9, 1)), np.zeros(4, np.int64)
    x[0, 3, 3] = 1
    np.testing.assert_array_equal(summed_sizes(NODE, x, w, none) > 0, conv_last(NODE, x, w, none) > 0)


@pytest.mark.parametrize("pads", [(1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 0, 0), (2, 1, 0, 0, 1, 3)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_planes_add_up(pads: tuple[int, ...], stride: int, dilation: int) -> None:
    """With an axis before, sizes are at least those of the convolution, and where one plane is not zero, of its own."""
    random = np.random.default_rng(0)
    steps = {"strides": (stride, 1, 1), "dilations": (dilation, 1, 1)}
    node = Node("core.conv_last", 1, (0, 1, 2), (3,), Attrs({**ATTRS, "kernel_shape": (3, 3, 3), **steps}))
    x, w, around = random.random((2, 5, 6, 4, 2)), random.random((27 * 2, 5)), np.array(pads)
    sizes, plain = summed_sizes(node, x, w, around), conv_last(node, x, w, around)
    assert sizes.shape == plain.shape
    assert (sizes >= plain * (1 - 1e-12)).all()
    x[:, 1:] = 0
    np.testing.assert_array_equal(summed_sizes(node, x, w, around) > 0, conv_last(node, x, w, around) > 0)
