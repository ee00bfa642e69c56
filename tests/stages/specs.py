"""Small worker specs for tests."""

from typing import Any

from model.shapes import ModelConfig
from stages.spec import LearningRate, Optimizer, TrainSpec


def small_spec(model: ModelConfig, **changes: Any) -> TrainSpec:
    """Three steps at a constant rate on `model`, with `changes`."""
    rate = LearningRate(shape="wsd", peak=1e-2, final=0.0, warmup_steps=0, decay_steps=0, total_steps=3, first_step=0)
    optimizer = Optimizer(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clipping=1.0)
    values: dict[str, Any] = {
        "stage": "s", "attempt": 1, "directory": "", "dataset": "", "initial": None, "resume": None,
        "seed": 0, "samples_seen": 0, "num_steps": 3, "batch_size": 4, "micro_batch_size": 1, "sequence_length": 10,
        "learning_rate": rate, "optimizer": optimizer, "ramp_steps": 0, "zero_stage": 1, "precision": "fp32",
        "log_every": 1, "evaluate_every": 1, "checkpoint_every": 1, "keep_checkpoints": 1,
        "evaluation_sequences": None, "launched_at": 0.0,
    }  # fmt: skip
    values |= changes
    lengths = dict.fromkeys(("window_length", "evaluation_length"), values["sequence_length"])
    return TrainSpec(model=model, **(lengths | values))
