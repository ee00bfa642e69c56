"""The warnings and notes of a plan and the caveats of controls, each exactly when there is a reason."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.datasets import known_sizes
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.warnings import schedule_warnings
from growctl.run.requests import schedule_yaml
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from stages.corpus.prepare import prepare
from stages.data.errors import DataError
from stages.data.remote import RemoteReading
from stages.data.spec import DataSpec
from tests.growctl.ladder import write_dataset
from tests.growctl.ladders import ladder
from tests.growctl.runs import run_here
from tests.growctl.schedules import file_of, text_of


def staged(*sizes: tuple[int, int], **last: Any) -> list[dict[str, Any]]:
    """Stages of (attention tokens, steps): 9,664 + 1,024 x attention tokens parameters, 128 tokens per step."""
    stages: list[dict[str, Any]] = [
        {"name": name, "attention_tokens": tokens, "ffn_tokens": 4 * tokens, "train_steps": steps}
        for name, (tokens, steps) in zip("ab", sizes, strict=False)
    ]
    return [*stages[:-1], stages[-1] | last]


def optimal(**blocks: Any) -> Schedule:
    """A ladder without warnings, with `blocks` replaced: 9 tokens per parameter in the base, 11 at the end."""
    return ladder(**{"stages": staged((8, 1200), (24, 1800)), "evaluation": {"every": 10_000}} | blocks)


def of_text(source: Path | str = "text", **data: Any) -> Schedule:
    return optimal(data={"source": str(source), "vocab_size": 300} | data)


def warnings(schedule: Schedule, runs_dir: Path | None = None, start: str = "") -> list[str]:
    return [line for line in make_plan(schedule, runs_dir).warnings if line.startswith(start)]


def test_a_ladder_near_compute_optimal_and_its_controls_get_no_warning() -> None:
    controls = [{"kind": kind} for kind in ("tokenformer-scratch", "best-scratch", "official-growth")]
    assert warnings(optimal(controls=controls)) == []
    assert warnings(load_schedule("quickstart")) == []


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([(8, 300), (24, 1000)], ["s ends with 4.86 tokens per parameter in stage b, far below 20"]),
        ([(8, 1300), (24, 20000)], []),
        ([(8, 1500), (24, 20000)], ["s ends with 80.4 tokens per parameter in stage b, far above 20"]),
    ],
)
def test_tokens_per_parameter_far_from_twenty_are_reported(sizes: list[Any], said: list[str]) -> None:
    stages = staged(*sizes)
    assert [warning.partition(":")[0] for warning in warnings(ladder(stages=stages))] == said
    compared = warnings(ladder(stages=stages, controls=[{"kind": "best-scratch"}]))
    assert ["beats the last size from scratch too" in line for line in compared] == ["below" in line for line in said]


def test_more_than_four_epochs_are_reported_for_the_ladder_and_each_control() -> None:
    controls = [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}]
    data, four = {"source": "text", "vocab_size": 300}, 3000 * 128 // 4
    assert warnings(optimal(data=data | {"approximate_tokens": four}, controls=controls)) == []
    [often, *_] = warnings(optimal(data=data | {"approximate_tokens": four // 2}, controls=controls))
    assert often.startswith("Training text is read more than 4 times: s 8.0 times, tokenformer-scratch ")
    assert "0.5x" not in often


LONGER_LAST = staged((8, 1000), (24, 2000), sequence_length=256, batch_size=8)
LONGER: dict[str, Any] = {"stages": LONGER_LAST, "controls": [{"kind": "best-scratch"}]}


@pytest.mark.parametrize(
    ("memory", "micro", "blocks", "stages", "said"),
    [
        ("2MB", 8, {}, [], ""),
        ("950kB", 8, {}, ["a of s", "b of s"], "micro-batches of 8 take"),
        ("400kB", "auto", {}, ["a of s", "b of s"], "none is the largest"),
        ("7MB", 8, LONGER, ["b of s", *(f"{name} of s-control-best-scratch-{name}" for name in "ab")], "7 MB"),
    ],
)
def test_a_micro_batch_that_does_not_fit_is_reported_with_the_largest_that_fits(memory, micro, blocks, stages, said):
    launch = {"devices": 1, "micro_batch_size": micro, "hardware": {"device": "h100", "memory": memory}}
    found = [line for line in warnings(optimal(launch=launch, **blocks)) if "does not fit" in line]
    assert [line.partition(" does")[0] for line in found] == [f"Stage {stage}" for stage in stages]
    assert all(said in line for line in found)


def test_a_missing_text_is_a_warning_only_where_files_are_looked_at(tmp_path: Path) -> None:
    missing = of_text(tmp_path / "text.tx")
    assert warnings(missing) == []
    [warning] = warnings(missing, tmp_path)
    assert warning.startswith(f"data.source: '{tmp_path}/text.tx' does not exist; ")
    write_dataset(RunsPaths(tmp_path).datasets / "gone-0", missing.data)
    assert make_plan(missing, tmp_path).missing is None, "its dataset is prepared"


def test_the_plan_says_what_prepare_will_say_of_a_local_text(tmp_path: Path) -> None:
    text = text_of(tmp_path / "none", 68, 10)
    with pytest.raises(DataError) as rejected:
        prepare(DataSpec(source=str(text), vocab_size=300, validation_fraction=0.001), tmp_path / "datasets")
    found = warnings(of_text(text, validation_fraction=0.001), tmp_path)
    assert f"{rejected.value}. `run` does not start with it." in found
    [few] = warnings(of_text(text, validation_fraction=0.2), tmp_path, "Validation has 1")
    assert few.endswith("(Estimated; `growctl prepare` counts.)")


@pytest.mark.slow
def test_an_estimate_of_tokens_is_near_what_prepare_counts(tmp_path: Path) -> None:
    schedule = of_text(text_of(tmp_path / "text", 300, 200), vocab_size=400, validation_fraction=0.1)
    estimated = known_sizes(schedule, tmp_path)
    prepare(schedule.data, RunsPaths(tmp_path).datasets)
    counted = known_sizes(schedule, tmp_path)
    assert counted.is_prepared
    assert estimated.validation_documents == counted.validation_documents
    assert estimated.validation_tokens == pytest.approx(counted.validation_tokens, rel=0.2)
    assert estimated.training_tokens == pytest.approx(counted.training_tokens, rel=0.2)


@pytest.mark.parametrize(
    ("validation", "sequences", "said"),
    [
        ((50, 100_000), None, []),
        ((49, 100_000), None, ["larger data.validation_fraction"]),
        ((6, 9_000), None, ["6 documents with 9,000 tokens, and an evaluation reads 9,000 of them"]),
        ((80, 500_000), 6249, ["few documents. Set evaluation.max_sequences to 6,250 or more."]),
        ((49, 500_000), 6250, ["few documents. Use more text"]),
        ((49, 500_000), 6249, ["6,250 or more. Use more text"]),
    ],
)
def test_a_small_validation_set_or_little_of_it_is_a_warning_once_prepared(tmp_path, validation, sequences, said):
    schedule = optimal(evaluation={"max_sequences": sequences, "every": 10_000})
    write_dataset(RunsPaths(tmp_path).datasets / "text-0", schedule.data, validation=validation)
    found = warnings(schedule, tmp_path, "Validation has")
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def test_a_cache_smaller_than_a_remote_dataset_is_a_warning_with_the_traffic(tmp_path: Path) -> None:
    url, start = "s3://bucket/web-1a2b", "data.cache_bytes is"
    assert warnings(of_text(url, cache_bytes="1MB"), tmp_path, start) == [], "not known before it was opened"
    folder = RunsPaths(tmp_path).datasets / "web-1a2b-at-0"
    write_dataset(folder, optimal().data, training_tokens=10**7)
    remote = RemoteReading(url=url, cache_dir="/cache", cache_bytes=1, retry_seconds=1)
    (folder / "remote.json").write_text(remote.model_dump_json())
    assert warnings(of_text(url, cache_bytes="20MB"), tmp_path, start) == []
    [line] = warnings(of_text(url, cache_bytes="5MB"), tmp_path, start)
    assert line.startswith(f"data.cache_bytes is 5 MB, but the training tokens at {url} take 20 MB: about 75%")


def with_budgets(*budgets: float, **rate: Any) -> Schedule:
    controls = [{"kind": "tokenformer-scratch", "budgets": list(budgets)}]
    return ladder(controls=controls, learning_rate={"peak": 1e-3} | rate)


def test_a_control_without_steps_to_decay_in_gets_a_caveat_that_validate_prints(tmp_path: Path) -> None:
    few = with_budgets(0.1, 1.0, warmup_steps=40)
    caveat = "s-control-tokenformer-scratch-0.1x trains 9 steps, of which 40 are warm-up: 0 are left for its decay."
    assert schedule_warnings(few) == [caveat]
    path = file_of(tmp_path, schedule_yaml(few))
    assert run_here("validate", path)[1] == f"{path}: warning: {caveat}\n"


@pytest.mark.parametrize(
    ("rate", "misfits"),
    [
        ({"warmup_steps": 80}, []),
        ({"warmup_steps": 150}, [(100, 150, 0)]),
        ({"warmup_steps": 25, "span": "stage"}, [(20, 25, 0)]),
        ({"warmup_steps": 61, "decay": 0.8, "shape": "cosine"}, []),
        ({"warmup_steps": 61, "decay": 0.8}, [(100, 61, 39)]),
    ],
)
def test_missing_warm_up_or_decay_is_one_warning(rate: dict[str, Any], misfits: list[tuple[int, int, int]]) -> None:
    found = schedule_warnings(with_budgets(2.0, 3.0, **rate))
    said = "The ladder trains {} steps, of which {} are warm-up: {} are left for"
    assert [line.partition(" its decay")[0] for line in found] == [said.format(*misfit) for misfit in misfits]
    assert ["(stage stage-0)" in line for line in found] == [rate.get("span") == "stage"] * len(misfits)
