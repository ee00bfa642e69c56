"""Compares gradients under the three score functions and in a Transformer, untrained and after the same schedule.

    python -m benchmarks.score_functions --directory DIR > benchmarks/results/score_functions.json

It trains with real `growctl run`s below DIR (run it again to resume), then inspects what they end in. The schedule is
the quickstart with 0.3 times its tokens. The quickstart's growth would change a softmax model's function, so all runs
grow by the one policy that changes none of the three: zero values, and a norm for each generation. The Transformer is
the control of equal size and FLOPs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from growctl.checkpoints import dataset_of, find_checkpoint
from growctl.cli.pretrained import open_pretrained
from growctl.inspect.inspection import Subject, TextChoice, inspect_checkpoints
from model.config import PATTENTIONS
from stages.stage_dir import TOKENIZER_NAME

FUNCTIONS = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
CONTROL = "transformer-scratch"
OVERRIDES = (
    *("stages.0.train_tokens=300k", "stages.1.train_tokens=420k", "stages.2.train_tokens=840k"),
    *("growth.init=zero-value", "growth.tau=per-generation", "training.log_every=5", "launch.devices=1"),
)
NUM_SEQUENCES, BATCH_SIZE = 256, 8


def run_names(seed: int) -> dict[str, str]:
    """The name of the run of every score function, and of the control for `linear`."""
    names = {function: f"{function}-{seed}" for function in FUNCTIONS}
    return names | {"linear": f"{names['l2_norm_gelu']}-control-{CONTROL}"}


def train(function: str, seed: int, directory: Path) -> None:
    """Runs one ladder, with the control if it has the default score function; resumes or finds it done."""
    controls = f"controls=[{{kind:{CONTROL}}}]" if function == "l2_norm_gelu" else "controls=[]"
    settings = (f"seed={seed}", f"model.score_function={function}", *OVERRIDES, controls)
    where = ("--name", run_names(seed)[function], "--runs-dir", str(directory))
    command = [sys.executable, "-m", "growctl.cli.app", "run", "quickstart", *settings, *where]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})


def measure(seed: int, directory: Path, num_sequences: int = NUM_SEQUENCES) -> list[dict[str, Any]]:
    """Inspects the four finished models of a seed and four untrained ones, on the same validation text."""
    tell = partial(print, file=sys.stderr)
    checkpoints = [(scores, find_checkpoint(name, directory, tell)) for scores, name in run_names(seed).items()]
    dataset = dataset_of(checkpoints[0][1], None, directory)
    choice = TextChoice((), dataset, num_sequences, None, BATCH_SIZE)
    inspection = inspect_checkpoints(
        checkpoints,
        choice,
        None,
        lambda path: open_pretrained(str(path), directory, tell, tokenizer=dataset / TOKENIZER_NAME, device="cpu"),
        lambda *done: None,
    )
    return [{"seed": seed, **row(subject)} for subject in inspection.subjects]


def row(subject: Subject) -> dict[str, Any]:
    """The figures of one model."""
    facts, norms = subject.facts, subject.training
    kurtosis = [layer.output.kurtosis for layer in facts.layers if layer.output.kurtosis is not None]
    used = [layer.scores.effective_tokens / layer.scores.num_tokens for layer in facts.layers if layer.scores]
    return {
        "kind": subject.kind,
        "scores": subject.scores,
        "num_parameters": facts.num_parameters,
        "loss": facts.loss,
        "gradient_norm": facts.gradient.mean,
        "spread": facts.gradient.spread,
        "depth_ratio": facts.depth_ratio,
        "largest_kurtosis": max(kurtosis),
        "gradient_norms": {
            name: _mean([layer.gradient.mean for layer in facts.layers if layer.name == name]) for name in PATTENTIONS
        },
        "gains": {
            name: _mean([layer.gradient_gain or 0.0 for layer in facts.layers if layer.name == name])
            for name in PATTENTIONS
        },
        "num_tokens": sum(layer.scores.num_tokens for layer in facts.layers if layer.scores),
        "num_dead": facts.num_dead,
        "effective_share": _mean(used) if used else None,
        "training": norms
        and {
            "median": norms.median,
            "largest_over_median": norms.largest_ratio,
            "step_to_step": norms.step_ratio,
            "num_rejected": norms.num_rejected,
        },
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def main() -> None:
    """Trains what is missing, inspects everything, and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="runs directory of the benchmark")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--note", help="a note for the results file, such as what else ran on the machine")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for function in FUNCTIONS:
            train(function, seed, arguments.directory)
    results = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "note": arguments.note,
        "machine": machine(),
        "settings": {
            "schedule": "quickstart",
            "overrides": list(OVERRIDES),
            "seeds": arguments.seeds,
            "num_sequences": NUM_SEQUENCES,
            "batch_size": BATCH_SIZE,
        },
        "rows": [found for seed in arguments.seeds for found in measure(seed, arguments.directory)],
    }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
