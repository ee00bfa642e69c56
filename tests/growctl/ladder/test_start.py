"""Schedules that start from a checkpoint: what they plan, and one clear line for each misfit."""

import json
import shutil
from pathlib import Path

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_resolved, load_schedule
from growctl.ladder.plan import start_line
from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.ladder.warnings import schedule_warnings
from growctl.run.requests import schedule_yaml
from growctl.run.start import Start
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from model.config import TransformerConfig
from model.policy import GrowthPolicy, grow_config
from stages.checkpoint.lineage import TrainingCost
from stages.data.dataset import DatasetManifest, read_dataset_manifest
from stages.data.spec import DataSpec
from stages.grow.expand import expand
from tests.growctl.bases import COST, base_config, load_started, write_base
from tests.growctl.ladder.manifests import write_dataset
from tests.growctl.schedules import message_of

GROWS = ("stages.0.attention_tokens=5", "stages.0.ffn_tokens=12", "stages.1.ffn_tokens=12")
THREE = 'stages=[{name: a, attention_tokens: 5, ffn_tokens: 8, train_steps: 10}, {name: b, attention_tokens: 6, ' \
    'ffn_tokens: 8, train_steps: 10}, {name: c, attention_tokens: 8, ffn_tokens: 8, train_steps: 30}]'  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def started(base: Path, *overrides: str) -> Schedule:
    return load_started(base.parent, f"start.checkpoint={base}", *overrides)


def refusal(folder: Path, *overrides: str) -> str:
    [line] = message_of(load_started, folder, *overrides).splitlines()
    return line


def test_a_first_stage_of_the_checkpoints_size_trains_it_on(base: Path) -> None:
    first, second = plan_stages(started(base))
    assert first.model == base_config()
    assert first.has_initial
    assert not first.is_grown
    assert (first.generations, first.ramp_steps, first.anneal_steps) == ((), 0, None)
    assert second.model.newest_generation == 1
    assert second.growth.attention_tokens == (2, 2)


def test_a_larger_first_stage_grows_the_checkpoint_and_counts_generations_on(tmp_path: Path) -> None:
    grown = grow_config(base_config(3, 8), attention_tokens=1, ffn_tokens=0, policy=GrowthPolicy.of("official"))
    base = write_base(tmp_path / "base", grown)
    first, second = plan_stages(started(base, *GROWS, "growth.lr_scale=[2,1,0.5]"))
    assert first.is_grown
    assert (first.growth.attention_tokens, first.growth.ffn_tokens) == ((1, 1), (4, 4))
    numbers = [[g.number for g in plan.model.blocks[0].query.generations] for plan in (first, second)]
    assert numbers == [[0, 1, 2], [0, 1, 2, 3]]
    assert [rule.lr_scale for rule in first.generations] == [0.5, 1.0, 2.0]
    assert len(second.generations) == 4
    assert first.ramp_steps > 0


def test_tau_and_ramps_continue_from_the_checkpoint(tmp_path: Path) -> None:
    write_base(tmp_path / "small", base_config(3, 8))
    frozen = GrowthPolicy(init="zero-key", tau="frozen")
    expand(tmp_path / "small", tmp_path / "base", attention_tokens=1, ffn_tokens=0, policy=frozen)
    first, _ = plan_stages(started(tmp_path / "base"))
    assert first.model.blocks[0].query.tau == base_config(3, 8).blocks[0].query.tau
    assert first.ramp_steps == 0
    assert len(first.generations) == 2  # the checkpoint was only expanded: its newest generation is new here


def test_a_checkpoint_that_was_only_expanded_is_ramped_in_as_after_a_growth(tmp_path: Path) -> None:
    write_base(tmp_path / "small", base_config(3, 8))
    expand(tmp_path / "small", tmp_path / "base", attention_tokens=1, ffn_tokens=0)
    first, _ = plan_stages(started(tmp_path / "base"))
    assert not first.is_grown
    assert first.ramp_steps > 0
    assert first.model.blocks[0].query.generations[-1].key_ramp == 1.0


def test_only_some_layers_of_the_checkpoint_may_grow_first(base: Path) -> None:
    loaded = started(base, "stages.0.layers=[1]", "stages.0.attention_tokens=5", "~controls")
    first, second = plan_stages(loaded)
    assert first.growth.attention_tokens == (0, 1)
    assert second.growth.attention_tokens == (2, 1)


