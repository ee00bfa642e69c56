"""The warnings and notes of a plan, each exactly when there is a reason."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.costs import Measurements
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.launch.resolve import planned_crowding
from growctl.run.requests import RunRequest, check_batch
from growctl.runs.directory import RunError
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from stages.data.remote import RemoteReading
from tests.growctl.ladder.manifests import write_dataset
from tests.growctl.ladders import ladder
from tests.growctl.runs import run_here
from tests.growctl.schedules import TEXT, file_of


def staged(*sizes: tuple[str, int, int]) -> dict[str, Any]:
    """Stages of (name, attention tokens, steps): 9,664 + 1,024 x attention tokens parameters, 128 tokens per step."""
    return {
        "stages": [
            {"name": name, "attention_tokens": tokens, "ffn_tokens": 4 * tokens, "train_steps": steps}
            for name, tokens, steps in sizes
        ]
    }


def optimal(**blocks: Any) -> Schedule:
    """A ladder without warnings, with `blocks` replaced: 9 tokens per parameter in the base, 11 at the end."""
    return ladder(**staged(("a", 8, 1200), ("b", 24, 1800)) | blocks)


def warnings(schedule: Schedule) -> list[str]:
    return list(make_plan(schedule).warnings)


def test_a_ladder_near_compute_optimal_and_its_controls_get_no_warning() -> None:
    controls = [{"kind": kind} for kind in ("tokenformer-scratch", "best-scratch", "official-growth")]
    assert warnings(optimal(controls=controls)) == []
    assert warnings(load_schedule("quickstart")) == []


def test_a_growth_by_more_than_four_times_is_reported() -> None:
    assert warnings(ladder(**staged(("a", 8, 1200), ("b", 60, 3000)))) == []  # 3.98 times
    [warning] = warnings(ladder(**staged(("a", 8, 1200), ("b", 61, 3000))))
    assert warning.startswith("Stage b has 4.0 times the parameters of a: ")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((300, 1000), "s ends with 4.86 tokens per parameter in stage b, far below 20"),
        ((300, 1050), None),
        ((1300, 20000), None),
        ((1500, 20000), "s ends with 80.4 tokens per parameter in stage b, far above 20"),
    ],
)
def test_tokens_per_parameter_far_from_twenty_are_reported(steps: tuple[int, int], said: str | None) -> None:
    found = warnings(ladder(**staged(("a", 8, steps[0]), ("b", 24, steps[1]))))
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)


def test_too_few_tokens_warn_that_scratch_is_easy_to_beat() -> None:
    few = staged(("a", 8, 300), ("b", 24, 400))
    assert "from scratch" not in warnings(ladder(**few))[0]
    assert "beats the last size from scratch too" in warnings(ladder(**few, controls=[{"kind": "best-scratch"}]))[0]


def test_an_overtrained_base_is_reported_but_not_a_single_stage() -> None:
    assert warnings(ladder(**staged(("a", 8, 11100), ("b", 24, 100)))) == []
    found = warnings(ladder(**staged(("a", 8, 11200), ("b", 24, 100))))
    assert [warning.split(",")[0] for warning in found] == [
        "The base is overtrained: stage a sees 80 tokens per parameter"
    ]
    alone = warnings(ladder(**staged(("a", 8, 11200))))
    assert [warning.partition(" tokens")[0] for warning in alone] == ["s ends with 80.3"]


def test_more_than_four_epochs_are_reported_for_the_ladder_and_each_control() -> None:
    controls = [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}]
    data = {"source": "text", "vocab_size": 300}
    four = 3000 * 128 // 4
    assert warnings(optimal(data=data | {"approximate_tokens": four}, controls=controls)) == []
    found = warnings(optimal(data=data | {"approximate_tokens": four // 2}, controls=controls))
    assert found[0].startswith("s reads its 48k training tokens 8.0 times, more than 4 times from stage b on")
    assert found[1].startswith("Controls read the training tokens more than 4 times: tokenformer-scratch ")
    assert "0.5x" not in found[1]


def test_a_micro_batch_that_does_not_fit_is_reported_with_the_largest_that_fits() -> None:
    def fitting(memory: str, micro: Any) -> list[str]:
        launch = {"devices": 1, "micro_batch_size": micro, "hardware": {"device": "h100", "memory": memory}}
        return warnings(optimal(launch=launch))

    assert fitting("2MB", 8) == fitting("950kB", "auto") == []
    large = fitting("950kB", 8)
    assert [warning.partition(":")[0] for warning in large] == [
        "Stage a of s does not fit",
        "Stage b of s does not fit",
    ]
    assert "micro-batches of 8 take" in large[1]
    assert "of a device of 950 kB with 10% left free" in large[1]
    assert "is the largest that fits." in large[1]
    tiny = fitting("400kB", "auto")
    assert all("one sequence at a time takes" in warning for warning in tiny)
    assert len(tiny) == 2


def test_a_size_that_fits_at_one_context_is_reported_at_the_longer_one_of_a_control() -> None:
    stages = staged(("a", 8, 1000), ("b", 24, 2000))
    stages["stages"][1] |= {"sequence_length": 256, "batch_size": 8}
    launch = {"devices": 1, "micro_batch_size": 8, "hardware": {"device": "h100", "memory": "7MB"}}
    found = warnings(optimal(**stages, launch=launch, controls=[{"kind": "best-scratch"}]))
    assert [warning.partition(":")[0] for warning in found if "does not fit" in warning] == [
        "Stage b of s does not fit",
        "Stage a of s-control-best-scratch-a does not fit",
        "Stage b of s-control-best-scratch-b does not fit",
    ]


def test_where_a_size_does_not_fit_checkpointing_is_proposed_with_its_memory_and_flops_if_it_then_fits() -> None:
    def fitting(memory: str, micro: Any = "auto", **launch: Any) -> list[str]:
        hardware = {"device": "h100", "memory": memory}
        return warnings(optimal(launch={"devices": 1, "micro_batch_size": micro, "hardware": hardware} | launch))

    assert fitting("1.25MB", 8, activation_checkpointing="blocks") == []
    (found,) = fitting("1.25MB", 8)
    plan = make_plan(optimal(launch={"devices": 1, "activation_checkpointing": "blocks"})).trunk[1].plan
    assert found.endswith(
        " 4 is the largest that fits. It fits with launch.activation_checkpointing = blocks: 1.11 MB instead of "
        f"1.34 MB, {plan.recomputed_flops / plan.flops.total:.0%} more hardware FLOPs."
    )
    assert ["It fits" in warning for warning in fitting("1MB", 8)] == [True, False]
    assert not any("It fits" in warning for warning in fitting("1MB", 8, activation_checkpointing={"every": 2}))


@pytest.mark.parametrize(("chosen", "warns"), [("none", 0), ("blocks", 0), ({"every": 2}, 0), ({"every": 3}, 1)])
def test_checkpointing_all_layers_as_one_segment_is_reported(chosen: str | dict[str, int], warns: int) -> None:
    deep = {"num_layers": 3, "hidden_size": 32, "num_heads": 2}
    found = warnings(optimal(model=deep, launch={"activation_checkpointing": chosen}))
    assert len([warning for warning in found if warning.endswith("use less than 3, or blocks.")]) == warns


def test_a_batch_that_does_not_split_evenly_is_reported_once_as_run_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    controls = [{"kind": "tokenformer-scratch"}]
    for launch, reason in (
        ({"devices": 3}, "training.batch_size = 8: must be a multiple of 3, for 3 devices; use 6 or 9"),
        (
            {"devices": 4, "micro_batch_size": 4},
            "training.batch_size = 8: must be a multiple of 16, for 4 devices x launch.micro_batch_size 4; use 16",
        ),
    ):
        schedule = optimal(launch=launch, controls=controls)
        assert warnings(schedule) == [f"{reason}. `run` does not start with it."]
        with pytest.raises(RunError) as refused:
            check_batch(RunRequest("s", schedule, "s"), launch["devices"])
        assert str(refused.value) == reason


def test_more_ranks_than_cpu_cores_are_reported_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    expected = (
        "launch.devices = 8: 8 ranks share the 2 CPU cores of this machine, which slows all of them down; set 2 or "
        "less, or auto."
    )
    assert warnings(optimal(launch={"devices": 8})) == [expected]
    assert planned_crowding(optimal(launch={"devices": 8})) == [expected]
    for launch in ({"devices": 2}, {"devices": "auto"}, {"devices": 8, "hardware": {"device": "h100"}}):
        assert warnings(optimal(launch=launch)) == []
        assert planned_crowding(optimal(launch=launch)) == []


def test_learning_rates_that_differ_between_compared_runs_are_reported() -> None:
    rate = {"peak": 1e-3, "warmup_steps": 5, "span": "stage"}
    kinds = ("tokenformer-scratch", "official-growth", "transformer-scratch")
    [found] = warnings(optimal(learning_rate=rate, controls=[{"kind": kind} for kind in kinds]))
    assert found.startswith(
        "Compared runs differ in how often the learning rate warms up and decays: twice in the ladder, once in "
        "tokenformer-scratch, transformer-scratch;"
    )
    rewarmed = optimal(growth={"rewarmup": {"steps": 3}}, controls=[{"kind": "best-scratch"}])
    [found] = warnings(rewarmed)
    assert "how often it warms up again: once in the ladder, never in best-scratch-a, best-scratch-b;" in found


def test_failed_measurements_are_warnings() -> None:
    schedule = optimal()
    failed = Measurements("this machine", 1, {}, ("Stage a of s could not be measured: no memory",))
    assert make_plan(schedule, measurements=failed).warnings == failed.failures


# Notes


def notes(schedule: Schedule) -> list[str]:
    return list(make_plan(schedule).notes)


def test_notes_name_upper_limits_and_the_timing_of_gstack() -> None:
    flat = ladder(growth={"when": "slope", "slope": 3e-12}, evaluation={"every": 3})
    assert notes(flat) == [
        "Every stage but the last may end before its budget: as soon as its loss falls by less than 3e-12 nats per "
        "FLOP. Tokens and FLOPs, also of the controls, are upper limits."
    ]
    stages = [{"name": "small", "train_steps": 20}, {"name": "large", "num_layers": 4, "train_steps": 20}]
    model = {"family": "transformer", "num_layers": 2, "hidden_size": 32, "num_heads": 2}
    [note] = notes(ladder(stages=stages, model=model, growth={"operator": "stack", "allow_jump": True}))
    assert note.startswith("G_stack's timing formula, fitted to large runs, would stack after ")
    assert note.endswith("this schedule stacks after 2.56k.")


def test_notes_name_assumed_devices_and_the_hosts_memory() -> None:
    assert notes(ladder()) == []
    [note] = notes(ladder(launch={"cluster": "slurm"}))
    assert note.startswith("The plan is for 1 device on each machine")
    [note] = notes(ladder(launch={"offload": "optimizer", "devices": 2}))
    assert note.startswith("launch.offload puts up to ")


def test_notes_name_the_measured_devices_and_what_larger_numbers_assume() -> None:
    schedule = ladder(launch={"devices": 2})
    same = make_plan(schedule, measurements=Measurements("2 x CPU", 2, {})).notes
    assert len(same) == 1
    assert "on 2 x CPU" in same[0]
    fewer = make_plan(schedule, measurements=Measurements("1 x CPU", 1, {})).notes
    assert fewer[1].startswith("Beyond this device, the times assume that every device is as fast")


def test_a_plan_warns_of_settings_that_need_more_steps_than_a_stage_has() -> None:
    [warning] = warnings(optimal(evaluation={"every": 1500}))
    assert warning.startswith("evaluation.every = 1500: is beyond the end of a (1,200 steps), so")


def test_a_missing_text_is_a_warning_with_a_hint_only_where_files_are_looked_at(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.touch()
    schedule = optimal(data={"source": str(tmp_path / "text.tx"), "vocab_size": 300})
    assert warnings(schedule) == []
    [warning] = make_plan(schedule, tmp_path).warnings
    missing = f"data.source: '{tmp_path}/text.tx' does not exist; did you mean '{text}'?"
    assert warning == f"{missing} `run` needs it here, `plan` does not."
    there = optimal(data={"source": str(text), "vocab_size": 300})
    assert make_plan(there, tmp_path).warnings == ()


def test_a_missing_text_whose_dataset_is_prepared_is_a_warning_that_says_so(tmp_path: Path) -> None:
    schedule = optimal(data={"source": str(tmp_path / "gone"), "vocab_size": 300})
    write_dataset(RunsPaths(tmp_path).datasets / "gone-0", schedule.data, validation=(50, 100_000))
    [warning] = make_plan(schedule, tmp_path).warnings
    assert warning.endswith("Its dataset is prepared, which is enough.")


def test_a_small_validation_set_is_a_warning_once_the_dataset_is_prepared(tmp_path: Path) -> None:
    schedule = optimal()
    write_dataset(RunsPaths(tmp_path).datasets / "text-0", schedule.data, validation=(6, 9_000))
    [warning] = make_plan(schedule, tmp_path).warnings
    assert warning.startswith("Validation has 6 documents with 9,000 tokens, and an evaluation reads 9,000 of them: ")
    assert "data.validation_fraction" in warning


def test_evaluations_that_read_little_of_a_validation_set_are_a_warning(tmp_path: Path) -> None:
    schedule = optimal(evaluation={"max_sequences": 10})
    write_dataset(RunsPaths(tmp_path).datasets / "text-0", schedule.data, validation=(80, 500_000))
    [warning] = make_plan(schedule, tmp_path).warnings
    assert f"an evaluation reads {10 * schedule.training.sequence_length} of them" in warning


def test_a_cache_smaller_than_a_remote_dataset_is_a_warning_with_the_traffic(tmp_path: Path) -> None:
    url = "s3://bucket/web-1a2b"

    def found(cache: str) -> list[str]:
        schedule = optimal(data={"source": url, "vocab_size": 300, "cache_bytes": cache})
        return [warning for warning in make_plan(schedule, tmp_path).warnings if "cache_bytes" in warning]

    assert found("1MB") == [], "not known before it was opened"
    folder = RunsPaths(tmp_path).datasets / "web-1a2b-at-0"
    write_dataset(folder, optimal().data, training_tokens=10**7)
    (folder / "remote.json").write_text(
        RemoteReading(url=url, cache_dir="/cache", cache_bytes=1, retry_seconds=1).model_dump_json()
    )
    assert found("20MB") == []
    assert found("5MB") == [
        "data.cache_bytes is 5 MB, but the training tokens at s3://bucket/web-1a2b take 20 MB: about 75% of the "
        "samples fetch a whole shard, which takes far longer than training on them. Set data.cache_bytes to 20 MB or "
        "more, or download the dataset."
    ]
    path = file_of(tmp_path, TEXT, "remote.yaml")
    _, err = run_here("validate", path, f"data.source={url}", "data.cache_bytes=5MB", "--runs-dir", tmp_path)
    assert "warning: data.cache_bytes is 5 MB" in err, "validate says it too"


def test_entries_that_the_trained_tokenizer_lacks_are_a_warning_with_both_numbers(tmp_path: Path) -> None:
    def found(vocab_size: int, **blocks: Any) -> list[str]:
        schedule = optimal(data={"source": "text", "vocab_size": vocab_size}, **blocks)
        write_dataset(RunsPaths(tmp_path).datasets / f"text-{vocab_size}", schedule.data)
        return [warning for warning in make_plan(schedule, tmp_path).warnings if "vocab_size" in warning]

    assert found(300) == []
    assert found(1500) == [
        "data.vocab_size is 1,500, but the tokenizer trained on this text has 300 entries: the embedding's other 1,200 "
        "rows are never trained. Set data.vocab_size to 300."
    ]
