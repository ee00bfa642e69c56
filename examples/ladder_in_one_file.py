"""A growth ladder in one file: train a small Tokenformer, grow it twice by parameter tokens and once in depth.

    python examples/ladder_in_one_file.py                  # under a minute on two CPU cores
    python examples/ladder_in_one_file.py --text book.txt  # your own text

This is what `growctl run` does, without what makes it safe for weeks of compute: no DeepSpeed, checkpoints, ledger or
controls. It needs PyTorch and nothing of growctl. tests/test_examples.py runs both on the same text, seed and order:
losses, parameters and Adam moments agree.

The model is the Tokenformer of arXiv 2410.23168. Shapes: B batch, T sequence, D model width, H heads, E head width,
N parameter tokens, V vocabulary. Losses are in nats per token.
"""

import argparse
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATTENTIONS = ("query", "key", "value", "projection", "ffn")


@dataclass(frozen=True)
class Stage:
    """One size of the model and how long it trains."""

    attention_tokens: int
    """Parameter tokens in each of query, key, value and projection."""
    ffn_tokens: int
    num_layers: int
    steps: int


@dataclass(frozen=True)
class Recipe:
    """Everything else. The defaults are growctl's, except for the sizes."""

    stages: tuple[Stage, ...] = (
        Stage(attention_tokens=16, ffn_tokens=64, num_layers=2, steps=300),
        Stage(attention_tokens=32, ffn_tokens=128, num_layers=2, steps=200),
        Stage(attention_tokens=64, ffn_tokens=256, num_layers=2, steps=200),
        Stage(attention_tokens=64, ffn_tokens=256, num_layers=3, steps=300),
    )
    vocab_size: int = 256
    width: int = 64
    num_heads: int = 4
    sequence_length: int = 64
    batch_size: int = 32
    peak: float = 6e-3
    """The learning rate: one linear warm-up, then constant, then one linear decay to 0 at the end of the ladder."""
    warmup_steps: int = 30
    decay: float = 0.25
    """Length of the decay, as a share of the ladder's steps."""
    weight_decay: float = 0.1
    gradient_clipping: float = 1.0
    ramp: float = 0.1
    """Over which share of a stage's steps the keys of new tokens rise from 0 to their drawn values."""
    seed: int = 0

    def learning_rate(self, step: int) -> float:
        """The rate of update `step` of the whole ladder, counted from 0."""
        total = sum(stage.steps for stage in self.stages)
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        decay_steps = min(round(self.decay * total), total - self.warmup_steps)
        return self.peak * min(1.0, (total - step) / max(1, decay_steps))


class Pattention(nn.Module):
    """A linear layer made of tokens: data tokens attend to N learnable pairs of a key and a value (equation 4).

    A growth appends a pair of parameters, a *generation*, and leaves the old ones alone: they keep their names, values
    and moments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.key_tokens, self.value_tokens = nn.ParameterDict(), nn.ParameterDict()
        self.ramps: dict[str, float] = {}
        """The factor g on each generation's keys."""

    @property
    def num_tokens(self) -> int:
        return sum(len(key_ND) for key_ND in self.key_tokens.values())

    def forward(self, x_BTD: Tensor) -> Tensor:
        key_ND = torch.cat([self.ramps[generation] * key_ND for generation, key_ND in self.key_tokens.items()])
        value_ND = torch.cat(list(self.value_tokens.values()))
        # New keys with g = 0 score 0 and add nothing to the norm, and tau does not count them: the old function.
        # With g = 1, tau is sqrt(N), the published formula.
        tau = math.sqrt(sum(self.ramps[generation] ** 2 * len(key) for generation, key in self.key_tokens.items()))
        score_BTN = x_BTD @ key_ND.mT
        return F.gelu(score_BTN * (tau / score_BTN.norm(dim=-1, keepdim=True))) @ value_ND


