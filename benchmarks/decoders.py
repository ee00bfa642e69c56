"""Compares the options of a block one at a time, in both families, and ways to grow a trained decoder.

    python -m benchmarks.decoders run --directory DIR --text TEXT [--seeds 0 1 2] [--only 'block-*']
    python -m benchmarks.decoders table --directory DIR    # results/decoders.json

Batch, width and context are the quickstart's, TEXT is that of benchmarks/three_questions.py. `block-` rows cost the
quickstart's 7.24e12 FLOPs from scratch; each but the first of its family has one option changed. `grown-` rows go on
from a Llama of 2 layers, trained on 5M data tokens (each seed from its own), for 4.82e12 FLOPs.
"""

from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row
from benchmarks.three_questions import other_text

RESULTS = Path(__file__).resolve().parent / "results" / "decoders.json"
FAMILIES = {
    "decoder": ("model.family=decoder", "model.num_layers=4", "stages=[{name: block, ffn_tokens: 256}]"),
    "tokenformer": ("stages=[{name: block, attention_tokens: 64, ffn_tokens: 256}]",),
}
SHARED = {
    "rmsnorm": ("model.norm=rmsnorm",),
    "two-kv-heads": ("model.num_kv_heads=2",),
    "qk-norm": ("model.qk_norm=true",),
    "untied": ("model.tie_embeddings=false",),
    "whole-rotation": ("model.rotary_fraction=1.0",),
}
NO_BIASES = ("model.qkv_bias=false", "model.output_bias=false", "model.ffn_bias=false")
OWN = {
    "swiglu": ("model.activation=swiglu", "stages.0.ffn_tokens=176"),
    "relu2": ("model.activation=relu2",),
    "no-biases": NO_BIASES,
    "parallel": ("model.parallel_residual=true", "launch.kernels=eager"),  # Inductor's C++ for it does not compile
}
LLAMA = (
    "model.family=decoder",
    "model.num_layers=2",
    "model.norm=rmsnorm",
    "model.activation=swiglu",
    "model.num_kv_heads=2",
    "model.rotary_fraction=1.0",
    "model.tie_embeddings=false",
    *NO_BIASES,
)
BASE = "stages=[{name: base, ffn_tokens: 176, train_tokens: 5M}]"
GROWN = {"ungrown": "", "units": "ffn_tokens: 768", "layers": "num_layers: 7", "both": "ffn_tokens: 352, num_layers: 4"}
"""What the stage after the base sets. All but the first have about twice the base's parameters."""


def made(text: str) -> list[Row]:
    """Every row, on a text. A row of the base comes before those that start from it."""
    same = ("controls=[]", "launch.devices=1", "launch.kernels=compiled", "evaluation.every=500", *other_text(text))
    default: dict[str, tuple[str, ...]] = {"default": ()}
    options = {"decoder": default | SHARED | OWN, "tokenformer": default | SHARED}
    found = [
        Row(
            f"block-{family}-{name}",
            "quickstart",
            (*FAMILIES[family], "training.ladder_flops=7.24e12", *same, *option),
            facts={"family": family, "option": name},
        )
        for family, of_family in options.items()
        for name, option in of_family.items()
    ]
    found.append(Row("base", "quickstart", (*LLAMA, BASE, *same)))
    for way, sizes in GROWN.items():
        stage = f"stages=[{{name: grown{sizes and ', '}{sizes}}}]"
        start = "start={run: 'base-seed${seed}'}"
        overrides = (*LLAMA, stage, start, "training.ladder_flops=4.82e12", *same)
        found.append(Row(f"grown-{way}", "quickstart", overrides, facts={"way": way}))
    return found


def main() -> None:
    """Runs the command on the command line."""
    parser = rows.parser(__doc__)
    parser.add_argument("--text", default="", help="the folder of the text")
    arguments = parser.parse_args()
    if arguments.what == "table":
        rows.write(RESULTS, rows.collect(made(arguments.text), arguments.directory.resolve(), schedule="quickstart"))
        return
    started = [row for row in made(arguments.text) if row.name.startswith("grown-")]
    for each in ([row for row in made(arguments.text) if row not in started], started):
        rows.run(each, arguments)


if __name__ == "__main__":
    main()
