#!/usr/bin/env python3
"""Writes models that nothing was tuned to as ONNX: architectures from many fields, random weights, two to four layers.

    make_others.py DIR [NAME ...]        needs torch, transformers, onnxscript

Language   deberta, gpt2, llama, llama_decode (one token and a cache), mamba, fnet
Sound      whisper, wav2vec2, conformer, hifigan, wavenet
Pictures   segformer, dinov2, mobilevit, efficientnet, regnet, unet, detector, super_resolution, deeplab (dilated
           kernels), large_kernels (31×31), style (a generator that computes its kernels)
Volumes    video (3×3×3), unet_3d
Diffusion  diffusion (a U-Net with attention to a text), decoder (of a VAE)
Others     gru, dlrm (recommendation: tables of embeddings, eight bags of four)
In f16     gpt2_f16, llama_decode_f16, unet_f16, wav2vec2_f16
"""

import math
import sys
import warnings

import torch
import transformers as hf
from make_models import write
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
SMALL = {"num_hidden_layers": 3, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
CAUSAL = {"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
          "intermediate_size": 1376, "vocab_size": 8000}  # fmt: skip


class Call(nn.Module):
    """A module, and what of its answer is wanted."""

    def __init__(self, inner, call):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *args):
        return self.call(self.inner, *args)


def text(model, mask=True):
    ids = torch.randint(0, 900, (1, 64))
    if mask:
        call = Call(model, lambda m, i, a: m(input_ids=i, attention_mask=a)[0])
        return call, (ids, torch.ones_like(ids)), ["ids", "mask"], None
    return Call(model, lambda m, i: m(input_ids=i)[0]), (ids,), ["ids"], None


def picture(model, size):
    x = torch.randn(1, 3, size, size)
    for layer in model.modules():  # or activations vanish in deep nets
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # it learns what comes
    model.train()(x)
    return Call(model, lambda m, x: m(x)[0]), (x,), ["x"], None


class Decode(nn.Module):
    """The next token after those in the cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask, *kept):
        cache = hf.DynamicCache()
        for layer in range(len(kept) // 2):
            cache.update(kept[2 * layer], kept[2 * layer + 1], layer)
        answer = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        return (
            answer.logits,
            *(part for layer in answer.past_key_values.layers for part in (layer.keys, layer.values)),
        )


def llama_decode():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**CAUSAL))
    kept = [torch.randn(1, 2, 64, 64) for _ in range(6)]
    args = (torch.randint(0, 900, (1, 1)), torch.ones(1, 65, dtype=torch.long), *kept)
    return Decode(model), args, ["ids", "mask", *(f"kept{number}" for number in range(6))], None


class ConformerBlock(nn.Module):
    def __init__(self, width=192, heads=4):
        super().__init__()
        self.before, self.after = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norm, self.middle, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.sides, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.wide, self.back = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.deep, self.scale = nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width)

    def forward(self, x):
        x = x + 0.5 * self.before(x)
        batch, length, width = x.shape
        sides = self.sides(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*sides).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        y = F.glu(self.wide(self.middle(x).transpose(1, 2)), 1)
        x = x + self.back(F.silu(self.scale(self.deep(y)))).transpose(1, 2)
        return self.last(x + 0.5 * self.after(x))


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(1, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 2), nn.ReLU())
        self.into, self.blocks = nn.Linear(64 * 19, 192), nn.Sequential(*(ConformerBlock() for _ in range(4)))
        self.words = nn.Linear(192, 500)

    def forward(self, x):
        y = self.front(x[:, None]).transpose(1, 2).flatten(2)
        return self.words(self.blocks(self.into(y))).log_softmax(-1)


class Dilated(nn.Module):
    """HiFi-GAN's residual block."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.far = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in (1, 3, 5)
        )
        self.near = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2) for _ in range(3))

    def forward(self, x):
        for far, near in zip(self.far, self.near, strict=True):
            x = x + near(F.leaky_relu(far(F.leaky_relu(x, 0.1)), 0.1))
        return x