class Block(nn.Module):
    """x += projection(attention(norm(x))); x += ffn(norm(x)). The norms have no parameters."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.projection, self.ffn = (Pattention() for _ in PATTENTIONS)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTD = F.layer_norm(x_BTD, x_BTD.shape[-1:])
        q_BHTE, k_BHTE, v_BHTE = (
            layer(h_BTD).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        out_BHTE = F.scaled_dot_product_attention(rotate(q_BHTE), rotate(k_BHTE), v_BHTE, is_causal=True)
        x_BTD = x_BTD + self.projection(out_BHTE.transpose(1, 2).flatten(-2))
        return x_BTD + self.ffn(F.layer_norm(x_BTD, x_BTD.shape[-1:]))


def rotate(x_BHTE: Tensor) -> Tensor:
    """Rotary embedding of the first quarter of each head (arXiv 2104.09864)."""
    width = x_BHTE.shape[-1] // 4
    frequency_R = 10000.0 ** -(torch.arange(0, width, 2) / width)
    angle_TR = (torch.arange(x_BHTE.shape[-2])[:, None] * frequency_R).repeat(1, 2)
    turned, rest = x_BHTE[..., :width], x_BHTE[..., width:]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((turned * angle_TR.cos() + torch.cat((-second, first), -1) * angle_TR.sin(), rest), dim=-1)


class Tokenformer(nn.Module):
    """Embedding, blocks, final norm; the output head is the embedding."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.embedding = nn.Embedding(recipe.vocab_size, recipe.width)
        self.embedding.weight.data = drawn("embedding.weight", self.embedding.weight.shape, 0.02, recipe.seed)
        self.blocks = nn.ModuleDict()
        self.final_norm = nn.LayerNorm(recipe.width)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT)
        for block in self.blocks.values():
            x_BTD = block(x_BTD)
        logits_BTV = F.linear(self.final_norm(x_BTD), self.embedding.weight)
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())

    def flops_per_token(self, sequence_length: int) -> int:
        """FLOPs of training on one data token: 2 a multiply-add; the backward pass counts as two forward passes."""
        attention = 2 * sequence_length * self.embedding.embedding_dim * len(self.blocks)
        return 6 * (sum(p.numel() for p in self.blocks.parameters()) + attention + self.embedding.weight.numel())


