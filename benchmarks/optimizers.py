"""Compares Muon with AdamW: from scratch and growing, Tokenformer and decoder, each at its best of three peaks or more.

    python -m benchmarks.optimizers run --directory DIR [--seeds 0 1 2] [--only PATTERN]
    python -m benchmarks.optimizers table --directory DIR    # results/optimizers.json

Text, batch, context and budget are the quickstart's. All rows end near its last size and cost the same FLOPs.
"""

from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row

RESULTS = Path(__file__).resolve().parent / "results" / "optimizers.json"
BUDGET = "training.ladder_flops=7.24e12"
"""What the quickstart's ladder costs."""

PEAKS = {"adamw": (6e-3, 3e-3, 1.2e-2), "muon": (1.2e-2, 6e-3, 2.4e-2)}
AT_THE_EDGE = (
    *("adamw-tokenformer-depth", "muon-tokenformer-depth"),
    *("adamw-decoder-scratch", "muon-decoder-scratch", "adamw-decoder-depth"),
)
"""Rows that ended lowest at the highest of these peaks: they try twice this peak too."""

TOKENS = "attention_tokens: 64, ffn_tokens: 256"


def decoder(num_layers: int) -> str:
    """A decoder of the quickstart's width; with 4 layers it is nearly as large as the quickstart's last size."""
    return f"model={{family: decoder, num_layers: {num_layers}, hidden_size: 64, num_heads: 4}}"


def deeper(first: str, num_layers: int) -> str:
    """Stages of one layer, two layers and `num_layers`; `first` are more keys of the first."""
    two, full = "{name: two-layers, num_layers: 2, until: 0.5}", f"{{name: full, num_layers: {num_layers}}}"
    return f"stages=[{{name: one-layer, until: 0.25{first}}}, {two}, {full}]"


RECIPES = {
    "tokenformer-scratch": (BUDGET, f"stages=[{{name: 262k, {TOKENS}}}]"),
    "tokenformer-tokens": (),
    "tokenformer-depth": (BUDGET, "model.num_layers=1", deeper(f", {TOKENS}", 3)),
    "decoder-scratch": (BUDGET, decoder(4), "stages=[{name: 266k, ffn_tokens: 256}]"),
    "decoder-depth": (BUDGET, decoder(1), deeper(", ffn_tokens: 256", 4)),
}
"""Overrides of the quickstart by what is trained: one size, or a ladder that ends in it, such as the quickstart."""

ROWS = [
    Row(
        f"{optimizer}-{recipe}",
        "quickstart",
        (f"optimizer={optimizer}", *overrides, "controls=[]", "launch.devices=1", "launch.kernels=compiled"),
        PEAKS[optimizer] + (2 * max(PEAKS[optimizer]),) * (f"{optimizer}-{recipe}" in AT_THE_EDGE),
        {"optimizer": optimizer, "recipe": recipe},
    )
    for recipe, overrides in RECIPES.items()
    for optimizer in PEAKS
]


def main() -> None:
    """Runs the command on the command line."""
    arguments = rows.parser(__doc__).parse_args()
    if arguments.what == "run":
        rows.run(ROWS, arguments)
    else:
        rows.write(RESULTS, rows.collect(ROWS, arguments.directory.resolve(), schedule="quickstart"))


if __name__ == "__main__":
    main()
