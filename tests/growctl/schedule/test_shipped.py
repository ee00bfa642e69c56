"""The schedules and block choices that ship with growctl load and match their descriptions."""

from pathlib import Path

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import schedule_warnings
from growctl.run.requests import schedule_yaml
from growctl.schedule.files import GROUPS, SHIPPED, choices, find_schedule, shipped_schedules
from model.errors import UserError
from tests.growctl.schedules import NEEDS_A_RUN, file_of

NAMES = [name for name in shipped_schedules() if name not in NEEDS_A_RUN]
OF_A_DECODER = ["stages=[{name: whole, train_steps: 9}]", "controls=[]"]
CHOICES = [(group, choice) for group in GROUPS for choice in choices(group, [SHIPPED])]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_schedule_plans_and_reloads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schedule, path = load_schedule(name), SHIPPED / f"{name}.yaml"
    assert schedule.name == Path(name).name
    assert make_plan(schedule).total.flops > 0
    assert schedule_warnings(schedule) == []
    for reference in (name, f"{name}.yaml", f"schedules/{name}", f"schedules/{name}.yaml", str(path)):
        assert find_schedule(reference).samefile(path)
    for original in (schedule, *(control.schedule for control in plan_controls(schedule))):
        assert load_schedule(file_of(tmp_path, schedule_yaml(original))) == original


@pytest.mark.slow
@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_shipped_choice_loads_in_a_schedule(group: str, choice: str) -> None:
    others = ["~data.vocab_size", "model.vocab_size=60000"] if group == "data" else []
    if group == "model" and not choice.startswith("tokenformer"):
        others = OF_A_DECODER
    assert load_schedule("quickstart", [f"{group}={choice}", *others])


def test_the_quickstart_matches_the_figures_in_the_readme() -> None:
    loaded = load_schedule("quickstart")
    plans = plan_stages(loaded)
    assert [f"{plan.flops.total:.2e}" for plan in plans] == ["8.35e+11", "1.58e+12", "4.82e+12"]
    assert [(plan.num_parameters, plan.num_steps) for plan in plans] == [(114816, 244), (163968, 342), (262272, 684)]
    assert (loaded.learning_rate.peak, loaded.growth.ramp, loaded.seed) == (1.2e-2, 0.05, 0)
    assert load_schedule("quickstart", ["data=python-stdlib"]) == loaded, "the choice of that name is the same data"


@pytest.mark.parametrize("name", NEEDS_A_RUN)
def test_a_shipped_schedule_that_starts_from_a_run_names_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"start\.run = 'quickstart_base': .*; `growctl run quickstart_base` trains it$"
    ):
        load_schedule(name, runs_dir=tmp_path)
    assert load_schedule(name, ["~start", "controls=[]"]).stages == load_schedule("quickstart").stages[-1:]


@pytest.mark.parametrize(
    ("name", "layers", "sizes"),
    [("late_depth", [1, 3], [131_200, 262_272]), ("late_tokens", [3, 3], [114_816, 262_272])],
)
def test_a_late_jump_grows_at_80_percent_before_the_decay(name: str, layers: list[int], sizes: list[int]) -> None:
    loaded = load_schedule(name)
    first, last = plans = plan_stages(loaded)
    assert [plan.model.num_layers for plan in plans] == layers
    assert [plan.num_parameters for plan in plans] == sizes
    assert first.budget_tokens / sum(plan.budget_tokens for plan in plans) == pytest.approx(0.8, abs=1e-3)
    assert (last.learning_rate.undecayed_steps or 0) > last.num_steps / 3 > last.ramp_steps


@pytest.mark.parametrize(
    ("name", "overrides", "layers"),
    [
        ("deep_vanilla_grow", [], [2, 3]),
        ("late_depth", ["growth=one-layer"], [1, 3]),
        ("late_depth", ["growth=g-stack", "stages.1.num_layers=4"], [1, 4]),
        ("quickstart", ["growth=sparkling"], [3, 3, 3]),
    ],
)
def test_a_published_recipe_fits_the_schedule_that_its_file_names(name: str, overrides: list[str], layers: list[int]):
    loaded = load_schedule(name, overrides)
    assert (loaded.growth.preset, [plan.model.num_layers for plan in plan_stages(loaded)]) == ("custom", layers)


