"""What two runs may differ in: every key of the resolved schedule counts, except those known not to matter."""

from dataclasses import replace

import pytest

from growctl.analysis.conditions import control_differs, differences, recipe, same_machines
from growctl.analysis.costs import currency
from growctl.ladder.checks import check_combinations
from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.law.measured import shared_conditions
from growctl.ledger.entries import BaseEntry
from tests.growctl.grown_ladders import decoder_ladder
from tests.growctl.report.invented_reports import run_report
from tests.growctl.schedules import changed, parse

KINDS = ("tokenformer-scratch", "decoder-scratch", "best-scratch", "single-jump", "official-growth")


def run_of(schedule, kind=None, sizes=(1000, 2000)):
    """A finished run of a schedule, as far as its conditions go."""
    conditions = comparison_conditions(schedule)
    return run_report("run", kind=kind, sizes=sizes, conditions=conditions, seed=schedule.seed)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"anomalies.spikes": "rollback"}, {"anomalies.spikes"}),
        ({"stages.1.ramp_steps": 3}, {"stages.1.ramp_steps"}),
        ({"growth.rewarmup": {"steps": 5}}, {"growth.rewarmup.steps"}),
        ({"evaluation.max_sequences": 7, "data.packing": "best_fit"}, {"evaluation.max_sequences", "data.packing"}),
        ({"optimizer.weight_decay": 0.2, "seed": 9}, {"optimizer.weight_decay", "seed"}),
        ({"checkpoint.every": 5, "trackers": ["tensorboard"], "evaluation.every": 3, "data.workers": 3}, set()),
        ({"samples": {"prompts": ["a"]}, "controls": [], "training.log_every": 3, "stages.0.name": "other"}, set()),
        ({"model.num_kv_heads": 2, "model.head_width": 16}, set()),  # what they are by default
        ({"model.num_kv_heads": 1}, {"model.num_kv_heads"}),
        ({"launch.zero_stage": 2, "launch.hardware": {"price_per_device_hour": 2.0}}, set()),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_key_that_may_change_a_loss_is_a_condition_and_no_other(changes, keys):
    a, b = run_of(parse(changed({}))), run_of(parse(changed(changes)))
    assert {each.key for each in differences(a, b)} == keys
    assert (recipe(a) == recipe(b)) == (not keys - {"seed"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_control_that_growctl_generates_differs_only_in_what_its_kind_is_for(kind):
    stages = [{"name": f"s{size}", "attention_tokens": size, "ffn_tokens": 8, "train_steps": 20} for size in (4, 6, 8)]
    control = {"kind": kind} | ({"depths": [1, 3]} if kind == "best-scratch" else {})
    growth = {"init": "zero-value", "tau": "per-generation"}
    model = {"model.score_function": "softmax", "model.num_kv_heads": 1}
    ladder = parse(changed(model | {"controls": [control], "stages": stages, "growth": growth}))
    sizes = {"single-jump": (1000, 3000), "official-growth": (1000, 2000, 3000)}.get(kind, (3000,))
    for plan in plan_controls(ladder):
        run, control = run_of(ladder, sizes=(1000, 2000, 3000)), run_of(plan.schedule, kind, sizes)
        assert check_combinations(plan.schedule) == control_differs(run, control) == [], plan.name
        other = replace(control, conditions=control.conditions | {"optimizer.weight_decay": 0.5})
        assert control_differs(run, other) == ["optimizer.weight_decay (0.1 against 0.5)"]
        for key in ("stages.0.ffn_tokens", "stages.0.batch_size"):
            other = replace(control, conditions=control.conditions | {key: 99})
            assert len(control_differs(run, other)) == (key.endswith("batch_size") or kind != "decoder-scratch")


def test_heads_of_a_decoder_are_conditions_of_its_stages_and_no_obstacle_to_a_law():
    stages = [{}, {"hidden_size": 64, "num_heads": 4}]
    ladder = decoder_ladder(*stages, growth={}, controls=[{"kind": "decoder-scratch"}])
    [plan] = plan_controls(ladder)
    runs = run_of(ladder), run_of(plan.schedule, "decoder-scratch", (2000,))
    assert control_differs(*runs) == []
    assert shared_conditions(runs[1].conditions).items() <= shared_conditions(runs[0].conditions).items()
    other = decoder_ladder(*stages, growth={}, model=ladder.model.model_dump() | {"head_width": 16})
    assert not differences(runs[0], run_of(other))


@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_control_with_few_steps_reads_every_mixture_of_its_ladder(kind):
    sources = [{"name": name, "source": __file__, "weight": 1.0} for name in ("books", "code")]
    weights = ({"books": 3.0, "code": 1.0}, {"books": 1.0, "code": 3.0}, {"books": 1.0, "code": 1.0})
    stages = [
        {"name": f"s{size}", "attention_tokens": size, "ffn_tokens": 8, "train_steps": steps, "mixture": mixture}
        for size, steps, mixture in zip((4, 6, 8), (1, 1, 200), weights, strict=True)
    ]
    data = {"vocab_size": 300, "mixture": sources}
    ladder = parse(changed({"data": data, "stages": stages, "controls": [{"kind": kind, "budgets": [0.5]}]}))
    run = run_of(ladder, sizes=(1000, 2000, 3000))
    for plan in plan_controls(ladder):
        control = run_of(plan.schedule, kind, (3000,))
        assert control_differs(run, control) == [], plan.name
        [key] = [key for key in control.conditions if key.endswith(".mixture")]
        other = replace(control, conditions=control.conditions | {key: control.conditions[key][:1]})
        assert control_differs(run, other) == ["the mixture that it reads"]


def test_seeds_belong_together_if_each_starts_from_a_model_of_its_own_seed_made_alike():
    def started(seed, model, made="alike"):
        base = BaseEntry(f"{model}/final", model, None, 400_000, 4e12, recipe=made)
        return replace(run_report("quick"), seed=seed, base=base, conditions={"seed": seed, "start.manifest": model})

    assert recipe(started(0, "first")) == recipe(started(1, "second"))
    for other in (started(1, "second", made="otherwise"), started(1, "second", made=None)):
        assert recipe(started(0, "first")) != recipe(other)
    of_others = control_differs(started(0, "first"), replace(started(0, "second"), control="ungrown"))
    assert "start.manifest (first against second)" in of_others


def test_time_compares_only_on_the_same_machines_launched_alike():
    run = replace(run_of(parse(changed({}))), machines=(("cpu", 2, "bf16"),))
    more = replace(run, machines=(("cpu", 4, "bf16"),))
    sharded = replace(run, conditions=run.conditions | {"launch.zero_stage": 3})
    resumed = replace(run, relaunched=("launch.zero_stage",))
    launched = "they were launched differently (launch.zero_stage)"
    assert same_machines([run, run]) is None
    assert same_machines([run, more]) == "they ran on different machines (2 x cpu in bf16; 4 x cpu in bf16)"
    assert [same_machines(pair) for pair in ([run, sharded], [resumed, resumed])] == [launched, launched]


@pytest.mark.parametrize(
    ("key", "cost", "text"),
    [("gpu_energy", 1000.0, "1 MWh"), ("gpu_energy", 0.0005, "500 mWh"), ("money", 999.0, "999")],
)
def test_a_cost_is_shown_in_its_unit(key, cost, text):
    assert currency(key).shown(cost) == text
