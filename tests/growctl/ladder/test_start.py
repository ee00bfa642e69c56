"""Schedules that start from a checkpoint: what they plan, and one clear line for each misfit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_resolved, load_schedule
from growctl.ladder.plan import start_line
from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import StagePlan, plan_stages, total_flops
from growctl.run.requests import schedule_yaml
from growctl.run.start import Start
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from model.config_growth import grow_config
from model.decoder_config import decoder_config
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import TrainingCost
from stages.checkpoint.manifest import TextFacts
from stages.data.dataset import DatasetManifest, read_dataset_manifest
from stages.data.spec import DataSpec
from stages.grow.expand import expand
from tests.growctl.bases import base_config, change_manifest, load_started, write_base
from tests.growctl.ladder import write_dataset
from tests.growctl.schedules import message_of

GROWS = ("stages.0.attention_tokens=5", "stages.0.ffn_tokens=12", "stages.1.ffn_tokens=12")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def started(base: Path, *overrides: str) -> Schedule:
    return load_started(base.parent, f"start.checkpoint={base}", *overrides)


def refusal(folder: Path, *overrides: str) -> str:
    [line] = message_of(load_started, folder, *overrides).splitlines()
    return line


def test_a_first_stage_of_the_checkpoints_size_or_without_sizes_trains_it_on(base: Path) -> None:
    for overrides in ((), ("~stages.0.attention_tokens", "~stages.0.ffn_tokens")):
        first, second = plan_stages(started(base, *overrides))
        assert (first.model, first.has_initial, first.is_grown) == (base_config(), True, False)
        assert (first.generations, first.ramp_steps, first.anneal_steps) == ((), 0, None)
        assert (second.model.newest_generation, second.growth.attention_tokens) == (1, (2, 2))


def test_a_larger_first_stage_grows_the_checkpoint_and_counts_generations_on(tmp_path: Path) -> None:
    grown = grow_config(base_config(3, 8), attention_tokens=1, ffn_tokens=0, policy=GrowthPolicy.of("official"))
    base = write_base(tmp_path / "base", grown)
    first, second = plan_stages(started(base, *GROWS, "growth.lr_scale=[2,1,0.5]"))
    assert (first.is_grown, first.ramp_steps > 0, first.growth) == (True, True, Growth((1, 1), (4, 4)))
    numbers = [[g.number for g in plan.model.blocks[0].query.generations] for plan in (first, second)]
    assert numbers == [[0, 1, 2], [0, 1, 2, 3]]
    assert [rule.lr_scale for rule in first.generations] == [0.5, 1.0, 2.0]
    assert len(second.generations) == 4


@pytest.mark.parametrize(
    ("policy", "ramps"), [(GrowthPolicy(), True), (GrowthPolicy(init="zero-key", tau="frozen"), False)]
)
def test_an_expanded_checkpoint_keeps_the_tau_and_the_ramp(tmp_path: Path, policy: GrowthPolicy, ramps: bool) -> None:
    small = write_base(tmp_path / "small", base_config(3, 8))
    expand(small, tmp_path / "grown", attention_tokens=1, ffn_tokens=0, policy=policy)
    plan = plan_stages(started(tmp_path / "grown"))[0]
    query = plan.model.blocks[0].query
    assert (plan.is_grown, plan.ramp_steps > 0, query.generations[-1].key_ramp) == (False, ramps, 1.0)
    assert (query.tau == base_config(3, 8).blocks[0].query.tau) is not ramps
    assert len(plan.generations) == 2, "its newest generation is new here"


def test_the_first_stage_may_grow_only_some_layers_of_the_checkpoint_or_add_layers(base: Path) -> None:
    first, second = plan_stages(started(base, "stages.0.layers=[1]", "stages.0.attention_tokens=5", "~controls"))
    assert (first.growth.attention_tokens, second.growth.attention_tokens) == ((0, 1), (2, 1))
    first, second = plan_stages(started(base, "stages.0.num_layers=3", "stages.0.attention_tokens=4", "~controls"))
    assert (first.growth, first.ramp_steps) == (Growth((0, 0), (0, 0), new_layers=1), 0)
    assert [plan.model.num_layers for plan in (first, second)] == [3, 3]


def test_the_first_stage_may_give_a_decoder_more_heads_or_a_larger_width(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", DECODER)

    def first(size: str, *overrides: str, of: Path = base) -> StagePlan:
        stages = f"stages=[{{name: a, {size}, train_steps: 5}}]"
        return plan_stages(started(of, "model.family=decoder", stages, "~controls", *overrides))[0]

    headed, wide = first("num_heads: 3", "growth.old_tokens=freeze"), first("hidden_size: 64")
    assert (headed.growth, wide.growth) == (Growth((), (0, 0), heads=1), Growth((), (0, 0), widen=2))
    expand(base, tmp_path / "expanded", ffn_tokens=4)
    expanded = first("ffn_tokens: 132", "growth.old_tokens=freeze", of=tmp_path / "expanded")
    assert (expanded.is_grown, headed.is_grown) == (False, True)
    for plan in (headed, expanded):
        assert [rule.factor(0) for rule in plan.generations] == [0.0, 1.0]


@pytest.mark.slow
def test_a_begun_run_keeps_its_start_when_the_checkpoint_changes_or_is_gone(base: Path) -> None:
    loaded = started(base, *GROWS)
    run = base.parent / "runs/mine"
    (run / "stages").mkdir(parents=True)
    for path in (run / "schedule.yaml", base.parent / "resolved.yaml"):
        path.write_text(schedule_yaml(loaded))
    other = load_schedule(str(base.parent / "resolved.yaml"), ["name=other"], runs_dir=base.parent)
    assert other.base == loaded.base, "a run may start from what another one's schedule names"
    shutil.rmtree(base)
    assert plan_stages(load_resolved(run / "schedule.yaml")) == plan_stages(loaded), "the stored schedule is enough"
    again = load_started(base.parent, f"start.checkpoint={base}", run="mine")
    assert again.base == loaded.base
    assert "does not exist" in refusal(base.parent, f"start.checkpoint={base}")
    (run / "stages").rmdir()  # a run that has not begun may start from something else
    with pytest.raises(ScheduleError, match="does not exist"):
        load_started(base.parent, f"start.checkpoint={base}", run="mine")


DECODER = decoder_config(vocab_size=300, hidden_size=32, num_heads=2, num_layers=2, ffn_tokens=128)
OF_DECODERS = ("model.family=decoder", "stages=[{name: a, train_steps: 5}]", "~controls")


@pytest.mark.parametrize(
    ("model", "overrides", "said"),
    [
        (base_config(vocab_size=310), (), "data.vocab_size = 300: must be 310"),
        (base_config(rotary_fraction=0.5), (), "model.rotary_fraction = 0.25: must be 0.5"),
        (base_config(score_function="softmax"), (), "model.score_function = 'l2_norm_gelu': must be 'softmax'"),
        (DECODER, (), "model.family = 'tokenformer': must be 'decoder'"),
        (None, OF_DECODERS, "model.family = 'decoder': must be 'tokenformer'"),
        (DECODER, (*OF_DECODERS, "model.activation=relu2"), "model.activation = 'relu2': must be 'gelu'"),
        (base_config(projection_tokens=6), (), "differ in size in"),
        (base_config(6, 8), (), "stages.0.attention_tokens = 4: must be 6 or more"),
        (None, ("stages.0.num_layers=1", "~controls"), "stages.0.num_layers = 1: must be 2 or more"),
    ],
)
def test_a_misfitting_checkpoint_is_one_line(tmp_path: Path, model: Any, overrides: tuple[str, ...], said: str) -> None:
    base = write_base(tmp_path / "base", model)
    assert said in refusal(tmp_path, f"start.checkpoint={base}", *overrides)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("{checkpoint: nowhere}", "start.checkpoint = 'nowhere': nowhere is neither a path nor a run in"),
        ("{checkpoint: FOLDER/base, run: a}", "start: needs either checkpoint or run, not both"),
        ("{checkpoint: FOLDER/empty}", "start.checkpoint = 'FOLDER/empty': FOLDER/empty is not a complete checkpoint"),
        ("{checkpoint: FOLDER/torn}", "is broken"),
        ("{run: first/../../torn}", "does not exist"),
        ("{run: first, stage: smal}", "start.stage = 'smal': FOLDER/runs/first has no 'smal'; the nearest are"),
        ("{run: first, stage: huge}", "start.stage = 'huge': FOLDER/runs/first/stages/2-huge is not a complete"),
    ],
)
def test_a_start_that_names_nothing_whole_or_too_much_is_one_clear_line(base: Path, start: str, said: str) -> None:
    folder = base.parent
    for empty in ("empty", ".base.incomplete", "runs/first/stages/2-huge"):
        (folder / empty).mkdir(parents=True)
    for name in ("torn", "runs/first/stages/0-small/final"):
        write_base(folder / name)
    (folder / "runs/first/schedule.yaml").touch()
    next((folder / "torn/parameters").iterdir()).unlink()
    assert said.replace("FOLDER", str(folder)) in refusal(folder, f"start={start.replace('FOLDER', str(folder))}")
    assert started(base).base, "whatever a killed process left beside it"


def test_controls_count_from_the_base_on_and_all_but_those_from_scratch_start_from_it(base: Path) -> None:
    three = ", ".join(f"{{name: s{n}, attention_tokens: {n}, ffn_tokens: 8, train_steps: 20}}" for n in (5, 6, 8))
    kinds = (
        "{kind: tokenformer-scratch, budgets: [1, 2]}, {kind: single-jump}, {kind: official-growth}, {kind: ungrown}"
    )
    loaded = started(base, f"stages=[{three}]", f"controls=[{kinds}]")
    whole = total_flops(plan_stages(loaded)).total
    scratch, twice, jump, official, ungrown = (control.schedule for control in plan_controls(loaded))
    assert scratch.start is twice.start is None
    assert jump.base == official.base == ungrown.base == loaded.base
    assert [plan.model for plan in plan_stages(ungrown)] == [base_config()]
    for control, budget in ((scratch, 1), (twice, 2), (jump, 1), (official, 1), (ungrown, 1)):
        plans = plan_stages(control)
        assert abs(total_flops(plans).total - budget * whole) <= plans[-1].step_flops.total


@pytest.mark.parametrize("cost", [None, TrainingCost(complete=False)], ids=["no cost", "a part of it"])
def test_what_the_base_cost_is_as_given_else_as_recorded(tmp_path: Path, cost: TrainingCost | None) -> None:
    base = write_base(tmp_path / "base", cost=cost)
    loaded, given = started(base), started(base, "start.flops=1e20")
    assert (loaded.base_flops, given.base_flops) == (None, 1e20)
    assert "Its cost is not known" in str(start_line(loaded))
    assert "1.00e20 FLOPs are paid for" in str(start_line(given))


def at_sample_40(
    schedule: Schedule, folder: Path, windows: int = 16, context: int = 16
) -> tuple[Start, DatasetManifest]:
    """The start of a run whose checkpoint has read 40 samples of the dataset."""
    start = Start.of(schedule, folder)
    assert start
    write_dataset(folder / "dataset", DataSpec(source="text"))
    dataset = read_dataset_manifest(folder / "dataset")
    known = {"dataset_fingerprint": dataset.fingerprint, "seed": schedule.seed, "samples_seen": 40}
    start.base = start.base.model_copy(update=known | {"window_length": windows, "sequence_length": context})
    return start, dataset


@pytest.mark.parametrize(("windows", "context", "sample"), [(16, 16, 40), (16, 8, 40), (32, 16, 0), (8, 8, 0)])
def test_the_data_goes_on_after_a_checkpoint_of_the_same_windows(base: Path, windows: int, context: int, sample: int):
    start, dataset = at_sample_40(started(base), base.parent, windows, context)
    token, reason = start.position(dataset)
    assert token == sample * context
    assert ("another context" in reason) is (sample == 0)


@pytest.mark.parametrize("masked", [False, True])
def test_a_start_that_reads_documents_in_another_way_says_so_and_begins_the_data_anew(tmp_path: Path, masked: bool):
    config = base_config().model_copy(update={"document_end_id": 0 if masked else None})
    base, said = write_base(tmp_path / "base", config), list[str]()
    change_manifest(base, text=TextFacts(context_length=16, begin_of_text="<s>" if masked else None))
    schedule = started(base, f"data.document_mask={not masked}".lower(), "data.packing=best_fit")
    start, dataset = at_sample_40(schedule, tmp_path)
    start.tell(dataset, said.append)
    text = " ".join(said)
    assert "data from sample 0, because the start checkpoint was trained with another data.packing" in text
    assert f"to keep it, set data.document_mask={str(masked).lower()}" in text
    assert ("begins with <s>, and those of the dataset with nothing; to keep it, set data.begin" in text) is masked
