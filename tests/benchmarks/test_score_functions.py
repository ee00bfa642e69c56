"""The benchmark of score functions runs schedules that growctl accepts, and counts right. Not what it finds."""

import pytest
import torch

from benchmarks.score_functions import FUNCTIONS, OVERRIDES, row, run_names, training_norms, untrained
from growctl.ladder.load import load_schedule
from model.config import PATTENTIONS, num_parameters
from model.initialization import build_model
from model.policy import grow_config
from stages.inspect.measure import inspect_model
from stages.metrics import MetricsWriter
from stages.stage_dir import StagePaths
from tests.stages.checkpoints import small_config
from tests.stages.test_metrics import TRAIN


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_schedule_grows_under_every_score_function(function):
    schedule = load_schedule("quickstart", [f"model.score_function={function}", *OVERRIDES])
    assert schedule.model.score_function == function
    assert [stage.train_tokens for stage in schedule.stages] == [300_000, 420_000, 840_000]


def test_the_runs_of_two_seeds_have_different_names():
    assert not set(run_names(0).values()) & set(run_names(1).values())


def test_a_row_averages_over_the_blocks_and_counts_all_tokens():
    tokens_ST = torch.randint(31, (2, 7), generator=torch.Generator().manual_seed(0))
    facts = inspect_model(build_model(small_config(), seed=0), tokens_ST, 1)
    found = row(facts)
    assert found["num_tokens"] == 2 * (4 * 5 + 10)
    assert list(found["gradient_norms"]) == list(PATTENTIONS)
    ffn = [layer.gradient.mean for layer in facts.layers if layer.name == "ffn"]
    assert found["gradient_norms"]["ffn"] == pytest.approx(sum(ffn) / 2)


def test_norms_of_training_are_those_of_all_stages_and_the_last_attempt(tmp_path):
    recorded: dict[str, list[dict[int, float | None]]]
    recorded = {"0-small": [{10: 1.0, 20: 9.0}, {20: 2.0}], "1-large": [{10: 4.0, 20: None}]}
    for stage, attempts in recorded.items():
        directory = tmp_path / "run/stages" / stage
        directory.mkdir(parents=True)
        for attempt, norms in enumerate(attempts, 1):
            writer = MetricsWriter(StagePaths(directory).metrics, attempt)
            for step, norm in norms.items():
                writer.write("train", step, 1.0, **(TRAIN | {"gradient_norm": norm}))
            writer.close()
    assert training_norms(tmp_path / "run") == {
        "median": 2.0,
        "largest_over_median": 2.0,
        "step_to_step": 2.0,
        "num_rejected": 0,
    }


def test_untrained_models_have_the_size_of_the_grown_one_and_the_published_tau():
    grown = grow_config(small_config(width=32, num_heads=2), attention_tokens=5, ffn_tokens=10)
    models = untrained(grown)
    assert list(models) == [*FUNCTIONS, "linear"]
    assert models["softmax"].blocks[0].ffn.tau == 20
    assert models["l2_norm_gelu"].blocks[0].query.tau == pytest.approx(10**0.5)
    for config in models.values():
        assert num_parameters(config) == pytest.approx(num_parameters(grown), rel=0.1)
