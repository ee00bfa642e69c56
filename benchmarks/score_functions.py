"""Compares gradients under the three score functions and in a Transformer, untrained and after the same schedule.

    python -m benchmarks.score_functions --directory DIR > benchmarks/results/score_functions.json

It trains with real `growctl run`s below DIR (run it again to resume), then inspects what they end in. The schedule is
the quickstart with 0.3 times its tokens. The quickstart's growth would change a softmax model's function, so all runs
grow by the one policy that changes none of the three: zero values, and a norm for each generation. The Transformer is
the control of equal size and FLOPs.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import options, print_results
from growctl.evaluate.pretrained import open_pretrained
from growctl.find_checkpoint import dataset_of, find_checkpoint
from growctl.ladder.controls import equal_size_decoder
from growctl.runs_dir import RunPaths
from model.initialization import build_model
from model.shapes import ModelConfig
from model.tokenformer_config import (
    BlockConfig,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    published_tau,
)
from stages.checkpoint.manifest import read_manifest
from stages.data.evaluation_windows import EvaluationWindows
from stages.inspect.facts import Inspected
from stages.inspect.measure import inspect_model
from stages.metrics import read_metrics
from stages.stage_dir import TOKENIZER_NAME

FUNCTIONS: tuple[ScoreFunction, ...] = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
CONTROL = "decoder-scratch"
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
    checkpoints = {scores: find_checkpoint(name, directory, tell) for scores, name in run_names(seed).items()}
    dataset = dataset_of(checkpoints["linear"], None, directory)
    manifest = read_manifest(checkpoints["l2_norm_gelu"])
    context = manifest.text.context_length
    assert isinstance(manifest.model, TokenformerConfig)
    assert context is not None
    windows = EvaluationWindows(dataset, "validation", context, num_sequences)
    tokens_ST = torch.from_numpy(windows.batch(0, len(windows)))
    samples = tokens_ST[:, :-1], tokens_ST[:, 1:]
    rows = []
    for scores, checkpoint in checkpoints.items():
        with open_pretrained(
            str(checkpoint), directory, tell, tokenizer=dataset / TOKENIZER_NAME, device="cpu"
        ) as opened:
            num_token_ids = opened.num_token_ids
            facts = inspect_model(opened.model, *samples, BATCH_SIZE, num_token_ids=num_token_ids)
        norms = training_norms(directory / run_names(seed)[scores])
        rows.append({"seed": seed, "kind": "checkpoint", "scores": scores, **row(facts), "training": norms})
    for scores, config in untrained(manifest.model).items():
        model = build_model(config, seed=manifest.seed)
        facts = inspect_model(model, *samples, BATCH_SIZE, num_token_ids=num_token_ids)
        rows.append({"seed": seed, "kind": "untrained", "scores": scores, **row(facts), "training": None})
    return rows


def untrained(grown: TokenformerConfig) -> dict[str, ModelConfig]:
    """Models as large as `grown`: one of one generation and the published tau for each function, and a Transformer."""

    def fresh(pattention: PattentionConfig, function: ScoreFunction) -> PattentionConfig:
        tau = published_tau(function, pattention.num_tokens)
        return PattentionConfig(generations=(Generation(num_tokens=pattention.num_tokens),), tau=tau)

    configs: dict[str, ModelConfig] = {}
    for function in FUNCTIONS:
        blocks = tuple(
            BlockConfig(**{name: fresh(pattention, function) for name, pattention in block.pattentions().items()})
            for block in grown.blocks
        )
        configs[function] = grown.model_copy(update={"score_function": function, "blocks": blocks})
    return configs | {"linear": equal_size_decoder(grown)}


def training_norms(run: Path) -> dict[str, Any]:
    """The gradient norms, before clipping, in the log lines of a run that reuses nothing of another."""
    norms: list[float] = []
    rejected = set()
    for number, (_, _, stage) in enumerate(RunPaths(run).stages_found()):
        by_step = {}
        for line in read_metrics(stage.metrics):
            if line["event"] == "train":
                by_step[line["step"]] = line["gradient_norm"]
            elif line["event"] == "anomaly":
                rejected.add((number, line["step"], line["attempt"] if line["action"] == "rollback" else 0))
        norms += [norm for norm in by_step.values() if norm]
    median = statistics.median(norms)
    return {
        "median": median,
        "largest_over_median": max(norms) / median,
        "step_to_step": statistics.median(max(pair) / min(pair) for pair in pairwise(norms)),
        "num_rejected": len(rejected),
    }


def row(facts: Inspected) -> dict[str, Any]:
    """The figures of one model."""
    kurtosis = [layer.output.kurtosis for layer in facts.layers if layer.output.kurtosis is not None]
    names = dict.fromkeys(layer.name for layer in facts.layers)
    used = [layer.scores.effective_tokens / layer.scores.num_tokens for layer in facts.layers if layer.scores]
    return {
        "num_parameters": facts.num_parameters,
        "loss": facts.loss,
        "gradient_norm": facts.gradient.mean,
        "spread": facts.gradient.spread,
        "depth_ratio": facts.depth_ratio,
        "largest_kurtosis": max(kurtosis),
        "gradient_norms": {
            name: _mean([layer.gradient.mean for layer in facts.layers if layer.name == name]) for name in names
        },
        "gains": {
            name: _mean([layer.gradient_gain or 0.0 for layer in facts.layers if layer.name == name]) for name in names
        },
        "num_tokens": sum(layer.scores.num_tokens for layer in facts.layers if layer.scores),
        "num_dead": facts.num_dead,
        "effective_share": _mean(used) if used else None,
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def main() -> None:
    """Trains what is missing, inspects everything, and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="runs directory of the benchmark")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for function in FUNCTIONS:
            train(function, seed, arguments.directory)
    settings = {"schedule": "quickstart", "overrides": list(OVERRIDES), "seeds": arguments.seeds}
    settings |= {"num_sequences": NUM_SEQUENCES, "batch_size": BATCH_SIZE}
    rows = [found for seed in arguments.seeds for found in measure(seed, arguments.directory)]
    print_results(arguments.note, settings=settings, rows=rows)


if __name__ == "__main__":
    main()
