"""Writes a draft as the commented YAML of a schedule."""

import json
import shlex
import textwrap
from collections.abc import Sequence

from growctl.draft.recipe import BUDGETS, DECAY_SHARE, RAMP_SHARE, AnyDraft, Draft, Wish, WishOptions
from growctl.draft.sizes import NEOX_VOCABULARY
from growctl.law.formula import Recipe
from growctl.schedule.fields import parse_count
from growctl.text.formatting import short_count

_TEMPLATE = """\
# {ladder} parameters on {tokens} tokens. Written by:
#   {command}
{remark}# Every value is yours to change. docs/schedules.md has the rules behind them, with their sources. `growctl
# plan` on this file shows what it costs; `growctl run` trains it.

seed: 0
{start}
data:
{data}
# {origin}
model:
{model}
# Parameters stand on the right. The stages read {ratio:.3g} tokens for each of the last size's.
stages:
{stages}
# {draft.batch_tokens:,} tokens per step, {draft.num_steps:,} steps.
training:
  sequence_length: {draft.sequence_length}
  batch_size: {draft.batch_size}
  precision: {precision}

{rules}
evaluation:
  every: {draft.evaluate_every}
  max_sequences: {max_sequences}

checkpoint:
  every: {draft.save_every}  # a kill costs this many steps at most

{controls}
# The machine. You may change this block at any time, also when you resume a run. For several machines:
# launch=slurm or launch=hostfile.
launch:
  devices: {devices}
  zero_stage: {draft.sharding[0]}
  offload: {draft.sharding[1]}
  micro_batch_size: auto
{hardware}"""

RULES = """\
# {about}
learning_rate:
  peak: {draft.peak:g}
  shape: wsd
  span: ladder
  warmup_steps: {draft.warmup_steps}
  decay: {decay:g}  # of all steps

# {why}
optimizer: {{name: {draft.optimizer}}}

# The growth itself changes nothing (docs/growing.md).
growth:
{growth}
"""
"""The rate, the optimizer and growths."""

_MODEL = """\
  family: tokenformer
  num_layers: {draft.sizes[0].num_layers}
  hidden_size: {draft.shape.width}
  num_heads: {draft.shape.num_heads}
"""
_ABOUT = """\
One warm-up, then constant, then one decay at the end of the ladder, so that growths meet a constant rate. The peak
# is not tuned for this schedule."""
_GROWTH = """\
  preset: growctl-default
  ramp: {ramp:g}  # of each grown stage's steps, over which the keys of new tokens rise from 0
  when: fixed  # grow once a stage's tokens are used up; slope would grow once its loss flattens"""
_RELEASES = "\nreleases: all  # finish each smaller size too, in a branch of a tenth of its stage's steps\n"
_CONTROLS = """\
# What the ladder is compared with: the last size from scratch at three budgets, in multiples of the ladder's FLOPs, so
# that the report can find the one at which training from scratch reaches the ladder's loss; and every smaller size from
# scratch for the ladder's FLOPs, because the best size from scratch is the strongest opponent. Together they train
# {cost:.1f} times the ladder's FLOPs, as equal training is done once. `--no-controls` leaves them out.
controls:
  - {{kind: tokenformer-scratch, budgets: {budgets}}}
  - kind: best-scratch
{more}"""
_NEOX = f"  vocab_size: {NEOX_VOCABULARY}  # GPT-NeoX-20B's 50,277 entries, padded as published\n"
_DEVICE = """\
  hardware:  # assumptions that only `growctl plan` uses
    device: {device}
    mfu: 0.4  # not measured; `growctl plan --measure` measures it
"""
_NO_DEVICE = """\
  # For memory and time in the plan, name the device: launch.hardware.device=h100 launch.hardware.mfu=0.4
"""
_OPTIMIZERS = {
    "muon": "Muon ends lower than AdamW, from scratch and growing (docs/growing.md). It does not clip gradients.",
    "adamw": "Muon would end lower (docs/growing.md), but its momentum cannot leave the devices.",
}


def filled_in(
    draft: AnyDraft, sizes: Sequence[int], *, precision: str = "auto", max_sequences: str = "", **values: str
) -> str:
    """The text of a schedule whose stages have `sizes` parameters, with the reason of each value in a comment."""
    total, wish = sum(draft.train_tokens), draft.wish
    return _TEMPLATE.format(
        draft=draft,
        ladder=" -> ".join(map(short_count, sizes)),
        tokens=short_count(total),
        command=init_command(wish),
        remark="".join(f"# {line}\n" for line in textwrap.wrap(draft.remark, 118)),
        start=f"\nstart:\n  checkpoint: {json.dumps(draft.start)}\n" if draft.start else "",
        ratio=total / sizes[-1],
        precision=precision,
        max_sequences=max_sequences or draft.evaluate_sequences,
        devices=wish.gpus or "auto",
        hardware=_NO_DEVICE if wish.device is None else _DEVICE.format(device=wish.device),
        **values,
    )


def schedule_text(draft: Draft) -> str:
    """The whole schedule of a ladder of Tokenformers."""
    shape, known = draft.shape, draft.recipe.conditions if draft.recipe else {}
    vocabulary = _NEOX if draft.source.vocabularies.of(shape) == NEOX_VOCABULARY else ""
    growth, why = _GROWTH.format(ramp=RAMP_SHARE), _OPTIMIZERS[draft.optimizer]
    usual = RULES.format(draft=draft, about=_ABOUT, decay=DECAY_SHARE, why=why, growth=growth)
    more = "  - kind: ungrown\n" if draft.start else ""
    controls = _CONTROLS.format(cost=draft.controls_cost, budgets=list(BUDGETS), more=more)
    return filled_in(
        draft,
        [size.num_parameters for size in draft.sizes],
        data=textwrap.indent(draft.source.block(shape), "  "),
        origin=f"{'A published' if shape.published else 'Narrower than any published'} shape.",
        model=_MODEL.format(draft=draft) + vocabulary,
        stages=_stages(draft) + (_RELEASES if len(draft.sizes) > 1 else ""),
        precision="bf16" if shape.published else str(known.get("precision", "auto")),
        rules=_rules(draft.recipe) if draft.recipe else usual,
        max_sequences=json.dumps(known.get("evaluation.max_sequences", draft.evaluate_sequences)),
        controls=controls if draft.grows else "controls: []\n",
    )


def _rules(recipe: Recipe) -> str:
    """The rate, the optimizer and growths of a law's runs."""
    from omegaconf import OmegaConf  # slow

    blocks = OmegaConf.create()
    for key, value in (recipe.conditions | {"learning_rate.peak": recipe.peak}).items():
        if key.startswith(("learning_rate.", "optimizer.", "growth.")):
            OmegaConf.update(blocks, key, value)
    return "# As in the law's runs.\n" + OmegaConf.to_yaml(blocks)


def init_command(wish: WishOptions) -> str:
    """The command that drafts the same schedule again."""
    words = ["growctl init"]
    for name, value in wish.model_dump(exclude={"grow_depth"}, exclude_none=True).items():
        text = _count(value) if isinstance(value, int) else f"{value:.17g}" if isinstance(value, float) else value
        words.append(f"--{'from' if name == 'start' else name} {shlex.quote(text)}")
    return " ".join([*words, *["--grow-depth"] * (isinstance(wish, Wish) and wish.grow_depth)])


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


def _count(count: int) -> str:
    """350000000 -> 350M, if that loses nothing."""
    short = short_count(count)
    return short if parse_count(short) == count else str(count)
