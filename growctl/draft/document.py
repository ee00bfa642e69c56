"""Writes a draft as the commented YAML of a schedule."""

import shlex
import textwrap

from growctl.draft.recipe import BUDGETS, DECAY_SHARE, RAMP_SHARE, Draft
from growctl.draft.sizes import NEOX_VOCABULARY, ladder_text
from growctl.draft.wish import Wish
from growctl.schedule.fields import parse_count
from growctl.text.formatting import short_count

WIDTH = 118
"""Most characters of a line of comment."""


def schedule_text(draft: Draft) -> str:
    """The whole schedule, with the reason of each value in a comment."""
    blocks = (
        _heading(draft),
        "seed: 0\n",
        _data(draft),
        _model(draft),
        _stages(draft),
        _releases(draft),
        _training(draft),
        _learning_rate(draft),
        _growth(draft),
        _intervals(draft),
        _controls(draft),
        _launch(draft),
    )
    return "\n".join(blocks)


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


def _heading(draft: Draft) -> str:
    growths = "one growth" if len(draft.sizes) == 2 else f"{len(draft.sizes) - 1} growths"
    first = f"{ladder_text(draft.sizes)} parameters in {growths}, on {short_count(sum(draft.train_tokens))} tokens"
    return (
        _comment(f"{first}. Written by:")
        + f"#   {_printable(init_command(draft.wish))}\n"
        + _comment(
            "Every value is yours to change. docs/schedules.md has the rules behind them, with their sources. `growctl "
            "plan` on this file shows what it costs; `growctl run` trains it."
        )
    )


def _data(draft: Draft) -> str:
    lines = draft.source.block(draft.shape).splitlines()
    return "".join(["data:\n", *(f"  {line}\n" for line in lines)])


def _model(draft: Draft) -> str:
    shape = draft.shape
    origin = "A published shape" if shape.published else "Narrower than any published shape"
    of_last = f" in the end, with {shape.num_layers} layers" if draft.deepens else ""
    grown = " and ".join(["layers"] * draft.deepens + ["parameter tokens"] * draft.widens)
    text = _comment(f"{origin}{of_last}. The growths of this ladder add {grown}; the width stays.") + (
        "model:\n"
        "  family: tokenformer\n"
        f"  num_layers: {draft.sizes[0].num_layers}\n"
        f"  hidden_size: {shape.width}\n"
        f"  num_heads: {shape.num_heads}\n"
    )
    if draft.source.vocabularies.of(shape) == NEOX_VOCABULARY:
        text += f"  vocab_size: {NEOX_VOCABULARY}  # GPT-NeoX-20B's 50,277 entries, padded as published\n"
    return text


def _stages(draft: Draft) -> str:
    reached, wanted = draft.sizes[-1].num_parameters, draft.wish.params
    text = _comment(
        f"Every growth multiplies the parameters by about the same factor. The last size has {reached:,} "
        f"({short_count(wanted)} asked for: {reached / wanted - 1:+.1%}), and the ladder reads "
        f"{sum(draft.train_tokens) / reached:.3g} tokens for each of them. The last size trains on half of the tokens "
        "or more; the earlier ones share the rest in proportion to their parameters, which stand on the right."
    )
    text += "stages:\n"
    before = draft.sizes[0].num_layers
    for size, tokens in zip(draft.sizes, draft.train_tokens, strict=True):
        deeper = "" if size.num_layers == before else f"num_layers: {size.num_layers}, "
        before = size.num_layers
        entry = (
            f"{{name: {size.name}, {deeper}attention_tokens: {size.attention_tokens}, ffn_tokens: {size.ffn_tokens}, "
            f"train_tokens: {short_count(tokens)}}}"
        )
        text += f"  - {entry}  # {size.num_parameters:,}\n"
    return text


