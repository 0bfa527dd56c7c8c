"""The models that figures are shown for, and what they are called with.

Made ones are exported by `make_models.py` and `make_others.py` into .models/made, once, and get drawn inputs in the
shapes given here. Real ones are fetched into .models by tests/models, and get the inputs kept there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from tests.models import catalog as real

from benchmarks.effort import tell

ROOT = Path(__file__).parent.parent
MADE = ROOT / ".models" / "made"
MAKER, OTHERS_MAKER = (Path(__file__).with_name(f"make_{name}.py") for name in ("models", "others"))
NEEDED = ("torch", "transformers", "onnxscript")
EXPORT_TIMEOUT_S = 1800


class Case(Struct, frozen=True):
    """One model in one shape; `goal` is what the best peer's time over Tierup's should be."""

    name: str
    model: str
    shapes: tuple[str, ...] = ()
    goal: float = 1.0


class RealCase(Struct, frozen=True):
    """One published model, and the file with its inputs where there is one."""

    name: str
    path: Path
    inputs: Path | None


CASES = (
    Case("mlp-1", "mlp", ("x=1,64",), 2.5),
    Case("mlp-64", "mlp", ("x=64,64",), 1.5),
    Case("bert_mini-16", "bert_mini", ("ids=1,16",), 1.5),
    Case("bert_mini-128", "bert_mini", ("ids=1,128",), 1.25),
    Case("bert_base-32", "bert_base", ("ids=1,32",), 1.5),
    Case("bert_base-128", "bert_base", ("ids=1,128",), 1.15),
    Case("vit_small", "vit_small", goal=1.15),
    Case("resnet50", "resnet50", goal=1.1),
    Case("mobilenet_v2", "mobilenet_v2", goal=1.4),
    Case("convnext_tiny", "convnext_tiny", goal=1.3),
    Case("elementwise-256", "elementwise", ("x=256,1024",), 1.7),
    Case("elementwise-4096", "elementwise", ("x=4096,1024",), 2.0),
    Case("relu_ffn-1", "relu_ffn", ("x=1,1024",)),
    Case("relu_ffn-32", "relu_ffn", ("x=32,1024",), 1.15),
)
# Of models that nothing was tuned to, to see whether what holds for those above holds for them.
OTHERS = tuple(
    Case(f"other-{name}", name)
    for name in (
        "deberta", "gpt2", "llama", "llama_decode", "mamba", "fnet",
        "whisper", "wav2vec2", "conformer", "hifigan", "wavenet",
        "segformer", "dinov2", "mobilevit", "efficientnet", "regnet", "unet", "detector", "super_resolution",
        "deeplab", "large_kernels", "style", "video", "unet_3d",
        "diffusion", "decoder",
        "gru", "dlrm",
        "gpt2_f16", "llama_decode_f16", "unet_f16", "wav2vec2_f16",
    )
)  # fmt: skip


def choose(names: Iterable[str], cases: Iterable[Case] = CASES) -> list[Case]:
    """The made cases with these names, or of these models; all of them where none is named."""
    wanted = set(names)
    return [case for case in cases if not wanted or {case.name, case.model} & wanted]


def real_cases(names: Iterable[str]) -> list[RealCase]:
    """The real models with these names, fetched; all of them where none is named."""
    wanted = set(names)
    found = []
    for name in real.NAMES:
        if not wanted or name in wanted:
            inputs = real.HERE / "inputs" / f"{name}.npz"
            found.append(RealCase(name, real.model_path(name), inputs if inputs.exists() else None))
    return found


def check_names(names: Iterable[str]) -> None:
    """Ends the program where a name is no case of any benchmark."""
    known = {*real.NAMES, *(name for case in (*CASES, *OTHERS) for name in (case.name, case.model))}
    for name in names:
        if name not in known:
            sys.exit(f"there is no case '{name}'; there are {', '.join(sorted(known))}")


def model_path(model: str) -> Path:
    """The exported model; it is made if it is not there."""
    path = MADE / f"{model}.onnx"
    if path.exists():
        return path
    absent = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if absent:
        sys.exit(f"{path} is not there, and making it needs {', '.join(absent)}: pip install 'tierup[bench]'")
    tell(f"making {path.relative_to(ROOT)}")
    # Beside its place first: an export that is cut off must not be taken for a model.
    beside = MADE / "unfinished"
    maker = OTHERS_MAKER if any(case.model == model for case in OTHERS) else MAKER
    subprocess.run([sys.executable, str(maker), str(beside), model], check=True, timeout=EXPORT_TIMEOUT_S)
    (beside / path.name).rename(path)
    beside.rmdir()
    return path


def source(model: str) -> str:
    """Where the module that a model was exported from can be built again."""
    return f"{MAKER}:{model}"
