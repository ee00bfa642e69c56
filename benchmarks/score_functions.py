"""Compares the three score functions of a Tokenformer, from scratch.

    python -m benchmarks.score_functions run --directory DIR [--seeds 0 1 2] [--only PATTERN]
    python -m benchmarks.score_functions table --directory DIR    # results/score_functions.json

Every row trains the quickstart's last size, 262k parameters, on its text for 0.3 times its FLOPs.
"""

from pathlib import Path
from typing import get_args

from benchmarks import rows
from benchmarks.rows import Row
from model.tokenformer_config import ScoreFunction

RESULTS = Path(__file__).resolve().parent / "results" / "score_functions.json"


def made(text: str) -> list[Row]:
    """A row for each score function; the text is the quickstart's."""
    same = ("stages=[{name: 262k, attention_tokens: 64, ffn_tokens: 256}]", "training.ladder_flops=2.17e12")
    return [
        Row(function.replace("_", "-"), "quickstart", (f"model.score_function={function}", *same, "launch.devices=1"))
        for function in get_args(ScoreFunction)
    ]


if __name__ == "__main__":
    rows.command(__doc__, RESULTS, made)
