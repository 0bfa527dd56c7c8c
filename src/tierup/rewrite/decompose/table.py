"""Every decomposition by op. A family is added here, and nowhere else."""

from __future__ import annotations

from tierup.rewrite.decompose.attention import ATTENTION
from tierup.rewrite.decompose.core import Decomposition
from tierup.rewrite.decompose.distinct import DISTINCT
from tierup.rewrite.decompose.elementwise import ELEMENTWISE
from tierup.rewrite.decompose.elimination import ELIMINATION
from tierup.rewrite.decompose.generate import GENERATE
from tierup.rewrite.decompose.linear_attention import LINEAR_ATTENTION
from tierup.rewrite.decompose.linear_models import LINEAR_MODELS
from tierup.rewrite.decompose.matrix import MATRIX
from tierup.rewrite.decompose.microsoft import MICROSOFT
from tierup.rewrite.decompose.microsoft_attention import MICROSOFT_ATTENTION
from tierup.rewrite.decompose.microsoft_lstm import MICROSOFT_LSTM
from tierup.rewrite.decompose.microsoft_quant import MICROSOFT_QUANT
from tierup.rewrite.decompose.ml import ML
from tierup.rewrite.decompose.movement import MOVEMENT
from tierup.rewrite.decompose.nn import NN
from tierup.rewrite.decompose.norm import NORM
from tierup.rewrite.decompose.quant import QUANT
from tierup.rewrite.decompose.recurrent import RECURRENT
from tierup.rewrite.decompose.reduce import REDUCE
from tierup.rewrite.decompose.sampling import SAMPLING
from tierup.rewrite.decompose.select import SELECT
from tierup.rewrite.decompose.signal import SIGNAL
from tierup.rewrite.decompose.suppression import SUPPRESSION
from tierup.rewrite.decompose.trees import TREES
from tierup.rewrite.decompose.vision import VISION

FAMILIES: dict[str, dict[str, Decomposition]] = {
    "elementwise": ELEMENTWISE,
    "generate": GENERATE,
    "movement": MOVEMENT,
    "select": SELECT,
    "distinct": DISTINCT,
    "reduce": REDUCE,
    "norm": NORM,
    "matrix": MATRIX,
    "elimination": ELIMINATION,
    "attention": ATTENTION,
    "linear_attention": LINEAR_ATTENTION,
    "nn": NN,
    "quant": QUANT,
    "recurrent": RECURRENT,
    "signal": SIGNAL,
    "vision": VISION,
    "sampling": SAMPLING,
    "suppression": SUPPRESSION,
    "ml": ML,
    "linear_models": LINEAR_MODELS,
    "trees": TREES,
    "microsoft": MICROSOFT,
    "microsoft_quant": MICROSOFT_QUANT,
    "microsoft_attention": MICROSOFT_ATTENTION,
    "microsoft_lstm": MICROSOFT_LSTM,
}
DECOMPOSITIONS: dict[str, Decomposition] = {
    op: decomposition for family in FAMILIES.values() for op, decomposition in family.items()
}
