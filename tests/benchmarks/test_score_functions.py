"""The benchmark of score functions runs schedules that growctl accepts, and counts right. Not what it finds."""

import pytest
import torch

from benchmarks.score_functions import FUNCTIONS, OVERRIDES, row, run_names
from growctl.inspect.inspection import Subject
from growctl.inspect.training import TrainingNorms
from growctl.schedule.load import load_schedule
from model.config import PATTENTIONS
from model.initialization import build_model
from stages.inspect.measure import inspect_model
from tests.stages.checkpoints import small_config


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_schedule_grows_under_every_score_function(function):
    schedule = load_schedule("quickstart", [f"model.score_function={function}", *OVERRIDES])
    assert schedule.model.score_function == function
    assert [stage.train_tokens for stage in schedule.stages] == [300_000, 420_000, 840_000]


def test_the_runs_of_two_seeds_have_different_names():
    assert not set(run_names(0).values()) & set(run_names(1).values())


def test_a_row_averages_over_the_blocks_and_counts_all_tokens():
    tokens_ST = torch.randint(31, (2, 7), generator=torch.Generator().manual_seed(0))
    facts = inspect_model(build_model(small_config(), seed=0), tokens_ST, 1, lambda *_: ("", ""))
    found = row(Subject("name", "checkpoint", "l2_norm_gelu", facts, TrainingNorms(((0, 1.0), (1, 2.0)), 3)))
    assert found["num_tokens"] == 2 * (4 * 5 + 10)
    assert list(found["gradient_norms"]) == list(PATTENTIONS)
    ffn = [layer.gradient.mean for layer in facts.layers if layer.name == "ffn"]
    assert found["gradient_norms"]["ffn"] == pytest.approx(sum(ffn) / 2)
    assert found["training"] == {
        "median": 1.5,
        "largest_over_median": pytest.approx(4 / 3),
        "step_to_step": 2.0,
        "num_rejected": 3,
    }
