"""How `growctl verify` shows parameter tokens that have no gradient."""

from pathlib import Path

import pytest

from growctl.runs.verify import section
from growctl.text.section import Facts
from stages.checkpoint.lineage import GrowthRecord
from stages.grow.comparison import ComparedModel, Comparison, Descent, GenerationGradients


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (15, "generation 1: 15 of 30 tokens, 15 of them in new layers, which have one from the second step on"),
        (0, "generation 1: 15 of 30 tokens"),
    ],
)
def test_tokens_of_new_layers_are_expected_to_wait_for_a_gradient(waiting: int, words: str):
    comparison = Comparison(
        dtype="float64", num_sequences=1, context=8, dataset=Path("text"), largest_logit=1.0, largest_difference=0.0,
        mean_difference=0.0, gradient_ramp=None, lineage=Descent("expand", GrowthRecord(preserves=True, seed=0), 9, 9),
        old=ComparedModel(Path("old"), 1000, 2.0), new=ComparedModel(Path("new"), 2000, 2.0),
        gradients=(GenerationGradients(0, 60, 0, 0), GenerationGradients(1, 30, 15, waiting)),
        jump=0.0, relative_difference=0.0, tolerance=1e-6, verdict="preserved", breaks_promise=False,
    )  # fmt: skip
    facts = section(comparison).parts[0]
    assert isinstance(facts, Facts)
    assert ("no gradient", words) in facts.rows
