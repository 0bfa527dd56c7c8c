"""How large the sums of Winograd's F(2×2, 3×3) get: what its rounding errors are measured by."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array

# The absolute values of Bᵀ, G and Aᵀ: y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for 4×4 places d and 2×2 results y.
_DATA = np.abs(np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64))
_KERNEL = np.abs(np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float64))
_RESULT = np.abs(np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64))


def summed_sizes(node: Node, x: Array, w: Array, pads: Array) -> Array:
    """Σ of absolute values over everything that a result of a marked `core.conv_last` is computed from.

    x[N, (D,) H, W, C] and w[(K ·) 9 · C, M] have no negative elements. A result depends on its own places alone, but
    through sums and differences of the nine in each plane, so this is larger than the convolution of both.
    """
    (*leading, _, _), around = node.attrs["kernel_shape"], pads.tolist()
    if not leading:
        return _plane_sizes(x, w, around)
    (kernels,), (stride, *_), (dilation, *_) = leading, node.attrs["strides"], node.attrs["dilations"]
    planes = np.pad(x, ((0, 0), (around[0], around[3]), *[(0, 0)] * 3))
    count = max(0, (planes.shape[1] - (kernels - 1) * dilation - 1) // stride + 1)
    own = [*around[1:3], *around[4:]]
    results = []
    for kernel, weights in enumerate(np.split(w, kernels)):
        first = kernel * dilation
        met = planes[:, first : first + count * stride : stride][:, :count]
        flat = _plane_sizes(met.reshape(-1, *x.shape[2:]), weights, own)
        results.append(flat.reshape(len(x), count, *flat.shape[1:]))
    total: Array = np.sum(results, axis=0)
    return total


def _plane_sizes(x: Array, w: Array, pads: list[int]) -> Array:
    """The same for one plane: x[N, H, W, C], w[9 · C, M]."""
    images, height, width, channels = x.shape
    top, left, bottom, right = pads
    rows, columns = height + top + bottom - 2, width + left + right - 2
    if min(images, rows, columns) < 1:
        return np.zeros((images, max(rows, 0), max(columns, 0), w.shape[1]))
    tiles = -(-rows // 2), -(-columns // 2)
    room = ((0, 0), (top, 2 * tiles[0] + 2 - height - top), (left, 2 * tiles[1] + 2 - width - left), (0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, room), (4, 4), axis=(1, 2))[:, ::2, ::2]
    data = np.einsum("ai,bj,nyxcij->abnyxc", _DATA, _DATA, windows, optimize=True).reshape(16, -1, channels)
    kernel = np.einsum("ai,bj,ijcm->abcm", _KERNEL, _KERNEL, w.reshape(3, 3, channels, -1), optimize=True)
    sums = (data @ kernel.reshape(16, channels, -1)).reshape(4, 4, images, *tiles, -1)
    results: Array = np.einsum("ia,jb,abnyxm->nyixjm", _RESULT, _RESULT, sums, optimize=True)
    return results.reshape(images, 2 * tiles[0], 2 * tiles[1], -1)[:, :rows, :columns]