def test_the_first_stage_may_add_layers_to_the_checkpoint(base: Path) -> None:
    loaded = started(base, "stages.0.num_layers=3", "stages.0.attention_tokens=4", "~controls")
    first, second = plan_stages(loaded)
    assert first.is_grown
    assert first.growth == Growth((0, 0), (0, 0), new_layers=1)
    assert [plan.model.num_layers for plan in (first, second)] == [3, 3]
    assert first.ramp_steps == 0
    assert "stages.0.num_layers = 1: must be 2 or more, the depth of the start checkpoint" in refusal(
        base.parent, f"start.checkpoint={base}", "stages.0.num_layers=1", "~controls"
    )
    assert "; to add layers to it, set stages.0.num_layers" in refusal(
        base.parent, f"start.checkpoint={base}", "model.num_layers=3"
    )


def test_a_first_stage_without_sizes_trains_the_checkpoint_on(base: Path) -> None:
    first, second = plan_stages(started(base, "~stages.0.attention_tokens", "~stages.0.ffn_tokens"))
    assert not first.is_grown
    assert second.growth.attention_tokens == (2, 2)


def test_the_resolved_schedule_alone_plans_the_same_when_the_checkpoint_is_gone(base: Path) -> None:
    loaded = started(base, *GROWS)
    path = base.parent / str(loaded.name) / "schedule.yaml"
    path.parent.mkdir()
    path.write_text(schedule_yaml(loaded))
    shutil.rmtree(base)
    assert load_resolved(path) == loaded
    assert plan_stages(load_resolved(path)) == plan_stages(loaded)


def test_a_begun_run_keeps_its_start_when_the_checkpoint_changes_or_is_gone(base: Path) -> None:
    loaded = started(base)
    run = base.parent / "runs/mine"
    (run / "stages").mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(loaded))
    shutil.rmtree(base)
    again = load_started(base.parent, f"start.checkpoint={base}", run="mine")
    assert again.base == loaded.base
    assert "does not exist" in refusal(base.parent, f"start.checkpoint={base}")
    (run / "stages").rmdir()  # a run that has not begun may start from something else
    assert "does not exist" in message_of(lambda: load_started(base.parent, f"start.checkpoint={base}", run="mine"))


@pytest.mark.parametrize(
    ("change", "key", "needed"),
    [
        ({"vocab_size": 310}, "data.vocab_size = 300", "310"),
        ({"hidden_size": 64}, "model.hidden_size = 32", "64"),
        ({"num_heads": 4, "rotary_fraction": 0.25}, "model.num_heads = 2", "4"),
        ({"num_layers": 3}, "model.num_layers = 2", "3"),
        ({"rotary_fraction": 0.5}, "model.rotary_fraction = 0.25", "0.5"),
        ({"rotary_base": 500.0}, "model.rotary_base = 10000.0", "500.0"),
        ({"score_function": "softmax"}, "model.score_function = 'l2_norm_gelu'", "'softmax'"),
    ],
)
def test_another_shape_is_one_clear_line(tmp_path: Path, change: dict, key: str, needed: str) -> None:
    base = write_base(tmp_path / "base", base_config(**change))
    line = refusal(tmp_path, f"start.checkpoint={base}")
    assert f"{key}: must be {needed}, as in the start checkpoint {base}" in line


def test_a_transformer_is_refused_on_either_side(tmp_path: Path) -> None:
    model = TransformerConfig(vocab_size=300, hidden_size=32, num_heads=2, num_layers=2, ffn_size=128)
    base = write_base(tmp_path / "base", model)
    assert "is a transformer; a run can only start from a tokenformer" in refusal(tmp_path, f"start.checkpoint={base}")
    ladder = ("model.family=transformer", "stages=[{name: a, train_steps: 5}]", "~controls")
    base = write_base(tmp_path / "tokenformer")
    assert "only a tokenformer can start" in refusal(tmp_path, f"start.checkpoint={base}", *ladder)


def test_uneven_attention_and_fewer_tokens_are_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "uneven", base_config(projection_tokens=6))
    assert "differ in size in" in refusal(tmp_path, f"start.checkpoint={base}")
    base = write_base(tmp_path / "larger", base_config(6, 8))
    line = refusal(tmp_path, f"start.checkpoint={base}")
    assert "stages.0.attention_tokens = 4: must be 6 or more; a growth only adds" in line


