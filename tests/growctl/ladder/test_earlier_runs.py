"""What a plan says of earlier runs: the checkpoints that a run takes over, and the speed of this machine."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.conditions import Trained
from growctl.ladder.costs import Plan
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_run
from growctl.ladder.warnings import too_slow
from growctl.launch.machines import Devices
from growctl.ledger.ledger import Ledger
from growctl.run.requests import RunRequest, check_time
from growctl.runs.directory import RunError
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder
from tests.growctl.runs import run, run_here, write_schedule

CONTROLS = "controls=[{kind: tokenformer-scratch, budgets: [0.5, 1, 2]}, {kind: single-jump}, {kind: official-growth}]"
THREE = 'stages=[{name: a, attention_tokens: 8, ffn_tokens: 16, train_steps: 20}, {name: b, attention_tokens: 12, ' \
    "ffn_tokens: 24, train_steps: 10}, {name: c, attention_tokens: 16, ffn_tokens: 32, train_steps: 10}]"  # fmt: skip


LONGER = ("stages.2.train_steps=20", "controls=[]", "name=longer")


def reused(schedule: Schedule) -> dict[str, list[int]]:
    """The steps that each stage takes over, by the control's name without the ladder's."""
    plan = make_plan(schedule)
    steps = {
        run.name: [round(stage.reused_flops / stage.plan.step_flops.total) for stage in run.stages] for run in plan.runs
    }
    return {name.removeprefix(f"{plan.name}-control-"): of_run for name, of_run in steps.items()}


def test_controls_share_the_undecayed_training_of_those_before_and_of_the_ladder() -> None:
    schedule = ladder((20, 20), controls=[{"kind": "tokenformer-scratch", "budgets": [0.5, 1, 2]}])
    half, whole = (make_plan(schedule).controls[number].stages[0].num_steps for number in (0, 1))
    trunks = [steps - round(0.2 * steps) + 1 for steps in (half, whole)]
    assert list(reused(schedule).values()) == [[0, 0], [0], [trunks[0]], [trunks[1]]]
    lost = schedule.model_copy(update={"checkpoint": schedule.checkpoint.model_copy(update={"keep_trunk": False})})
    assert list(reused(lost).values()) == [[0, 0], [0], [0], [0]], "nothing is kept before the decay"
    shared = reused(ladder(controls=[{"kind": "single-jump"}, {"kind": "official-growth"}]))
    assert shared["single-jump"] == [20, 0]
    assert shared["official-growth"] == [20, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"data": {"source": __file__, "vocab_size": 301}},
        {"learning_rate": {"peak": 2e-3, "warmup_steps": 5}},
        {"learning_rate": {"peak": 1e-3, "warmup_steps": 5, "shape": "cosine"}},
        {"optimizer": {"epsilon": 1e-6}},
        {"growth": {"when": "slope", "slope": 1e-12}},
    ],
)
def test_other_training_shares_nothing(tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    one = ladder((20, 20))
    earlier = Trained(one, plan_run(one), [[20], [20]])
    monkeypatch.setattr("growctl.ladder.plan.earlier_runs", lambda _: [earlier])
    assert make_plan(ladder((20, 20)), tmp_path).total.trained_flops == 0
    assert make_plan(ladder((20, 20), **changes), tmp_path).total.reused_flops == 0


@pytest.mark.trains
def test_a_plan_counts_what_the_run_then_trains_and_evaluates(tmp_path: Path) -> None:
    """Before the run, and after it, when nothing is left to train; and a ladder that shares its first stage."""
    options = (write_schedule(tmp_path), THREE, CONTROLS)
    run("prepare", *options, "--runs-dir", tmp_path)

    def plan(*changes: str) -> Plan:
        return make_plan(load_schedule(str(options[0]), [*options[1:], *changes], runs_dir=tmp_path), tmp_path)

    def assert_trained(plan: Plan) -> None:
        for part in plan.runs:
            with Ledger(RunsPaths(tmp_path).run(part.name).ledger, read_only=True) as ledger:
                for stage in part.stages:
                    spent = ledger.stage_cost(stage.name).spent
                    assert stage.trained_flops == pytest.approx(spent.flops.total), (part.name, stage.name)
                    if not stage.reused_flops:
                        assert stage.evaluation_flops == pytest.approx(spent.evaluation_flops, rel=0.02)

    before = plan()
    assert before.total_with_controls.reused_flops > 0
    assert not [note for note in before.notes if note.startswith("At the speed of")]
    run("run", *options, "--runs-dir", tmp_path)
    assert_trained(before)
    assert plan().total_with_controls.trained_flops == pytest.approx(0)
    longer = plan(*LONGER)
    assert [round(stage.trained_flops) > 0 for stage in longer.stages] == [False, False, True]
    run("run", *options, *LONGER, "--runs-dir", tmp_path)
    assert_trained(longer)
    [speed] = [note for note in longer.notes if note.startswith("At the speed of earlier runs on this machine (tiny")]
    assert " takes " in speed
    far = plan("model.hidden_size=256", "name=wide", "controls=[]")
    assert not [note for note in far.notes if note.startswith("At the speed of")], "no run trained such models"


def test_evaluations_that_cost_much_of_the_training_are_a_warning_and_others_a_note() -> None:
    few = {"max_sequences": 8, "every": 10}
    plan = make_plan(ladder((20,), evaluation=few))
    tokens, forward = 8 * 16, plan.stages[0].plan.step_flops.total / (8 * 16) / 3
    assert plan.total.evaluation_flops == pytest.approx(2 * tokens * forward)
    share = 2 * tokens / (20 * 8 * 16 * 3)
    assert plan.notes[0] == f"Evaluations add {share:.0%} to the FLOPs of training."
    [warning] = [line for line in make_plan(ladder((20,), evaluation=few | {"every": 1})).warnings if "Evalu" in line]
    assert "evaluation.every" in warning
    assert make_plan(ladder((20,))).total.evaluation_flops is None, "the size of the text is not known"


def test_only_what_is_taken_over_of_a_gpu_ladder_runs_on_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, cpu = load_schedule("pile_1.4b"), Devices(2, "cpu", fast_bf16=False)
    assert too_slow("s", 1e22, schedule, Devices(8, "cuda", fast_bf16=True)) is None
    assert too_slow("s", 1e15, schedule, cpu) is None
    assert "years on" in run_here("run", "pile_1.4b", "--runs-dir", tmp_path, expect=2)[1]
    with pytest.raises(RunError, match="train it on GPUs"):
        check_time([RunRequest("pile_1.4b", schedule, "pile_1.4b")], tmp_path, cpu)
    plans = plan_run(schedule)
    copy = Trained(schedule, plans, [[plan.num_steps] for plan in plans])
    monkeypatch.setattr("growctl.run.requests.earlier_runs", lambda _: [copy])
    check_time([RunRequest("copy", schedule, "pile_1.4b")], tmp_path, cpu, [tmp_path])
