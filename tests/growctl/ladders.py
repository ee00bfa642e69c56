"""Small ladders for tests, with blocks that a test can replace."""

from typing import Any

from growctl.ladder.load import parse_schedule
from growctl.schedule.blocks import Schedule


def ladder(steps: tuple[int, ...] = (20, 30, 50), **blocks: Any) -> Schedule:
    """A ladder of that many steps a stage, each stage 4 attention and 8 FFN tokens larger than the one before."""
    stages = [
        {"name": f"stage-{i}", "attention_tokens": 4 * (i + 1), "ffn_tokens": 8 * (i + 1), "train_steps": num_steps}
        for i, num_steps in enumerate(steps)
    ]
    data = {
        "data": {"source": "python-stdlib", "vocab_size": 300},
        "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2},
        "stages": stages,
        "training": {"sequence_length": 16, "batch_size": 8},
        "learning_rate": {"peak": 1e-3, "warmup_steps": 5},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 10},
    }
    return parse_schedule(data | blocks, label="s", default_name="s")