def test_a_start_that_names_nothing_or_too_much_is_one_clear_line(base: Path) -> None:
    folder = base.parent
    assert "start.checkpoint = 'nowhere': nowhere is neither a path nor a run in" in refusal(
        folder, "start.checkpoint=nowhere"
    )
    assert "start: needs either checkpoint or run, not both" in refusal(folder, f"start={{checkpoint: {base}, run: a}}")
    assert "start: needs either checkpoint or run" in refusal(folder, "start.flops=1e9")
    assert "goes with run" in refusal(folder, f"start={{checkpoint: {base}, stage: a}}")
    line = refusal(folder, f"start.chekpoint={base}")
    assert "did you mean 'checkpoint'? (allowed here: checkpoint, run, stage, flops)" in line
    (folder / "empty").mkdir()
    assert "empty is not a complete checkpoint, and holds none: it has" in refusal(
        folder, f"start.checkpoint={folder / 'empty'}"
    )
    (folder / ".final.incomplete").mkdir()
    assert "final was left unfinished by a killed process; run the command again, or remove" in refusal(
        folder, f"start.checkpoint={folder / 'final'}"
    )
    (folder / ".base.incomplete").mkdir()  # left behind by a process that was killed before the checkpoint was written
    assert started(base).base


def test_a_broken_checkpoint_is_one_clear_line(base: Path) -> None:
    next((base / "parameters").iterdir()).unlink()
    assert "is broken" in refusal(base.parent, f"start.checkpoint={base}")
    (base / "manifest.json").write_text("{}")
    assert "manifest.json cannot be read" in refusal(base.parent, f"start.checkpoint={base}")


def test_a_run_and_stage_are_found_by_name_and_the_newest_finished_one_by_default(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_base(runs / "first/stages/0-small/final")
    write_base(runs / "first/stages/1-large/final", base_config(4, 8))
    (runs / "first/stages/2-huge").mkdir()
    (runs / "first/schedule.yaml").touch()
    newest = load_started(tmp_path, "start.run=first").base
    assert newest
    assert newest.path == str(runs / "first/stages/1-large/final")
    assert newest.run == "first, stage large"
    named = load_started(tmp_path, "start={run: first, stage: small}").base
    assert named
    assert named.path == str(runs / "first/stages/0-small/final")
    line = refusal(tmp_path, "start.run=frist")
    assert f"start.run = 'frist': frist is neither a path nor a run in {runs}; the nearest is first" in line
    line = refusal(tmp_path, "start={run: first, stage: smal}")
    assert f"start.stage = 'smal': {runs}/first has no 'smal'; the nearest are small, 0-small" in line
    line = refusal(tmp_path, "start={run: first, stage: huge}")
    assert f"start.stage = 'huge': {runs}/first/stages/2-huge is not a complete checkpoint, and holds none" in line
    shutil.rmtree(runs / "first/stages")
    assert "first is not a complete checkpoint, and holds none" in refusal(tmp_path, "start.run=first")


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("checkpoint: {runs}/first", "1-large/final"),
        ("checkpoint: {runs}/first/stages/0-small", "0-small/final"),
        ("checkpoint: {runs}/first/stages/0-small/release", "0-small/release/final"),
        ("checkpoint: first", "1-large/final"),
        ("checkpoint: first/small", "0-small/final"),
        ("checkpoint: first/small/release", "0-small/release/final"),
        ("checkpoint: first/large/initial", "1-large/initial"),
        ("run: first, stage: small/release", "0-small/release/final"),
        ("run: first, stage: large/initial", "1-large/initial"),
    ],
)
def test_a_start_takes_whatever_commands_take_for_a_checkpoint(tmp_path: Path, start: str, found: str) -> None:
    stages = tmp_path / "runs/first/stages"
    for checkpoint in ("0-small/final", "0-small/release/final", "1-large/initial", "1-large/final"):
        write_base(stages / checkpoint)
    (tmp_path / "runs/first/schedule.yaml").touch()
    base = load_started(tmp_path, f"start={{{start.format(runs=tmp_path / 'runs')}}}").base
    assert base
    assert base.path == str(stages / found)


@pytest.mark.parametrize("run", ["../outside", "/outside", "first/../../outside"])
def test_the_run_of_a_start_is_never_a_path_out_of_the_runs_directory(tmp_path: Path, run: str) -> None:
    write_base(tmp_path / "outside/stages/0-small/final")
    (tmp_path / "runs").mkdir()
    assert "does not exist" in refusal(tmp_path, f"start.run={run}")


def test_a_checkpoint_that_still_lacks_its_manifest_is_not_complete(base: Path) -> None:
    (base / "manifest.json").unlink()
    assert "base is not a complete checkpoint, and holds none: it has no manifest.json" in refusal(
        base.parent, f"start.checkpoint={base}"
    )