def test_deep_vanilla_grow_grows_at_half_of_the_steps_and_warms_up_again_inside_the_decay() -> None:
    loaded = load_schedule("deep_vanilla_grow")
    first, last = plan_stages(loaded)
    assert first.num_steps == last.num_steps
    assert [rule.factor(step) for rule in loaded.growth.rules(1, last.num_steps) for step in (0, 39)] == [1 / 40, 1] * 2
    rates = [plan.learning_rate.at(step) for plan in (first, last) for step in (40, plan.num_steps - 1)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(rates[0] / 2, rel=0.05)


PAPER = {"124m": (576, 2304), "354m": (2140, 8560), "757m": (4850, 19400), "1.4b": (8620, 34480)}
PAPER_SIZES, OFFICIAL_SIZES = [123.6, 354.2, 753.8, 1310], [353.5, 756.2]
PAPER_SHAPE, PAPER_RATE, PAPER_STEP = (12, 768, 12), (6e-4, 0.0, 2000), (1024, 512)
OFFICIAL, OFFICIAL_SHAPE, OFFICIAL_RATE = {"354m": (768, 3072), "757m": (1792, 7168)}, (24, 1024, 16), (6e-4, 6e-5, 600)
PILE_RATE, PILE_STEP = (6e-4, 6e-5, 1430), (2048, 1024)


@pytest.mark.parametrize(
    ("name", "tokens", "shape", "rate", "step", "billions", "millions"),
    [
        ("openwebtext_1.4b", PAPER, PAPER_SHAPE, PAPER_RATE, PAPER_STEP, [300, 30, 30, 30], PAPER_SIZES),
        ("openwebtext_1.4b_60b", PAPER, PAPER_SHAPE, PAPER_RATE, PAPER_STEP, [60, 30, 30, 30], PAPER_SIZES),
        ("pile_1.4b", PAPER, PAPER_SHAPE, PAPER_RATE, PAPER_STEP, [60, 60, 60, 60], PAPER_SIZES),
        (
            "openwebtext2_354m_757m",
            OFFICIAL,
            OFFICIAL_SHAPE,
            OFFICIAL_RATE,
            PAPER_STEP,
            [314.57, 31.457],
            OFFICIAL_SIZES,
        ),
        *(
            (f"pile/tokenformer_{size}", {size: tokens}, shape, PILE_RATE, PILE_STEP, [299.9], [millions])
            for size, tokens, shape, millions in (
                ("150m", (768, 3072), (12, 768, 12), 150),
                ("450m", (1024, 4096), (24, 1024, 16), 450),
                ("900m", (1280, 5120), (32, 1280, 16), 900),
                ("1.5b", (1536, 6144), (40, 1536, 16), 1500),
            )
        ),
    ],
)
def test_the_published_models_have_their_sizes_budgets_and_recipes(name, tokens, shape, rate, step, billions, millions):
    loaded = load_schedule(name)
    model, learning_rate, training, plans = loaded.model, loaded.learning_rate, loaded.training, plan_stages(loaded)
    assert {stage.name: (stage.attention_tokens, stage.ffn_tokens) for stage in loaded.stages} == tokens
    assert (model.num_layers, model.hidden_size, model.num_heads) == shape
    assert (training.sequence_length, training.batch_size) == step
    assert learning_rate.shape == "cosine"
    assert (learning_rate.peak, learning_rate.final, learning_rate.warmup_steps) == rate
    assert plans[-1].num_embedding_parameters == loaded.vocab_size * model.hidden_size
    assert [plan.budget_tokens / 1e9 for plan in plans] == pytest.approx(billions, rel=1e-4)
    nominal = name.startswith("pile/")
    assert [plan.num_parameters / 1e6 for plan in plans] == pytest.approx(millions, rel=0.06 if nominal else 5e-4)
    assert all(0 < plan.ramp_steps < learning_rate.warmup_steps for plan in plans[1:] if tokens is PAPER)


@pytest.mark.parametrize(
    ("choice", "parameters"),
    [
        ("llama_15m", 15_191_712),
        ("llama3.2_1b", 1_235_814_400),
        ("nanochat_d20", 561_045_760),
        ("qwen3_0.6b", 596_049_920),
        ("smollm2_135m", 134_515_008),
        ("smollm2_360m", 361_821_120),
        ("tinyllama_1.1b", 1_100_048_384),
    ],
)
def test_published_decoders_have_their_numbers_of_parameters(choice, parameters):
    assert plan_stages(load_schedule("quickstart", [f"model={choice}", *OF_A_DECODER]))[0].num_parameters == parameters
