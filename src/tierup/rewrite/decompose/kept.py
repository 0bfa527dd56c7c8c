"""Ops that stay whole although they are no core ops, each with its reason. They run in the reference tier."""

from __future__ import annotations

_RANDOM = "draws random numbers: the reference's generator decides which, so that a seed means the same everywhere"

KEPT: dict[str, str] = {
    "onnx.Bernoulli": _RANDOM,
    "onnx.Multinomial": _RANDOM,
    "onnx.RandomNormal": _RANDOM,
    "onnx.RandomNormalLike": _RANDOM,
    "onnx.RandomUniform": _RANDOM,
    "onnx.RandomUniformLike": _RANDOM,
    "onnx.MelWeightMatrix": "a small table made of numbers that are constants in models; folding answers it",
    "onnx.MaxRoiPool": "every cell is a window of its own size, which the regions' data decide",
    "ms.Inverse": "a matrix without an inverse is an error, which is known only after elimination",
    "ms.NGramRepeatBlock": "searches each row for what came before; how many tokens that bans, only the data says",
}
