"""Pairs of runs that differ in anything, for tests of what compares two runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from growctl.runs.runs import RunReport, StageReport

CONDITIONS: dict[str, Any] = {
    "seed": 0,
    "model.family": "tokenformer",
    "model.vocab_size": 300,
    "training.sequence_length": 64,
    "training.batch_size": 8,
    "training.precision": "auto",
    "learning_rate.peak": 1e-3,
    "learning_rate.shape": "wsd",
    "growth.tau": "ramp",
    "evaluation.max_sequences": None,
}


def stage(name: str, flops: float, so_far: float, loss: float | None, **values: Any) -> StageReport:
    """A stage that costs `flops`; finished, if it has a loss."""
    return StageReport(
        name=name,
        num_parameters=1000,
        num_steps=100,
        train_tokens=5000,
        flops=flops,
        cumulative_flops=so_far,
        validation_loss=loss,
        perplexity=None if loss is None else math.exp(loss),
        bits_per_byte=None if loss is None else loss / 2,
        finished=loss is not None,
        **{"decayed": True} | values,
    )


def run(name: str, loss: float | None = 2.0, flops: float = 1e12, **fields: Any) -> RunReport:
    """A run of two stages on the dataset `f00d`; `conditions` replace those of CONDITIONS."""
    stages = (stage("small", flops / 4, flops / 4, 3.0, decayed=False), stage("large", flops * 3 / 4, flops, loss))
    made = RunReport(
        name=name,
        recorded_name=name,
        run_id=name,
        schedule="s",
        control=None,
        control_of=None,
        seed=0,
        stages=stages,
        directory=Path("runs") / name,
        dataset="/data/words",
        dataset_fingerprint="f00d",
        machines=(("cpu", 1, "bf16"),),
    )
    return replace(made, conditions=CONDITIONS | fields.pop("conditions", {}), **fields)


TEXTS = st.sampled_from(["a", "b"])

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "loss": st.none() | st.sampled_from([1.9, 2.0, 2.0002]),
        "flops": st.sampled_from([1e12, 1.01e12, 2e12]),
        "decays": st.booleans(),
        "dataset_fingerprint": TEXTS,
        "machines": st.sampled_from([(), (("cpu", 1, "fp32"),)]),
        "overrides": st.sampled_from([{}, {"seed": 1}, {"learning_rate.peak": 2e-3}]),
        "group": st.sampled_from([None, "sweep"]),
        "conditions": st.dictionaries(
            st.sampled_from([*CONDITIONS, "start.manifest", "growth.when"]), st.sampled_from([1, "x", [0.9, 0.95]])
        ).flatmap(
            lambda some: st.fixed_dictionaries(
                {path: st.just(value) for path, value in some.items()},
                optional={f"data.{part}": TEXTS for part in ("tokenizer", "train_text", "validation_text")},
            )
        ),
    },
)
"""What may be special about a run."""
