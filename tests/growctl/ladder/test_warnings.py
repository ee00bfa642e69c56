"""The warnings and notes of a plan and the caveats of controls, each exactly when there is a reason."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import Measurements
from growctl.ladder.datasets import known_sizes
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import control_caveats, schedule_warnings
from growctl.run.requests import schedule_yaml
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.files import shipped_schedules
from stages.corpus.prepare import prepare
from stages.data.errors import DataError
from stages.data.remote import RemoteReading
from stages.data.spec import DataSpec
from tests.growctl.ladder import write_dataset
from tests.growctl.ladders import ladder
from tests.growctl.runs import run_here
from tests.growctl.schedules import TEXT, file_of


def staged(*sizes: tuple[str, int, int]) -> dict[str, Any]:
    """Stages of (name, attention tokens, steps): 9,664 + 1,024 x attention tokens parameters, 128 tokens per step."""
    stages = [
        {"name": name, "attention_tokens": tokens, "ffn_tokens": 4 * tokens, "train_steps": steps}
        for name, tokens, steps in sizes
    ]
    return {"stages": stages}


def optimal(**blocks: Any) -> Schedule:
    """A ladder without warnings, with `blocks` replaced: 9 tokens per parameter in the base, 11 at the end."""
    return ladder(**staged(("a", 8, 1200), ("b", 24, 1800)) | {"evaluation": {"every": 10_000}} | blocks)


def of_text(source: Path | str, **data: Any) -> Schedule:
    return optimal(data={"source": str(source), "vocab_size": 300} | data)


def warnings(schedule: Schedule, runs_dir: Path | None = None) -> list[str]:
    return list(make_plan(schedule, runs_dir).warnings)


def test_a_ladder_near_compute_optimal_and_its_controls_get_no_warning() -> None:
    controls = [{"kind": kind} for kind in ("tokenformer-scratch", "best-scratch", "official-growth")]
    assert warnings(optimal(controls=controls)) == []
    assert warnings(load_schedule("quickstart")) == []


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([("a", 8, 300), ("b", 24, 1000)], ["s ends with 4.86 tokens per parameter in stage b, far below 20"]),
        ([("a", 8, 300), ("b", 24, 1050)], []),
        ([("a", 8, 1300), ("b", 24, 20000)], []),
        ([("a", 8, 1500), ("b", 24, 20000)], ["s ends with 80.4 tokens per parameter in stage b, far above 20"]),
        ([("a", 8, 11200)], ["s ends with 80.3 tokens per parameter in stage a, far above 20"]),
    ],
)
def test_tokens_per_parameter_far_from_twenty_are_reported(sizes: list[Any], said: list[str]) -> None:
    assert [warning.partition(":")[0] for warning in warnings(ladder(**staged(*sizes)))] == said
    compared = warnings(ladder(**staged(*sizes), controls=[{"kind": "best-scratch"}]))
    assert ["beats the last size from scratch too" in line for line in compared] == ["below" in line for line in said]


def test_more_than_four_epochs_are_reported_for_the_ladder_and_each_control() -> None:
    controls = [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}]
    data, four = {"source": "text", "vocab_size": 300}, 3000 * 128 // 4
    assert warnings(optimal(data=data | {"approximate_tokens": four}, controls=controls)) == []
    [often, *_] = warnings(optimal(data=data | {"approximate_tokens": four // 2}, controls=controls))
    assert often.startswith("Training text is read more than 4 times: s 8.0 times, tokenformer-scratch ")
    assert "0.5x" not in often


def test_a_micro_batch_that_does_not_fit_is_reported_with_the_largest_that_fits() -> None:
    def misfits(memory: str, micro: Any, **blocks: Any) -> list[str]:
        launch = {"devices": 1, "micro_batch_size": micro, "hardware": {"device": "h100", "memory": memory}}
        return [line for line in warnings(optimal(launch=launch, **blocks)) if "does not fit" in line]

    assert misfits("2MB", 8) == misfits("950kB", "auto") == []
    large, tiny = misfits("950kB", 8), misfits("400kB", "auto")
    assert [line.partition(":")[0] for line in large] == [f"Stage {name} of s does not fit" for name in "ab"]
    assert "micro-batches of 8 take" in large[1]
    assert "of a device of 950 kB with 10% left free" in large[1]
    assert ["micro-batches of 1 take" in line and "none is the largest" in line for line in tiny] == [True] * 2
    stages = staged(("a", 8, 1000), ("b", 24, 2000))
    stages["stages"][1] |= {"sequence_length": 256, "batch_size": 8}
    longer = misfits("7MB", 8, **stages, controls=[{"kind": "best-scratch"}])
    assert [line.partition(" does")[0] for line in longer] == [
        *("Stage b of s", "Stage a of s-control-best-scratch-a", "Stage b of s-control-best-scratch-b")
    ]


@pytest.mark.parametrize(
    ("launch", "needed"),
    [
        ({"devices": 3}, "3, for 3 devices"),
        ({"devices": 4, "micro_batch_size": 4}, "16, for 4 devices x launch.micro_batch_size 4"),
    ],
)
def test_a_batch_that_does_not_split_evenly_is_reported_once_as_run_reports_it(
    launch: dict[str, Any], needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    reason = f"training.batch_size: makes 8 sequences of a step, which must be a multiple of {needed}"
    schedule = optimal(launch=launch, controls=[{"kind": "tokenformer-scratch"}])
    assert warnings(schedule) == [f"{reason}. `run` does not start with it."]


def test_notes_name_assumed_devices_and_fewer_measured_ones() -> None:
    assert make_plan(ladder()).notes == ()
    [assumed] = make_plan(ladder(launch={"cluster": "slurm"})).notes
    assert assumed.startswith("The plan is for 1 device on each machine")
    two = ladder(launch={"devices": 2})
    failed = Measurements("2 x CPU", 2, {}, ("Stage a of s could not be measured: no memory",))
    assert make_plan(two, measurements=failed).notes == ()
    assert failed.failures[0] in make_plan(two, measurements=failed).warnings
    [fewer] = make_plan(two, measurements=Measurements("1 x CPU", 1, {})).notes
    assert fewer.startswith("Times are those of 1 device: they assume that every further device is as fast")


def test_a_missing_text_is_a_warning_with_a_hint_only_where_files_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "text.txt").touch()
    missing = of_text(tmp_path / "text.tx")
    assert warnings(missing) == []
    [warning] = warnings(missing, tmp_path)
    assert warning.startswith(f"data.source: '{tmp_path}/text.tx' does not exist; ")
    assert make_plan(of_text(tmp_path / "text.txt"), tmp_path).missing is None
    write_dataset(RunsPaths(tmp_path).datasets / "gone-0", missing.data)
    assert make_plan(missing, tmp_path).missing is None, "its dataset is prepared"


def text_of(folder: Path, documents: int, words: int) -> Path:
    """A folder with that many documents, all different."""
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number}.txt").write_text(" ".join(f"{number * words + word:x}" for word in range(words)))
    return folder


def test_the_plan_says_what_prepare_will_say_of_a_local_text(tmp_path: Path) -> None:
    text = text_of(tmp_path / "none", 68, 10)
    with pytest.raises(DataError) as rejected:
        prepare(DataSpec(source=str(text), vocab_size=300, validation_fraction=0.001), tmp_path / "datasets")
    found = warnings(of_text(text, validation_fraction=0.001), tmp_path)
    assert f"{rejected.value}. `run` does not start with it." in found
    often, few = warnings(of_text(text, validation_fraction=0.2), tmp_path)
    assert often.startswith("Training text is read more than 4 times: ")
    assert few.startswith("Validation has 1")
    assert few.endswith("(Estimated; `growctl prepare` counts.)")


def test_an_estimate_of_tokens_is_near_what_prepare_counts(tmp_path: Path) -> None:
    data = DataBlock(source=str(text_of(tmp_path / "text", 300, 200)), vocab_size=400, validation_fraction=0.1)
    estimated = known_sizes(data, tmp_path)
    prepare(data, RunsPaths(tmp_path).datasets)
    counted = known_sizes(data, tmp_path)
    assert counted.is_prepared
    assert estimated.validation_documents == counted.validation_documents
    assert estimated.validation_tokens == pytest.approx(counted.validation_tokens, rel=0.2)
    assert estimated.training_tokens == pytest.approx(counted.training_tokens, rel=0.2)


@pytest.mark.parametrize(
    ("validation", "sequences", "said"),
    [
        ((50, 100_000), None, None),
        ((49, 100_000), None, "larger data.validation_fraction"),
        ((6, 9_000), None, "Validation has 6 documents with 9,000 tokens, and an evaluation reads 9,000 of them: "),
        ((80, 500_000), 10, "an evaluation reads 160 of them"),
        ((80, 500_000), 6250, None),
        ((80, 500_000), 6249, "Set evaluation.max_sequences to 6,250 or more."),
    ],
)
def test_a_small_validation_set_or_little_of_it_is_a_warning_once_the_dataset_is_prepared(
    tmp_path: Path, validation: tuple[int, int], sequences: int | None, said: str | None
) -> None:
    schedule = optimal(evaluation={"max_sequences": sequences, "every": 10_000})
    write_dataset(RunsPaths(tmp_path).datasets / "text-0", schedule.data, validation=validation)
    found = [line for line in warnings(schedule, tmp_path) if line.startswith("Validation has")]
    assert len(found) == (said is not None)
    assert all(str(said) in line for line in found)


def test_a_cache_smaller_than_a_remote_dataset_is_a_warning_with_the_traffic(tmp_path: Path) -> None:
    url = "s3://bucket/web-1a2b"

    def found(cache: str) -> list[str]:
        return [line for line in warnings(of_text(url, cache_bytes=cache), tmp_path) if "cache_bytes" in line]

    assert found("1MB") == [], "not known before it was opened"
    folder = RunsPaths(tmp_path).datasets / "web-1a2b-at-0"
    write_dataset(folder, optimal().data, training_tokens=10**7)
    remote = RemoteReading(url=url, cache_dir="/cache", cache_bytes=1, retry_seconds=1)
    (folder / "remote.json").write_text(remote.model_dump_json())
    assert found("20MB") == []
    [line] = found("5MB")
    assert line.startswith(
        "data.cache_bytes is 5 MB, but the training tokens at s3://bucket/web-1a2b take 20 MB: about 75%"
    )
    path = file_of(tmp_path, TEXT, "remote.yaml")
    _, err = run_here("validate", path, f"data.source={url}", "data.cache_bytes=5MB", "--runs-dir", tmp_path)
    assert "warning: data.cache_bytes is 5 MB" in err, "validate says it too"


def test_entries_that_the_trained_tokenizer_lacks_are_a_warning_with_both_numbers(tmp_path: Path) -> None:
    for vocab_size, numbers in ((300, []), (1500, ["1,500", "300"])):
        schedule = of_text("text", vocab_size=vocab_size)
        write_dataset(RunsPaths(tmp_path).datasets / f"text-{vocab_size}", schedule.data)
        found = [line for line in warnings(schedule, tmp_path) if line.startswith("data.vocab_size is")]
        assert [number for line in found for number in re.findall(r"[\d,]*\d", line)] == numbers


# Caveats of learning rates


def with_budgets(*budgets: float, kind: str = "tokenformer-scratch", **rate: Any) -> Schedule:
    controls = [{"kind": kind, "budgets": list(budgets)}]
    return ladder(controls=controls, learning_rate={"peak": 1e-3} | rate)


def test_a_control_without_steps_to_decay_in_gets_a_caveat_that_validate_prints(tmp_path: Path) -> None:
    scratch, few = "s-control-tokenformer-scratch", with_budgets(0.1, 1.0, warmup_steps=40)
    caveat = f"{scratch}-0.1x trains 9 steps, of which 40 are warm-up: 0 are left for its decay."
    assert schedule_warnings(few) == [caveat]
    assert caveat in make_plan(few).warnings
    assert schedule_warnings(with_budgets(0.5, warmup_steps=40, decay=0.5)) == [
        f"{scratch}-0.5x trains 45 steps, of which 40 are warm-up: 5 are left for its decay."
    ]
    path = file_of(tmp_path, schedule_yaml(few))
    out, err = run_here("validate", path)
    assert out.startswith(f"{path}: s is valid")
    assert err == f"{path}: warning: {caveat}\n"
    out, err = run_here("validate", "--json", path)
    assert (json.loads(out)["schedules"][0]["warnings"], err) == ([caveat], "")


@pytest.mark.parametrize(
    ("rate", "misfit"),
    [
        ({"warmup_steps": 80}, None),
        ({"warmup_steps": 99}, (100, 99, 1)),
        ({"warmup_steps": 100}, (100, 100, 0)),
        ({"warmup_steps": 150}, (100, 150, 0)),
        ({"warmup_steps": 16, "span": "stage"}, None),
        ({"warmup_steps": 25, "span": "stage"}, (20, 25, 0)),
        ({"warmup_steps": 60, "decay": 0.8}, None),
        ({"warmup_steps": 61, "decay": 0.8, "shape": "cosine"}, None),
        ({"warmup_steps": 61, "decay": 0.8}, (100, 61, 39)),
    ],
)
def test_a_ladder_without_steps_to_warm_up_or_decay_in_is_one_warning_not_one_for_every_control(
    rate: dict[str, Any], misfit: tuple[int, int, int] | None
) -> None:
    found = schedule_warnings(with_budgets(2.0, 3.0, **rate))
    assert len(found) == (misfit is not None)
    for line, (steps, warmup, left) in zip(found, [misfit] if misfit else [], strict=True):
        assert line.startswith(f"The ladder trains {steps} steps, of which {warmup} are warm-up: {left} are left for")
        assert ("(stage stage-0)" in line) is (rate.get("span") == "stage")


@settings(max_examples=60)
@given(
    budget=st.sampled_from([0.05, 0.1, 0.3, 1.0, 2.0]),
    warmup_steps=st.integers(0, 120),
    shape=st.sampled_from(["wsd", "cosine"]),
    span=st.sampled_from(["ladder", "stage"]),
    kind=st.sampled_from(["tokenformer-scratch", "official-growth"]),
)
def test_no_control_ends_at_a_rate_above_half_its_peak_without_a_caveat(budget: float, **chosen: Any) -> None:
    [control] = plan_controls(with_budgets(budget, **chosen))
    plans = plan_stages(control.schedule)
    ends = plans if chosen["span"] == "stage" else plans[-1:]
    undecayed = [plan for plan in ends if plan.learning_rate.at(plan.num_steps) > 5e-4]
    assert bool(control_caveats(control.schedule)) or not undecayed


@pytest.mark.parametrize("name", shipped_schedules())
def test_no_shipped_schedule_needs_a_caveat(name: str) -> None:
    assert schedule_warnings(load_schedule(name)) == []