def drawn(name: str, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """Normal numbers that depend on the seed and the parameter's own name only, so nothing depends on the order."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def scatter(value: int) -> int:
    """SplitMix64: a bijection of 64-bit integers that separates neighbours."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def sample_start(index: int, num_tokens: int, sequence_length: int, seed: int) -> int:
    """Where sample `index` starts in the text. An epoch reads every window once, in an order of its own.

    The order is a function of the seed and the index alone, so one integer says how far training has come.
    """
    num_windows = num_tokens // sequence_length
    epoch, place = divmod(index, num_windows)
    epoch_key = key = scatter(scatter(seed) ^ epoch)
    bits = max(1, ((num_windows - 1).bit_length() + 1) // 2)
    round_keys = [key := scatter(key) for _ in range(6)]
    while True:  # a Feistel network permutes range(4 ** bits); places beyond the windows go through it again
        left, right = place >> bits, place % 2**bits
        for round_key in round_keys:
            left, right = right, left ^ scatter(round_key ^ right) % 2**bits
        place = left << bits | right
        if place < num_windows:
            return (scatter(epoch_key) + place * sequence_length) % num_tokens


class Ladder:
    """A model on its way up: `grow` to each stage, then take its steps."""

    def __init__(self, tokens: np.ndarray, recipe: Recipe) -> None:
        self.tokens, self.recipe = tokens, recipe
        self.model = Tokenformer(recipe)
        self.optimizer = torch.optim.AdamW(self.groups(set()), betas=(0.9, 0.95), eps=1e-8)
        self.step, self.stage_step, self.generation = 0, 0, -1
        self.stage = recipe.stages[0]
        self.flops = 0

    def groups(self, old: set[nn.Parameter]) -> list[dict[str, Any]]:
        """A parameter group of the matrices that are not `old`, which decay, and one of the vectors, which do not."""
        new = [parameter for parameter in self.model.parameters() if parameter not in old]
        matrices, vectors = ([p for p in new if p.ndim == dimensions] for dimensions in (2, 1))
        both = {"params": matrices, "weight_decay": self.recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}
        return [group for group in both if group["params"]]

    def grow(self, stage: Stage) -> None:
        """Adds parameter tokens and layers up to the size of `stage`, without changing what the model computes.

        Old moments stay. New parameters join the optimizer without any: Adam counts their steps from 0.
        """
        old, blocks = set(self.model.parameters()), self.model.blocks
        self.generation += 1
        sizes = dict.fromkeys(PATTENTIONS, stage.attention_tokens) | {"ffn": stage.ffn_tokens}
        # A new model's scale, or that of all old layers together, measured before anything is added.
        scales = dict.fromkeys(PATTENTIONS, (0.02, 2 / stage.num_layers / math.sqrt(self.recipe.width)))
        if blocks:
            scales = {name: scale(getattr(block, name) for block in blocks.values()) for name in PATTENTIONS}
            for name in ("projection", "ffn"):  # a new layer writes zeros to the residual stream
                scales[name] = scales[name][0], 0.0
        for block_id, block in blocks.items():
            for name, size in sizes.items():
                layer = getattr(block, name)
                if added := size - layer.num_tokens:
                    self.add_tokens(layer, f"blocks.{block_id}.{name}", added, scale([layer]), ramp=0.0)
        for number in range(len(blocks), stage.num_layers):
            blocks[str(number)] = Block(self.recipe.num_heads)
            for name, size in sizes.items():
                layer = getattr(blocks[str(number)], name)
                self.add_tokens(layer, f"blocks.{number}.{name}", size, scales[name], ramp=1.0)
        for group in self.groups(old):
            self.optimizer.add_param_group(group)
        self.stage, self.stage_step = stage, 0

    def add_tokens(self, layer: Pattention, name: str, size: int, stds: tuple[float, float], ramp: float) -> None:
        """Adds a generation of `size` tokens, with the standard deviations of its keys and of its values."""
        generation, shape, seed = str(self.generation), (size, self.recipe.width), self.recipe.seed
        for kind, std in zip(("key_tokens", "value_tokens"), stds, strict=True):
            getattr(layer, kind)[generation] = nn.Parameter(drawn(f"{name}.{kind}.{generation}", shape, std, seed))
        layer.ramps[generation] = ramp

    def train_step(self) -> float:
        """One update; returns the loss before it."""
        recipe = self.recipe
        ramp_steps = min(max(1, round(recipe.ramp * self.stage.steps)), self.stage.steps - 1)
        progress = min(1.0, (self.stage_step + 1) / (ramp_steps + 1))  # above 0, else new tokens get no gradient
        for layer in self.model.modules():
            if isinstance(layer, Pattention):
                layer.ramps = {generation: max(ramp, progress) for generation, ramp in layer.ramps.items()}
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate(self.step)
        loss = self.model(*self.batch())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.gradient_clipping)
        self.optimizer.step()
        self.step, self.stage_step = self.step + 1, self.stage_step + 1
        tokens_per_step = recipe.batch_size * recipe.sequence_length
        self.flops += tokens_per_step * self.model.flops_per_token(recipe.sequence_length)
        return loss.item()

    def batch(self) -> tuple[Tensor, Tensor]:
        """The samples of this step: inputs and targets, (B, T) each."""
        recipe, length = self.recipe, self.recipe.sequence_length
        first = self.step * recipe.batch_size
        starts = [sample_start(first + row, len(self.tokens), length, recipe.seed) for row in range(recipe.batch_size)]
        place_BT = np.array(starts)[:, None] + np.arange(length + 1)
        tokens_BT = torch.from_numpy(self.tokens[place_BT % len(self.tokens)].astype(np.int64))
        return tokens_BT[:, :-1], tokens_BT[:, 1:]


def scale(layers: Iterable[Pattention]) -> tuple[float, float]:
    """The root mean square of all keys and of all values of some layers."""
    layers = list(layers)
    keys = torch.cat([key_ND for layer in layers for key_ND in layer.key_tokens.values()])
    values = torch.cat([value_ND for layer in layers for value_ND in layer.value_tokens.values()])
    return keys.square().mean().sqrt().item(), values.square().mean().sqrt().item()


def main() -> None:
    """Climbs the ladder on the bytes of a text, and prints the cost and the loss of each stage."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    library = sorted(Path(argparse.__file__).parent.glob("*.py"))
    parser.add_argument("--text", type=Path, nargs="+", default=library, help="files; default: Python's own library")
    data = b"".join(path.read_bytes() for path in parser.parse_args().text)
    ladder = Ladder(np.frombuffer(data, np.uint8), Recipe())
    print(f"{'layers':>6} {'parameters':>10} {'tokens':>9} {'FLOPs so far':>12} {'at growth':>9} {'at the end':>10}")
    for stage in ladder.recipe.stages:
        ladder.grow(stage)
        losses = [ladder.train_step() for _ in range(stage.steps)]
        size = sum(parameter.numel() for parameter in ladder.model.parameters())
        tokens = ladder.step * ladder.recipe.batch_size * ladder.recipe.sequence_length
        cost, (first, last) = f"{tokens:>9,} {ladder.flops:>12.3g}", (losses[0], np.mean(losses[-20:]))
        print(f"{stage.num_layers:>6} {size:>10,} {cost} {first:>9.3f} {last:>10.3f}", flush=True)


if __name__ == "__main__":
    main()
