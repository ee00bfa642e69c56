"""Compares growing by routed tokens with growing by dense ones and with training from scratch, and windows with none.

    python -m benchmarks.routed run --directory DIR --text TEXT [--seeds 0 1 2] [--only 'grown-*']
    python -m benchmarks.routed table --directory DIR    # results/routed.json

Every row costs the quickstart's 7.24e12 FLOPs, on the text of benchmarks/three_questions.py. A data token of a routed
row reads as many parameter tokens as one of `grown` or `scratch`, and the model has as many as that of a `large` row.
Growth comes at 40 % of the FLOPs. The rows with windows have sequences of 256 tokens and as many tokens a step.
"""

from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row
from benchmarks.three_questions import other_text

RESULTS = Path(__file__).resolve().parent / "results" / "routed.json"


def stages(*sizes: int) -> str:
    """Stages with these numbers of attention tokens, and four times as many in the FFN."""
    names = [f"name: t{size}, attention_tokens: {size}, ffn_tokens: {4 * size}" for size in sizes]
    return "stages=[" + ", ".join(f"{{{name}{', until: 0.4' * (name != names[-1])}}}" for name in names) + "]"


LONG = ("training.sequence_length=256", "training.batch_size=16")
ROWS: dict[str, tuple[str, ...]] = {
    "grown": (stages(32, 64),),
    "grown-large": (stages(32, 160),),
    "grown-routed": (stages(32, 160), "growth.routing={groups: 8, read: 2}"),
    "scratch": (stages(64),),
    "scratch-large": (stages(160),),
    "scratch-routed": (stages(160), "model.routing={groups: 10, read: 4}"),
    "context-256": (stages(64), *LONG),
    "context-256-window-64": (stages(64), *LONG, "model.attention_window=64", "model.full_attention_every=3"),
}


def made(text: str) -> list[Row]:
    """Every row, on a text."""
    same = ("training.ladder_flops=7.24e12", "controls=[]", "launch.devices=1", "evaluation.every=500")
    return [Row(name, "quickstart", (*own, *same, *other_text(text))) for name, own in ROWS.items()]


if __name__ == "__main__":
    rows.command(__doc__, RESULTS, made)