class HifiGan(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.ups, self.blocks, width = (
            nn.Conv1d(80, 256, 7, padding=3),
            nn.ModuleList(),
            nn.ModuleList(),
            256,
        )
        for kernel, times in ((16, 8), (16, 8), (4, 2), (4, 2)):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, kernel, times, padding=(kernel - times) // 2))
            width //= 2
            self.blocks.append(nn.ModuleList([Dilated(width, 3), Dilated(width, 7)]))
        self.back = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x):
        x = self.front(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.back(F.leaky_relu(x)))


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Conv1d(1, 64, 1), nn.Conv1d(64, 30, 1)
        steps = [2 ** (number % 8) for number in range(16)]
        self.gates = nn.ModuleList(nn.Conv1d(64, 128, 3, dilation=step, padding=step) for step in steps)
        self.rests = nn.ModuleList(nn.Conv1d(64, 128, 1) for _ in steps)

    def forward(self, x):
        x, skipped = self.front(x), 0
        for gate, rest in zip(self.gates, self.rests, strict=True):
            a, b = gate(x).chunk(2, 1)
            more, skip = rest(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, skipped = x + more, skipped + skip
        return self.back(F.relu(skipped))


def twice(before, after):
    """Two convolutions with group norms."""
    parts = [[nn.Conv2d(width, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()] for width in (before, after)]
    return nn.Sequential(*parts[0], *parts[1])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(twice(a, b) for a, b in ((3, 32), (32, 64), (64, 128), (128, 256)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in (128, 64, 32))
        self.join = nn.ModuleList(twice(2 * width, width) for width in (128, 64, 32))
        self.out = nn.Conv2d(32, 4, 1)

    def forward(self, x):
        kept = []
        for number, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.out(x)


def normed(before, after, kernel=3, stride=1):
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.SiLU())


class Split(nn.Module):
    """YOLO's block: half of the channels go through convolutions, and everything on the way is joined."""

    def __init__(self, width, count=2):
        super().__init__()
        half = width // 2
        self.first, self.last = normed(width, width, 1), normed((2 + count) * half, width, 1)
        self.inner = nn.ModuleList(nn.Sequential(normed(half, half), normed(half, half)) for _ in range(count))

    def forward(self, x):
        parts = [*self.first(x).chunk(2, 1)]
        for inner in self.inner:
            parts.append(parts[-1] + inner(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(
            normed(3, 32, 3, 2), normed(32, 64, 3, 2), Split(64), normed(64, 128, 3, 2), Split(128)
        )
        self.coarse, self.joined = nn.Sequential(normed(128, 192, 3, 2), Split(192)), normed(4 * 192, 192, 1)
        self.both, self.heads = Split(320), nn.ModuleList(nn.Conv2d(width, 64 + 20, 1) for width in (320, 192))

    def forward(self, x):
        fine = self.fine(x)
        parts = [self.coarse(fine)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        coarse = self.joined(torch.cat(parts, 1))
        both = self.both(torch.cat([F.interpolate(coarse, scale_factor=2.0, mode="nearest"), fine], 1))
        found = torch.cat([head(y).flatten(2) for head, y in zip(self.heads, (both, coarse), strict=True)], 2)
        edges, classes = found.split([64, 20], 1)
        edges = (edges.view(1, 4, 16, -1).softmax(2) * torch.arange(16.0).view(1, 1, 16, 1)).sum(2)
        return torch.cat([edges, classes.sigmoid()], 1)


class Deeplab(nn.Module):
    """Dilated layers behind a stem, and kernels that reach as far as the picture."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(normed(3, 32, stride=2), normed(32, 64, stride=2), normed(64, 128, stride=2))
        self.layers = nn.Sequential(*(self.dilated(128, 128, by) for by in (2, 2, 4, 4)))
        self.far = nn.ModuleList([normed(128, 64, 1), *(self.dilated(128, 64, by) for by in (12, 24, 36))])
        self.back = nn.Sequential(normed(256, 64, 1), nn.Conv2d(64, 21, 1))

    def dilated(self, before, after, by):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=by, dilation=by), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x):
        found = self.layers(self.front(x))
        found = self.back(torch.cat([far(found) for far in self.far], 1))
        return F.interpolate(found, size=x.shape[-2:], mode="bilinear")


class LargeKernels(nn.Module):
    """RepLKNet's blocks: large kernels of every channel by itself, and a feed-forward."""

    def __init__(self):
        super().__init__()
        self.front = normed(3, 64, stride=4)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(64, 64, size, padding=size // 2, groups=64),
                nn.BatchNorm2d(64),
                nn.Conv2d(64, 256, 1),
                nn.GELU(),
                nn.Conv2d(256, 64, 1),
            )
            for size in (31, 29, 13)
        )

    def forward(self, x):
        x = self.front(x)
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


class Modulated(nn.Module):
    """A convolution whose kernels depend on a style."""

    def __init__(self, before, after):
        super().__init__()
        self.kernels, self.style = nn.Parameter(torch.randn(after, before, 3, 3)), nn.Linear(256, before)

    def forward(self, x, style):
        kernels = self.kernels * (1 + self.style(style)).view(1, -1, 1, 1)
        kernels = kernels * torch.rsqrt(kernels.pow(2).sum((1, 2, 3), keepdim=True) + 1e-8)
        return F.leaky_relu(F.conv2d(x, kernels, padding=1), 0.2)


class Style(nn.Module):
    """StyleGAN's generator."""

    def __init__(self):
        super().__init__()
        self.mapped = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2)) for _ in range(4)))
        self.start, self.back = nn.Parameter(torch.randn(1, 256, 4, 4)), nn.Conv2d(64, 3, 1)
        self.layers = nn.ModuleList(Modulated(*sizes) for sizes in ((256, 256), (256, 256), (256, 128), (128, 64)))

    def forward(self, z):
        style, x = self.mapped(z), self.start
        for layer in self.layers:
            x = layer(F.interpolate(x, scale_factor=2, mode="bilinear"), style)
        return self.back(x)


