"""Changes one thing at a time about growing with Muon: what is kept, copied and added, where, and when.

    python -m benchmarks.muon_growth run --directory DIR --text TEXT [--seeds 0] [--only '20-depth*']
    python -m benchmarks.muon_growth table --directory DIR    # results/muon_growth.json

Batch and width are the quickstart's, TEXT is that of benchmarks/three_questions.py. Rows at 20 cost the quickstart's
7.24e12 FLOPs, those at 100 five times as much. `tokens` grows from 164k to 262k parameters, `depth` from 2 layers to 4;
each row but the first of its kind has one thing changed. Seed 0 runs every row, the other seeds those that lead.
"""

from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row
from benchmarks.three_questions import other_text

RESULTS = Path(__file__).resolve().parent / "results" / "muon_growth.json"
BUDGETS = {20: 7.24e12, 100: 3.62e13}
"""FLOPs by training tokens a parameter of the quickstart's last size."""

LARGE = "attention_tokens: 64, ffn_tokens: 256"
JUMP = "growth.allow_jump=true"
INSIDE_DECAY = ("learning_rate.decay=1.0", "growth.rewarmup={steps: 40, of: all}")
"""A linear decay over the whole run, and a second warm-up, as arXiv 2609.19107 has them."""
COSINES = ("learning_rate.shape=cosine", "learning_rate.span=stage")
"""A cosine for each stage."""


def tokens(share: float = 0.5) -> tuple[str, ...]:
    """From 164k parameters to 262k at a share of the FLOPs."""
    base = f"{{name: base, attention_tokens: 32, ffn_tokens: 128, until: {share}}}"
    return (f"stages=[{base}, {{name: grown, {LARGE}}}]",)


def depth(share: float = 0.5, first: int = 2, last: int = 4) -> tuple[str, ...]:
    """From the first number of layers to the last at a share of the FLOPs."""
    base = f"{{name: base, {LARGE}, until: {share}}}"
    return f"model.num_layers={first}", f"stages=[{base}, {{name: grown, num_layers: {last}}}]"


def scratch(num_layers: int) -> tuple[str, ...]:
    """So many layers from the start."""
    return f"model.num_layers={num_layers}", f"stages=[{{name: scratch, {LARGE}}}]"


SETTINGS: dict[str, tuple[str, ...]] = {
    "scratch-2-layers": scratch(2),
    "scratch-3-layers": scratch(3),
    "scratch-4-layers": scratch(4),
    "tokens": tokens(),
    "tokens-moments-reset": (*tokens(), "growth.moments=reset"),
    "tokens-random": (*tokens(), "growth.init=random"),
    "tokens-copy": (*tokens(), "growth.init=copy", "growth.tau=recompute"),
    "tokens-rewarmup": (*tokens(), "growth.rewarmup={steps: 40, of: all}"),
    "tokens-inside-decay": (*tokens(), *INSIDE_DECAY),
    "depth": depth(),
    "depth-moments-reset": (*depth(), "growth.moments=reset"),
    "depth-interleave": (*depth(), "growth.depth=interleave"),
    "depth-copy-stack": (*depth(), "growth.depth=copy-stack", JUMP),
    "depth-copy-middle": (*depth(), "growth.depth=copy-middle", JUMP),
    "depth-copy-middle-inside-decay": (*depth(0.7), "growth.depth=copy-middle", JUMP, *INSIDE_DECAY),
    "depth-inside-decay": (*depth(), *INSIDE_DECAY),
    **{f"tokens-at-{100 * share:.0f}": tokens(share) for share in (0.3, 0.7)},
    **{f"depth-at-{100 * share:.0f}": depth(share) for share in (0.3, 0.7, 0.8)},
    "recipe-deep-vanilla-grow": (
        *("growth=deep-vanilla-grow", "learning_rate.warmup_steps=40", "learning_rate.decay=1.0"),
        *depth(0.5, last=3),
    ),
    "recipe-one-layer": ("growth=one-layer", "learning_rate.decay=0.1", *depth(0.8, first=1, last=3)),
    "recipe-g-stack": ("growth=g-stack", *COSINES, *depth(0.03, first=1)),
    "recipe-sparkling": ("growth=sparkling", *tokens()),
    "recipe-official": ("growth={preset: official}", *COSINES, *tokens()),
}
"""Recipes are published ones (schedules/growth/), at the share of the budget at which each grows."""


def made(text: str) -> list[Row]:
    """Every row, on a text."""
    same = ["controls=[]", "launch.devices=1", "launch.kernels=compiled", *other_text(text)]
    return [
        Row(
            f"{ratio}-{name}",
            "quickstart",
            (*settings, f"training.ladder_flops={flops}", *same),
            facts={"tokens_per_parameter": ratio, "name": name},
        )
        for ratio, flops in BUDGETS.items()
        for name, settings in SETTINGS.items()
    ]


if __name__ == "__main__":
    rows.command(__doc__, RESULTS, made)
