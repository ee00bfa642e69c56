"""The schedules and block choices that ship with growctl load and match their descriptions."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.schedule.files import GROUPS, SHIPPED, choices, find_schedule, shipped_schedules
from model.config import TokenformerConfig, num_parameters
from tests.growctl.schedules import file_of

NAMES = list(shipped_schedules())
CHOICES = [(group, choice) for group in GROUPS for choice in choices(group, [SHIPPED])]
PAPER = {"124m": (576, 2304), "354m": (2140, 8560), "757m": (4850, 19400), "1.4b": (8620, 34480)}
PILE = {
    "150m": (12, 768, 12, 768, 3072),
    "450m": (24, 1024, 16, 1024, 4096),
    "900m": (32, 1280, 16, 1280, 5120),
    "1.5b": (40, 1536, 16, 1536, 6144),
}


def test_the_shipped_schedules_are_these_without_choices_for_blocks() -> None:
    assert [
        *("late_depth", "late_tokens"),
        "openwebtext2_354m_757m",
        "openwebtext_1.4b",
        "openwebtext_1.4b_60b",
        *(f"pile/tokenformer_{size}" for size in ("1.5b", "150m", "450m", "900m")),
        *("pile_1.4b", "quickstart", "wikitext"),
    ] == NAMES
    files = {path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.yaml")}
    assert files == {*NAMES, *(f"{group}/{choice}" for group, choice in CHOICES)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_every_shipped_schedule_loads_and_plans_by_its_short_and_its_long_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_schedule(name)
    assert loaded.name == Path(name).name
    assert make_plan(loaded).total.flops > 0
    path = SHIPPED / f"{name}.yaml"
    assert load_schedule(str(path)) == loaded
    for reference in (name, f"{name}.yaml", f"schedules/{name}", f"schedules/{name}.yaml", str(path)):
        assert find_schedule(reference).samefile(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_schedules_own_dump_reloads_to_an_equal_schedule_and_so_do_its_controls(tmp_path: Path, name: str) -> None:
    schedule = load_schedule(name)
    for original in (schedule, *(control.schedule for control in plan_controls(schedule))):
        text = OmegaConf.to_yaml(OmegaConf.create(original.model_dump(mode="json")))
        assert load_schedule(file_of(tmp_path, text)) == original


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_shipped_choice_loads_in_a_schedule(group: str, choice: str) -> None:
    without = ["~data.vocab_size", "model.vocab_size=60000"] if group == "data" else []
    assert load_schedule("quickstart", [f"{group}={choice}", *without])
    assert (SHIPPED / group / f"{choice}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("cluster", ["local", "hostfile", "slurm"])
def test_every_cluster_has_a_choice_that_marks_its_hardware_as_assumed(cluster: str) -> None:
    launch = load_schedule("pile_1.4b", [f"launch={cluster}"]).launch
    assert launch.cluster == cluster
    assert (launch.hardware.mfu is None) == (cluster == "local")
    text = (SHIPPED / "launch" / f"{cluster}.yaml").read_text()
    assert cluster == "local" or "hardware: # assumptions" in text


def test_the_quickstart_matches_the_figures_in_the_readme() -> None:
    loaded = load_schedule("quickstart")
    plans = plan_stages(loaded)
    assert [f"{plan.flops.total:.2e}" for plan in plans] == ["8.35e+11", "1.58e+12", "4.82e+12"]
    assert [(plan.num_parameters, plan.num_steps) for plan in plans] == [(114816, 244), (163968, 342), (262272, 684)]
    assert (loaded.learning_rate.peak, loaded.growth.ramp, loaded.seed) == (6e-3, 0.05, 0)
    assert load_schedule("quickstart", ["data=python-stdlib"]) == loaded, "the choice of that name is the same data"


@pytest.mark.parametrize(
    ("name", "layers", "sizes"),
    [("late_depth", [1, 3], [131_200, 262_272]), ("late_tokens", [3, 3], [114_816, 262_272])],
)
def test_a_late_jump_grows_to_the_quickstarts_size_at_80_percent_and_before_the_decay(
    name: str, layers: list[int], sizes: list[int]
) -> None:
    loaded = load_schedule(name)
    first, last = plans = plan_stages(loaded)
    assert [plan.model.num_layers for plan in plans] == layers
    assert [plan.num_parameters for plan in plans] == sizes
    assert (
        last.model.blocks[0].ffn.num_tokens
        == plan_stages(load_schedule("quickstart"))[-1].model.blocks[0].ffn.num_tokens
    )
    assert first.budget_tokens / sum(plan.budget_tokens for plan in plans) == pytest.approx(0.8, abs=1e-3)
    assert (last.learning_rate.undecayed_steps or 0) > last.num_steps / 3 > last.ramp_steps
    assert {control.kind for control in loaded.controls} == {"best-scratch"}
    assert [
        sum(plan.num_steps for plan in plan_stages(load_schedule(name, [f"training.ladder_tokens={budget}"])))
        for budget in ("4.096M", "8.192M")
    ] == [1000, 2000]


def test_wikitext_is_near_compute_optimal_and_costs_about_thirty_quickstarts() -> None:
    plans = plan_stages(load_schedule("wikitext"))
    assert 15 < sum(plan.budget_tokens for plan in plans) / plans[-1].num_parameters < 20
    assert 25 < total_flops(plans).total / total_flops(plan_stages(load_schedule("quickstart"))).total < 35


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("openwebtext_1.4b", [300, 30, 30, 30]),
        ("openwebtext_1.4b_60b", [60, 30, 30, 30]),
        ("pile_1.4b", [60, 60, 60, 60]),
    ],
)
def test_the_papers_ladder_has_its_sizes_budgets_and_recipe(name: str, billions: list[int]) -> None:
    loaded = load_schedule(name)
    assert {stage.name: (stage.attention_tokens, stage.ffn_tokens) for stage in loaded.stages} == PAPER
    assert [stage.train_tokens for stage in loaded.stages] == [10**9 * number for number in billions]
    model, rate, training = loaded.model, loaded.learning_rate, loaded.training
    assert (model.num_layers, model.hidden_size, model.num_heads, model.vocab_size) == (12, 768, 12, 50304)
    assert (training.sequence_length, training.batch_size) == (1024, 512)
    assert (rate.peak, rate.final, rate.shape, rate.span, rate.warmup_steps) == (6e-4, 0.0, "cosine", "stage", 2000)
    assert (loaded.optimizer.betas, loaded.optimizer.weight_decay) == ([0.9, 0.95], 0.1)
    plans = plan_stages(loaded)
    assert plans[-1].num_embedding_parameters == 50304 * 768
    assert all(0 < plan.ramp_steps < rate.warmup_steps for plan in plans[1:])
    sizes = [plan.num_parameters / 1e6 for plan in plans]
    assert sizes == pytest.approx([123.6, 354.2, 753.8, 1310], rel=5e-4)


def test_the_60b_variant_differs_only_in_its_base() -> None:
    long, short = load_schedule("openwebtext_1.4b"), load_schedule("openwebtext_1.4b_60b")
    base = long.stages[0].model_copy(update={"train_tokens": 60 * 10**9})
    assert short == long.model_copy(update={"name": short.name, "stages": [base, *long.stages[1:]]})


def test_the_official_pair_has_its_sizes_and_budgets() -> None:
    loaded = load_schedule("openwebtext2_354m_757m")
    plans = plan_stages(loaded)
    assert [(plan.name, plan.num_steps) for plan in plans] == [("354m", 600_000), ("757m", 60_000)]
    assert [plan.num_parameters / 1e6 for plan in plans] == pytest.approx([353.5, 756.2], rel=5e-4)
    tokens = [(stage.attention_tokens, stage.ffn_tokens) for stage in loaded.stages]
    assert tokens == [(768, 3072), (1792, 7168)]
    assert (loaded.model.num_layers, loaded.model.hidden_size, loaded.model.num_heads) == (24, 1024, 16)
    assert loaded.learning_rate.final == 6e-5
    assert plans[0].tokens_per_step == 512 * 1024


@pytest.mark.parametrize("size", PILE)
def test_the_pile_models_from_scratch_are_the_published_ones(size: str) -> None:
    loaded = load_schedule(f"pile/tokenformer_{size}")
    (stage,) = loaded.stages
    model = loaded.model
    shape = (model.num_layers, model.hidden_size, model.num_heads, stage.attention_tokens, stage.ffn_tokens)
    assert shape == PILE[size]
    (plan,) = plan_stages(loaded)
    assert (plan.name, plan.num_steps, plan.tokens_per_step) == (size, 143_000, 1024 * 2048)
    assert plan.budget_tokens == pytest.approx(300e9, rel=1e-3)
    assert isinstance(plan.model, TokenformerConfig)
    nominal = {"150m": 150e6, "450m": 450e6, "900m": 900e6, "1.5b": 1.5e9}[size]
    assert num_parameters(plan.model) == pytest.approx(nominal, rel=0.06)
    rate = loaded.learning_rate
    assert (rate.peak, rate.final, rate.shape, rate.warmup_steps) == (6e-4, 6e-5, "cosine", 1430)
