"""Writes a draft as the commented YAML of a schedule, and finds the file for it."""

import os
import shlex
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any

from growctl.draft.recipe import BUDGETS, DECAY_SHARE, RAMP_SHARE, Draft
from growctl.draft.sizes import NEOX_VOCABULARY, ladder_text
from growctl.draft.wish import Wish
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
from growctl.schedule.errors import shown
from growctl.schedule.fields import parse_count
from growctl.schedule.files import ENDINGS
from growctl.text.formatting import short_count
from model.errors import UserError

WIDTH = 118
"""Most characters of a line of comment."""

_TEMPLATE = """\
# {ladder} parameters in {growths}, on {tokens} tokens. Written by:
#   {command}
# Every value is yours to change. docs/schedules.md has the rules behind them, with their sources. `growctl plan` on
# this file shows what it costs; `growctl run` trains it.

seed: 0

data:
{data}
# {origin}. The growths of this ladder add {added}; the width stays.
model:
  family: tokenformer
  num_layers: {num_layers}
  hidden_size: {shape.width}
  num_heads: {shape.num_heads}
{vocabulary}
# Every growth multiplies the parameters by about the same factor. The last size has {reached:,} ({wanted} asked for:
# {miss:+.1%}), and the ladder reads {ratio:.3g} tokens for each of them. The last size trains on half of the tokens or
# more; the earlier ones share the rest in proportion to their parameters, which stand on the right.
stages:
{stages}
# A finished model of {smaller} too: a branch of a tenth of its stage's steps, over which the rate decays. The ladder
# goes on as if there were none.
releases: all

# {draft.batch_tokens:,} tokens per step, {draft.num_steps:,} steps: near the best batch for these FLOPs, and at most
# the published one.
training:
  sequence_length: {shape.sequence_length}
  batch_size: {draft.batch_size}
  precision: {precision}

# One warm-up, then constant, then one decay at the end of the ladder, so that growths meet a constant rate. The peak
# follows from the last size; it is not tuned.
learning_rate:
  peak: {peak}
  shape: wsd
  span: ladder
  warmup_steps: {draft.warmup_steps}
  decay: {decay:g}  # of all steps

# {growth}
growth:
  preset: growctl-default
  ramp: {ramp:g}  # of each grown stage's steps
  when: fixed  # grow once a stage's tokens are used up; slope would grow once its loss flattens

evaluation:
  every: {draft.evaluate_every}
  max_sequences: {draft.evaluate_sequences}  # {evaluated}

checkpoint:
  every: {draft.save_every}  # a kill costs this many steps at most

# The last size from scratch at three budgets, in multiples of the ladder's FLOPs, so that the report can find the one
# at which training from scratch reaches the ladder's loss. Together they cost {budget:g} times the ladder;
# `--no-controls` trains the ladder alone. For the strictest comparison, add `- kind: best-scratch`: every smaller size
# from scratch too, each for the ladder's FLOPs. To compare every release with its own size from scratch, add `- kind:
# scratch-of-each-size`.
controls:
  - {{kind: tokenformer-scratch, budgets: {budgets}}}

# The machine. You may change this block at any time, also when you resume a run. For several machines: launch=slurm or
# launch=hostfile.
launch:
  devices: {devices}
  zero_stage: {zero_stage}{why}
{offload}  micro_batch_size: auto
{hardware}"""

_NEOX = f"  vocab_size: {NEOX_VOCABULARY}  # GPT-NeoX-20B's 50,277 entries, padded as published\n"
_DEVICE = """\
  hardware:  # assumptions that only `growctl plan` uses
    device: {device}
    mfu: 0.4  # not measured; `growctl plan --measure` measures it
"""
_NO_DEVICE = """\
  # For memory and time in the plan, name the device: launch.hardware.device=h100 launch.hardware.mfu=0.4
"""