def normed_3d(before, after, stride=1):
    return nn.Sequential(nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU())


class Video(nn.Module):
    """R3D's layers."""

    def __init__(self):
        super().__init__()
        self.front = nn.Conv3d(3, 32, (3, 7, 7), (1, 2, 2), (1, 3, 3))
        sizes = ((32, 1), (64, 2), (128, 2), (256, 2))
        self.first = nn.ModuleList(
            normed_3d(before, after, stride)
            for (before, _), (after, stride) in zip(((32, 1), *sizes), sizes, strict=False)
        )
        self.second = nn.ModuleList(normed_3d(after, after) for after, _ in sizes)
        self.back = nn.Linear(256, 400)

    def forward(self, x):
        x = self.front(x).relu()
        for first, second in zip(self.first, self.second, strict=True):
            x = first(x)
            x = x + second(x)
        return self.back(x.mean((2, 3, 4)))


class UNet3d(nn.Module):
    """Two levels, as for volumes of a scan."""

    def __init__(self):
        super().__init__()
        self.high, self.low = (nn.Sequential(normed_3d(*s), normed_3d(s[1], s[1])) for s in ((1, 16), (16, 32)))
        self.up, self.join = nn.ConvTranspose3d(32, 16, 2, 2), normed_3d(32, 16)
        self.down, self.back = nn.MaxPool3d(2), nn.Conv3d(16, 3, 1)

    def forward(self, x):
        high = self.high(x)
        return self.back(self.join(torch.cat([self.up(self.low(self.down(high))), high], 1)))