def _training(draft: Draft) -> str:
    text = _comment(
        f"{draft.batch_tokens:,} tokens per step, {draft.num_steps:,} steps: near the best batch for these FLOPs, and "
        "at most the published one."
    )
    return text + (
        "training:\n"
        f"  sequence_length: {draft.shape.sequence_length}\n"
        f"  batch_size: {draft.batch_size}\n"
        f"  precision: {'bf16' if draft.shape.published else 'auto'}\n"
    )


def _learning_rate(draft: Draft) -> str:
    text = _comment(
        "One warm-up, then constant, then one decay at the end of the ladder, so that growths meet a constant rate. "
        "The peak follows from the last size; it is not tuned."
    )
    return text + (
        "learning_rate:\n"
        f"  peak: {_rate(draft.peak)}\n"
        "  shape: wsd\n"
        "  span: ladder\n"
        f"  warmup_steps: {draft.warmup_steps}\n"
        f"  decay: {DECAY_SHARE:g}  # of all steps\n"
    )


def _growth(draft: Draft) -> str:
    layers = ["New layers add zeros at first."] * draft.deepens
    tokens = ["New tokens start as large as the old ones, and a ramp raises their keys from 0."] * draft.widens
    text = _comment(" ".join([*layers, *tokens, "So the growth itself changes nothing (docs/growing.md)."]))
    return text + (
        "growth:\n"
        "  preset: growctl-default\n"
        f"  ramp: {RAMP_SHARE:g}  # of each grown stage's steps\n"
        "  when: fixed  # grow once a stage's tokens are used up; slope would grow once its loss flattens\n"
    )


def _releases(draft: Draft) -> str:
    smaller = "the smaller size" if len(draft.sizes) == 2 else "each smaller size"
    return (
        _comment(
            f"A finished model of {smaller} too: a branch of a tenth of its stage's steps, over which the rate decays. "
            "The ladder goes on as if there were none."
        )
        + "releases: all\n"
    )


def _intervals(draft: Draft) -> str:
    tokens = draft.evaluate_sequences * draft.shape.sequence_length
    return (
        f"evaluation:\n  every: {draft.evaluate_every}\n  max_sequences: {draft.evaluate_sequences}"
        f"  # {tokens:,} tokens; all evaluations cost {draft.evaluation_share:.1%} of the FLOPs of training\n\n"
        f"checkpoint:\n  every: {draft.save_every}  # a kill costs this many steps at most\n"
    )


def _controls(draft: Draft) -> str:
    text = _comment(
        "The last size from scratch at three budgets, in multiples of the ladder's FLOPs, so that the report can "
        "find the one at which training from scratch reaches the ladder's loss. "
        f"Together they cost {sum(BUDGETS):g} times the ladder; `--no-controls` trains the ladder alone. For the "
        "strictest comparison, add `- kind: best-scratch`: every smaller size from scratch too, each for the "
        "ladder's FLOPs. To compare every release with its own size from scratch, add `- kind: scratch-of-each-size`."
    )
    budgets = ", ".join(f"{budget:.1f}" for budget in BUDGETS)
    return text + f"controls:\n  - {{kind: tokenformer-scratch, budgets: [{budgets}]}}\n"


def _launch(draft: Draft) -> str:
    wish, (zero_stage, offload) = draft.wish, draft.sharding
    text = _comment(
        "The machine. You may change this block at any time, also when you resume a run. For several machines: "
        "launch=slurm or launch=hostfile."
    )
    why = "" if zero_stage == 1 else "  # lower stages do not fit into the devices' memory"
    text += f"launch:\n  devices: {wish.gpus or 'auto'}\n  zero_stage: {zero_stage}{why}\n"
    if offload != "none":
        text += f"  offload: {offload}  # does not fit otherwise\n"
    text += "  micro_batch_size: auto\n"
    if wish.device is None:
        return text + (
            "  # For memory and time in the plan, name the device: launch.hardware.device=h100 "
            "launch.hardware.mfu=0.4\n"
        )
    return text + (
        "  hardware:  # assumptions that only `growctl plan` uses\n"
        f"    device: {wish.device}\n"
        "    mfu: 0.4  # not measured; `growctl plan --measure` measures it\n"
    )


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


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