def schedule_text(draft: Draft) -> str:
    """The whole schedule, with the reason of each value in a comment."""
    shape, wish, growths = draft.shape, draft.wish, len(draft.sizes) - 1
    reached = draft.sizes[-1].num_parameters
    zero_stage, offload = draft.sharding
    evaluated, share = draft.evaluate_sequences * shape.sequence_length, f"{draft.evaluation_share:.1%}"
    values: dict[str, Any] = {
        "draft": draft,
        "shape": shape,
        "ladder": ladder_text(draft.sizes),
        "growths": "one growth" if growths == 1 else f"{growths} growths",
        "tokens": short_count(sum(draft.train_tokens)),
        "command": _printable(init_command(wish)),
        "data": textwrap.indent(draft.source.block(shape), "  "),
        "origin": ("A published shape" if shape.published else "Narrower than any published shape")
        + (f" in the end, with {shape.num_layers} layers" if draft.deepens else ""),
        "added": " and ".join(["layers"] * draft.deepens + ["parameter tokens"] * draft.widens),
        "num_layers": draft.sizes[0].num_layers,
        "vocabulary": _NEOX if draft.source.vocabularies.of(shape) == NEOX_VOCABULARY else "",
        "reached": reached,
        "wanted": short_count(wish.params),
        "miss": reached / wish.params - 1,
        "ratio": sum(draft.train_tokens) / reached,
        "stages": _stages(draft),
        "smaller": "the smaller size" if growths == 1 else "each smaller size",
        "precision": "bf16" if shape.published else "auto",
        "peak": _rate(draft.peak),
        "decay": DECAY_SHARE,
        "growth": " ".join(
            ["New layers add zeros at first."] * draft.deepens
            + ["New tokens start as large as the old ones, and a ramp raises their keys from 0."] * draft.widens
            + ["So the growth itself changes nothing (docs/growing.md)."]
        ),
        "ramp": RAMP_SHARE,
        "evaluated": f"{evaluated:,} tokens; all evaluations cost {share} of the FLOPs of training",
        "budget": sum(BUDGETS),
        "budgets": list(BUDGETS),
        "devices": wish.gpus or "auto",
        "zero_stage": zero_stage,
        "why": "" if zero_stage == 1 else "  # lower stages do not fit into the devices' memory",
        "offload": "" if offload == "none" else f"  offload: {offload}  # does not fit otherwise\n",
        "hardware": _NO_DEVICE if wish.device is None else _DEVICE.format(device=wish.device),
    }
    return _wrapped(_TEMPLATE.format(**values))


def new_file(file: str) -> Path:
    """The path of a file to write. Raises UserError if it exists, or cannot hold a schedule."""
    path = Path(file)
    if os.path.lexists(path):
        raise UserError(f"{shown(file)}: exists already, and init replaces no file; name another, or remove it")
    if path.suffix not in ENDINGS:
        raise UserError(f"{shown(file)}: the file of a schedule ends in .yaml; write {shown(f'{file}.yaml')}")
    if not RUN_NAME.fullmatch(path.stem):
        raise UserError(f"{shown(file)}: would name the run {shown(path.stem)}; a run's name is {NAME_ALLOWED}")
    if not path.parent.is_dir():
        raise UserError(f"{shown(file)}: there is no folder {shown(str(path.parent))}; create it first")
    return path


def init_command(wish: Wish) -> str:
    """The command that drafts the same schedule again."""
    options = {
        "--params": _count(wish.params),
        "--base": wish.base and _count(wish.base),
        "--tokens": wish.tokens and _count(wish.tokens),
        "--data": wish.data,
        "--gpus": wish.gpus,
        "--device": wish.device,
    }
    given = [f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return " ".join(["growctl init", *given, *(["--grow-depth"] if wish.grow_depth else [])])


def _stages(draft: Draft) -> str:
    text, before = "", draft.sizes[0].num_layers
    for size, tokens in zip(draft.sizes, draft.train_tokens, strict=True):
        deeper = "" if size.num_layers == before else f"num_layers: {size.num_layers}, "
        before = size.num_layers
        text += (
            f"  - {{name: {size.name}, {deeper}attention_tokens: {size.attention_tokens}, "
            f"ffn_tokens: {size.ffn_tokens}, train_tokens: {short_count(tokens)}}}  # {size.num_parameters:,}\n"
        )
    return text


def _wrapped(text: str) -> str:
    """`text` with each paragraph of comments that begin a line wrapped; a command in them stays on its line."""
    parts: list[str] = []
    for is_comment, lines in groupby(text.split("\n"), lambda line: line.startswith("# ") and line[2] != " "):
        if is_comment:
            paragraph = " ".join(line.removeprefix("# ") for line in lines)
            lines = iter(
                textwrap.wrap(
                    paragraph,
                    WIDTH,
                    initial_indent="# ",
                    subsequent_indent="# ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        parts += lines
    return "\n".join(parts)


def _count(count: int) -> str:
    """350000000 -> 350M, if that loses nothing."""
    short = short_count(count)
    return short if parse_count(short) == count else str(count)


def _rate(rate: float) -> str:
    """0.0006 -> 6e-4."""
    digits, exponent = f"{rate:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _printable(text: str) -> str:
    """`text` for a comment: a line feed in a path must not end it."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
