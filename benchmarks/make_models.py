#!/usr/bin/env python3
"""Writes the benchmark models as ONNX: real architectures with random weights.

    make_models.py DIR [NAME ...]        needs torch, transformers, onnxscript

mlp           x[batch,64] -> 128 -> 128 -> 10, ReLU, softmax
bert_mini     BERT encoder 4 layers x 256, ids and mask [batch,seq] (both open)
bert_base     BERT encoder 12 layers x 768
resnet50, mobilenet_v2, convnext_tiny, vit_small     x[1,3,224,224] -> 1000 (ViT: 2) classes
relu_ffn      4 x (LayerNorm, 1024 -> 4096, ReLU, -> 1024, residual), batch open
elementwise   GELU, sigmoid, tanh, normalise, softmax over three [batch,1024] inputs
"""

import pathlib
import sys
import warnings

import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
BATCH = torch.export.Dim("batch", min=1, max=4096)
SEQ = torch.export.Dim("seq", min=2, max=512)


def mlp():
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10), nn.Softmax(-1)
    )
    return Wrap(net), (torch.randn(2, 64),), ["x"], ({0: BATCH},)


class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x)
        return out.logits if hasattr(out, "logits") else out


class Bert(nn.Module):
    def __init__(self, width, layers, heads, hidden):
        super().__init__()
        config = hf.BertConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=hidden
        )
        config._attn_implementation = "eager"
        self.inner = hf.BertModel(config, add_pooling_layer=False)

    def forward(self, ids, mask):
        return self.inner(input_ids=ids, attention_mask=mask).last_hidden_state


def bert(*shape):
    args = (torch.randint(0, 30000, (2, 64)), torch.ones(2, 64, dtype=torch.long))
    return Bert(*shape), args, ["ids", "mask"], ({0: BATCH, 1: SEQ}, {0: BATCH, 1: SEQ})


def vision(model):
    for layer in model.modules():  # default initialisation lets activations vanish in deep nets
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return Wrap(model), (torch.randn(1, 3, 224, 224),), ["x"], None


class FeedForward(nn.Module):
    def __init__(self, width=1024, hidden=4096, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)])
            for _ in range(layers)
        )

    def forward(self, x):
        for norm, up, down in self.layers:
            x = x + down(torch.relu(up(norm(x))))
        return x


class Chain(nn.Module):
    def forward(self, x, b, c):
        h = torch.sigmoid(F.gelu(x * b + c)) * torch.tanh(x - b)
        mean = h.mean(-1, keepdim=True)
        var = ((h - mean) ** 2).mean(-1, keepdim=True)
        return torch.softmax((h - mean) * torch.rsqrt(var + 1e-5) * c + x, -1)


MODELS = {
    "mlp": mlp,
    "bert_mini": lambda: bert(256, 4, 4, 1024),
    "bert_base": lambda: bert(768, 12, 12, 3072),
    "resnet50": lambda: vision(hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000))),
    "mobilenet_v2": lambda: vision(
        hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(image_size=224, num_labels=1000))
    ),
    "convnext_tiny": lambda: vision(hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000))),
    "vit_small": lambda: vision(
        hf.ViTForImageClassification(
            hf.ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
        )
    ),
    "relu_ffn": lambda: (FeedForward(), (torch.randn(2, 1024),), ["x"], ({0: BATCH},)),
    "elementwise": lambda: (
        Chain(),
        tuple(torch.randn(256, 1024) for _ in range(3)),
        ["x", "b", "c"],
        tuple({0: BATCH} for _ in range(3)),
    ),
}


def export(out, name, model, args, inputs, dynamic):
    model.eval()
    path = pathlib.Path(out) / f"{name}.onnx"
    torch.onnx.export(
        model,
        args,
        str(path),
        input_names=inputs,
        output_names=["out"],
        dynamo=True,
        dynamic_shapes=dynamic,
        external_data=False,
        optimize=True,
        verbose=False,
    )
    print(f"{name}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def write(models, out, *names):
    """Exports the models with these names, or all, into a folder."""
    pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    for name in names or models:
        torch.manual_seed(0)
        export(out, name, *models[name]())


if __name__ == "__main__":
    write(MODELS, *sys.argv[1:])