class Dense(nn.Module):
    """ESRGAN's block."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(32 + 16 * n, 16 if n < 4 else 32, 3, padding=1) for n in range(5))

    def forward(self, x):
        parts = [x]
        for conv in self.convs:
            parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * parts[-1]


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.blocks = nn.Conv2d(3, 32, 3, padding=1), nn.Sequential(*(Dense() for _ in range(4)))
        self.wide, self.back = nn.Conv2d(32, 128, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x):
        y = self.front(x)
        return self.back(F.leaky_relu(F.pixel_shuffle(self.wide(y + self.blocks(y)), 2), 0.2))


class Crossed(nn.Module):
    """Attention of places to each other and to a text, and a gated feed-forward."""

    def __init__(self, width, other=256, heads=8):
        super().__init__()
        self.heads, self.front = heads, nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.query = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.given, self.outs = (
            nn.Linear(other, 2 * width, bias=False),
            nn.ModuleList(nn.Linear(width, width) for _ in range(2)),
        )
        self.gated, self.back = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def attend(self, query, key, value):
        sides = [
            side.view(*side.shape[:2], self.heads, side.shape[2] // self.heads).transpose(1, 2)
            for side in (query, key, value)
        ]
        return F.scaled_dot_product_attention(*sides).transpose(1, 2).reshape(query.shape)

    def forward(self, x, given):
        y = self.front(x).flatten(2).transpose(1, 2)
        y = y + self.outs[0](self.attend(*self.own(self.norms[0](y)).chunk(3, -1)))
        y = y + self.outs[1](self.attend(self.query(self.norms[1](y)), *self.given(given).chunk(2, -1)))
        a, gate = self.gated(self.norms[2](y)).chunk(2, -1)
        y = y + self.back(a * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(x.shape)


class Timed(nn.Module):
    """Two convolutions with a bias that depends on the time."""

    def __init__(self, before, after):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for width in (before, after))
        self.convs = nn.ModuleList(nn.Conv2d(width, after, 3, padding=1) for width in (before, after))
        self.bias, self.skip = nn.Linear(512, after), nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        y = self.convs[0](F.silu(self.norms[0](x))) + self.bias(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](y)))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Conv2d(4, 128, 3, padding=1), nn.Conv2d(128, 4, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.blocks = nn.ModuleList(Timed(a, b) for a, b in ((128, 128), (128, 256), (384, 128)))
        self.crossed = nn.ModuleList(Crossed(width) for width in (128, 256, 128))
        self.down, self.norm = nn.Conv2d(128, 128, 3, 2, 1), nn.GroupNorm(32, 128)

    def forward(self, x, time, given):
        angles = time[:, None] * torch.exp(torch.arange(64) * (-math.log(10000) / 64))
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.crossed[0](self.blocks[0](self.front(x), time), given)
        y = self.crossed[1](self.blocks[1](self.down(x), time), given)
        y = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), x], 1)
        return self.back(F.silu(self.norm(self.crossed[2](self.blocks[2](y, time), given))))


class Places(nn.Module):
    """Attention among the places of a picture, as a VAE has it: v · softmax(…)ᵀ."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.query, self.key, self.value, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (side(y).flatten(2) for side in (self.query, self.key, self.value))
        weights = torch.softmax(torch.bmm(q.permute(0, 2, 1), k) * q.shape[1] ** -0.5, 2)
        return x + self.out(torch.bmm(v, weights.permute(0, 2, 1)).reshape(x.shape))


def decoder():
    def up(before, after):
        return [
            nn.GroupNorm(32, before),
            nn.SiLU(),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(before, after, 3, padding=1),
        ]

    parts = [nn.Conv2d(4, 128, 3, padding=1), Places(128), *up(128, 128), *up(128, 64)]
    net = nn.Sequential(*parts, nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1))
    return net, (torch.randn(1, 4, 32, 32),), ["x"], None


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner = nn.Embedding(2000, 128), nn.GRU(128, 128, 2, batch_first=True, bidirectional=True)
        self.score, self.out = nn.Linear(256, 1), nn.Linear(256, 50)

    def forward(self, ids):
        y, _ = self.inner(self.words(ids))
        return self.out((torch.softmax(self.score(torch.tanh(y)), 1) * y).sum(1))