def test_controls_count_the_base_and_those_that_grow_start_from_it(base: Path) -> None:
    controls = "controls=[{kind: tokenformer-scratch, budgets: [1, 2]}, {kind: single-jump}, {kind: official-growth}]"
    loaded = started(base, THREE, controls)
    whole = COST.flops.total + total_flops(plan_stages(loaded)).total
    scratch, twice, jump, official = (control.schedule for control in plan_controls(loaded))
    assert scratch.start is twice.start is None
    assert jump.base == official.base == loaded.base

    def flops(schedule: Schedule) -> float:
        return (schedule.base_flops or 0.0) + total_flops(plan_stages(schedule)).total

    for control, budget in ((scratch, 1), (twice, 2), (jump, 1), (official, 1)):
        assert abs(flops(control) - budget * whole) <= plan_stages(control)[-1].step_flops.total
    assert not [caveat for caveat in schedule_warnings(loaded) if "start checkpoint" in caveat]


@pytest.mark.parametrize("cost", [None, TrainingCost(complete=False)])
def test_an_unknown_cost_of_the_base_is_a_caveat_unless_the_schedule_gives_it(
    tmp_path: Path, cost: TrainingCost | None
) -> None:
    base = write_base(tmp_path / "base", cost=cost)
    loaded = started(base)
    assert loaded.base_flops is None
    assert all("whose cost is not known" in caveat for caveat in schedule_warnings(loaded))
    assert len(schedule_warnings(loaded)) == 3
    assert "The cost of this checkpoint is not known" in str(start_line(loaded))
    given = started(base, "start.flops=1e20")
    assert given.base_flops == 1e20
    assert not [caveat for caveat in schedule_warnings(given) if "start checkpoint" in caveat]


def test_official_growth_of_one_stage_needs_a_base_that_grows(base: Path) -> None:
    one = "stages=[{name: a, attention_tokens: 5, ffn_tokens: 8, train_steps: 10}]"
    assert len(plan_controls(started(base, one, "controls=[{kind: official-growth}]"))) == 1
    same = one.replace("5", "4")
    with pytest.raises(ScheduleError, match="needs a tokenformer that grows"):
        started(base, same, "controls=[{kind: official-growth}]")


def test_a_run_may_start_from_what_a_resolved_schedule_names_under_another_name(base: Path) -> None:
    path = base.parent / "resolved.yaml"
    path.write_text(schedule_yaml(started(base)))
    again = load_schedule(str(path), ["name=other"], runs_dir=base.parent)
    assert json.loads(again.model_dump_json())["start"]["base"]["path"] == str(base)


def at_sample_40(schedule: Schedule, folder: Path) -> tuple[Start, DatasetManifest]:
    """The start of a run whose checkpoint has read 40 samples of the dataset."""
    start = Start.of(schedule, folder)
    assert start
    write_dataset(folder / "dataset", DataSpec(source="text"))
    dataset = read_dataset_manifest(folder / "dataset")
    known = {"dataset_fingerprint": dataset.fingerprint, "seed": schedule.seed, "samples_seen": 40}
    start.base = start.base.model_copy(update=known)
    return start, dataset


@pytest.mark.parametrize(
    ("windows", "context", "position", "said"),
    [
        (16, 16, 40 * 16, "from sample 40, where the start checkpoint stopped"),
        (16, 8, 40 * 8, "from sample 40, where the start checkpoint stopped"),
        (32, 16, 0, "from sample 0, because the start checkpoint was trained with another context"),
        (8, 8, 0, "from sample 0, because the start checkpoint was trained with another context"),
    ],
)
def test_the_data_goes_on_after_a_checkpoint_of_the_same_windows(
    tmp_path: Path, windows: int, context: int, position: int, said: str
) -> None:
    start, dataset = at_sample_40(started(write_base(tmp_path / "base", base_config())), tmp_path)
    start.base = start.base.model_copy(update={"window_length": windows, "sequence_length": context})
    assert start.position(dataset) == (position, said)


@pytest.mark.parametrize("masked", [False, True])
def test_a_start_that_reads_documents_in_another_way_says_so_and_begins_the_data_anew(
    tmp_path: Path, masked: bool
) -> None:
    config = base_config().model_copy(update={"document_end_id": 0 if masked else None})
    base, said = write_base(tmp_path / "base", config), list[str]()
    schedule = started(base, f"data.document_mask={not masked}".lower(), "data.packing=best_fit")
    start, dataset = at_sample_40(schedule, tmp_path)
    start.tell(dataset, said.append)
    text = " ".join(said)
    assert "data from sample 0, because the start checkpoint was trained with another data.packing" in text
    assert f"to keep it, set data.document_mask={str(masked).lower()}" in text