class Dlrm(nn.Module):
    """Embeddings of what was clicked and what is known of a user, and how each goes with each."""

    def __init__(self):
        super().__init__()
        self.known = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(5000, 64, mode="sum") for _ in range(8))
        self.out = nn.Sequential(nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())
        self.pairs = torch.tril_indices(9, 9, -1)

    def forward(self, x, ids):
        known = self.known(x)
        all = torch.stack([known, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        together = (all @ all.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.out(torch.cat([known, together], 1))


def sound(model, *shape):
    return Call(model, lambda m, x: m(x)[0]), (torch.randn(1, *shape),), ["x"], None


def plain(model, *args, names=("x",)):
    return model, args, list(names), None


def halved(name):
    """One of the models in f16, as many are published."""
    model, args, names, dynamic = OTHERS[name]()
    return model.half(), tuple(arg.half() if arg.is_floating_point() else arg for arg in args), names, dynamic


OTHERS = {
    "deberta": lambda: text(
        hf.DebertaV2Model(
            hf.DebertaV2Config(**SMALL, relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"])
        )
    ),
    "gpt2": lambda: text(
        hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=3, n_embd=384, n_head=6, use_cache=False, vocab_size=8000)), mask=False
    ),
    "llama": lambda: text(hf.LlamaForCausalLM(hf.LlamaConfig(**CAUSAL, use_cache=False)), mask=False),
    "llama_decode": llama_decode,
    "mamba": lambda: text(
        hf.MambaModel(hf.MambaConfig(num_hidden_layers=2, hidden_size=128, use_cache=False, vocab_size=1000)),
        mask=False,
    ),
    "fnet": lambda: text(
        hf.FNetModel(hf.FNetConfig(num_hidden_layers=2, hidden_size=256, intermediate_size=1024)), mask=False
    ),
    "whisper": lambda: sound(
        hf.WhisperModel(
            hf.WhisperConfig(
                encoder_layers=2,
                decoder_layers=1,
                d_model=384,
                encoder_attention_heads=6,
                decoder_attention_heads=6,
                encoder_ffn_dim=1536,
                decoder_ffn_dim=1536,
            )
        ).encoder,
        80,
        3000,
    ),
    "wav2vec2": lambda: sound(hf.Wav2Vec2Model(hf.Wav2Vec2Config(**SMALL)), 16000),
    "conformer": lambda: plain(Conformer(), torch.randn(1, 300, 80)),
    "hifigan": lambda: plain(HifiGan(), torch.randn(1, 80, 60)),
    "wavenet": lambda: plain(WaveNet(), torch.randn(1, 1, 4000)),
    "segformer": lambda: picture(hf.SegformerForSemanticSegmentation(hf.SegformerConfig(num_labels=20)), 256),
    "dinov2": lambda: picture(
        hf.Dinov2Model(hf.Dinov2Config(hidden_size=384, num_hidden_layers=4, num_attention_heads=6)), 224
    ),
    "mobilevit": lambda: picture(hf.MobileViTForImageClassification(hf.MobileViTConfig(num_labels=100)), 256),
    "efficientnet": lambda: picture(
        hf.EfficientNetForImageClassification(
            hf.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=100)
        ),
        224,
    ),
    "regnet": lambda: picture(
        hf.RegNetForImageClassification(
            hf.RegNetConfig(embedding_size=32, hidden_sizes=[72, 168, 408, 912], depths=[2, 4, 6, 1], groups_width=24)
        ),
        224,
    ),
    "unet": lambda: plain(UNet(), torch.randn(1, 3, 128, 128)),
    "detector": lambda: plain(Detector(), torch.randn(1, 3, 256, 256)),
    "super_resolution": lambda: plain(SuperResolution(), torch.randn(1, 3, 64, 64)),
    "deeplab": lambda: plain(Deeplab(), torch.randn(1, 3, 256, 256)),
    "large_kernels": lambda: plain(LargeKernels(), torch.randn(1, 3, 224, 224)),
    "style": lambda: plain(Style(), torch.randn(1, 256)),
    "video": lambda: plain(Video(), torch.randn(1, 3, 8, 112, 112)),
    "unet_3d": lambda: plain(UNet3d(), torch.randn(1, 1, 32, 64, 64)),
    "diffusion": lambda: plain(
        Diffusion(),
        torch.randn(1, 4, 32, 32),
        torch.tensor([3.0]),
        torch.randn(1, 77, 256),
        names=("x", "time", "given"),
    ),
    "decoder": decoder,
    "gru": lambda: plain(Gru(), torch.randint(0, 900, (1, 80)), names=("ids",)),
    "dlrm": lambda: plain(Dlrm(), torch.randn(16, 13), torch.randint(0, 5000, (16, 8, 4)), names=("x", "ids")),
    "gpt2_f16": lambda: halved("gpt2"),
    "llama_decode_f16": lambda: halved("llama_decode"),
    "unet_f16": lambda: halved("unet"),
    "wav2vec2_f16": lambda: halved("wav2vec2"),
}


if __name__ == "__main__":
    write(OTHERS, *sys.argv[1:])
