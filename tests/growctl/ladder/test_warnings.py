"""The warnings and notes of a plan, each exactly when there is a reason."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.costs import Measurements
from growctl.ladder.datasets import known_sizes
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.launch.resolve import uneven_batch
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from stages.corpus.prepare import prepare
from stages.data.errors import DataError
from stages.data.remote import RemoteReading
from stages.data.spec import DataSpec
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
    return ladder(**staged(("a", 8, 1200), ("b", 24, 1800)) | {"evaluation": {"every": 10_000}} | blocks)


def warnings(schedule: Schedule) -> list[str]:
    return list(make_plan(schedule).warnings)


def test_a_ladder_near_compute_optimal_and_its_controls_get_no_warning() -> None:
    controls = [{"kind": kind} for kind in ("tokenformer-scratch", "best-scratch", "official-growth")]
    assert warnings(optimal(controls=controls)) == []
    assert warnings(load_schedule("quickstart")) == []


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


def test_a_single_stage_can_be_overtrained() -> None:
    alone = warnings(ladder(**staged(("a", 8, 11200))))
    assert [warning.partition(" tokens")[0] for warning in alone] == ["s ends with 80.3"]


def test_more_than_four_epochs_are_reported_for_the_ladder_and_each_control() -> None:
    controls = [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}]
    data = {"source": "text", "vocab_size": 300}
    four = 3000 * 128 // 4
    assert warnings(optimal(data=data | {"approximate_tokens": four}, controls=controls)) == []
    found = warnings(optimal(data=data | {"approximate_tokens": four // 2}, controls=controls))
    assert found[0].startswith("Training text is read more than 4 times: s 8.0 times, tokenformer-scratch ")
    assert "0.5x" not in found[0]


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
    assert all("micro-batches of 1 take" in warning for warning in tiny)
    assert all("none is the largest that fits" in warning for warning in tiny)
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


def test_a_batch_that_does_not_split_evenly_is_reported_once_as_run_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    controls = [{"kind": "tokenformer-scratch"}]
    for launch, reason in (
        (
            {"devices": 3},
            "training.batch_size: makes 8 sequences of a step, which must be a multiple of 3, for 3 devices",
        ),
        (
            {"devices": 4, "micro_batch_size": 4},
            "training.batch_size: makes 8 sequences of a step, which must be a multiple of 16, for 4 devices x "
            "launch.micro_batch_size 4",
        ),
    ):
        schedule = optimal(launch=launch, controls=controls)
        assert warnings(schedule) == [f"{reason}. `run` does not start with it."]
        assert uneven_batch(schedule, launch["devices"]) == reason


def test_failed_measurements_are_warnings() -> None:
    schedule = optimal()
    failed = Measurements("this machine", 1, {}, ("Stage a of s could not be measured: no memory",))
    assert make_plan(schedule, measurements=failed).warnings == failed.failures


# Notes


def notes(schedule: Schedule) -> list[str]:
    return list(make_plan(schedule).notes)


def test_notes_name_assumed_devices_and_fewer_measured_ones() -> None:
    assert notes(ladder()) == []
    [assumed] = notes(ladder(launch={"cluster": "slurm"}))
    assert assumed.startswith("The plan is for 1 device on each machine")
    two = ladder(launch={"devices": 2})
    assert make_plan(two, measurements=Measurements("2 x CPU", 2, {})).notes == ()
    [fewer] = make_plan(two, measurements=Measurements("1 x CPU", 1, {})).notes
    assert fewer.startswith("Times are those of 1 device: they assume that every further device is as fast")


def test_a_missing_text_is_a_warning_with_a_hint_only_where_files_are_looked_at(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.touch()
    schedule = optimal(data={"source": str(tmp_path / "text.tx"), "vocab_size": 300})
    assert warnings(schedule) == []
    [warning] = make_plan(schedule, tmp_path).warnings
    assert warning.startswith(f"data.source: '{tmp_path}/text.tx' does not exist; ")
    assert warning.endswith(" `run` needs it here, `plan` does not.")
    there = optimal(data={"source": str(text), "vocab_size": 300})
    assert make_plan(there, tmp_path).missing is None


def text_of(folder: Path, documents: int, words: int) -> Path:
    """A folder with that many documents, all different."""
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number}.txt").write_text(" ".join(f"{number * words + word:x}" for word in range(words)))
    return folder


def test_the_plan_says_what_prepare_will_say_of_a_local_text(tmp_path: Path) -> None:
    none: dict[str, Any] = {
        "source": str(text_of(tmp_path / "none", 68, 10)),
        "vocab_size": 300,
        "validation_fraction": 0.001,
    }
    with pytest.raises(DataError) as rejected:
        prepare(DataSpec(**none), tmp_path / "datasets")
    assert f"{rejected.value}. `run` does not start with it." in make_plan(optimal(data=none), tmp_path).warnings
    often, few = make_plan(optimal(data=none | {"validation_fraction": 0.2}), tmp_path).warnings
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


def test_a_missing_text_whose_dataset_is_prepared_is_no_warning(tmp_path: Path) -> None:
    schedule = optimal(data={"source": str(tmp_path / "gone"), "vocab_size": 300})
    write_dataset(RunsPaths(tmp_path).datasets / "gone-0", schedule.data, validation=(50, 100_000))
    assert not [warning for warning in make_plan(schedule, tmp_path).warnings if "gone" in warning]


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
        "samples fetch a whole shard, which takes far longer than training on them."
    ]
    path = file_of(tmp_path, TEXT, "remote.yaml")
    _, err = run_here("validate", path, f"data.source={url}", "data.cache_bytes=5MB", "--runs-dir", tmp_path)
    assert "warning: data.cache_bytes is 5 MB" in err, "validate says it too"


def test_entries_that_the_trained_tokenizer_lacks_are_a_warning_with_both_numbers(tmp_path: Path) -> None:
    def found(vocab_size: int) -> list[str]:
        schedule = optimal(data={"source": "text", "vocab_size": vocab_size})
        write_dataset(RunsPaths(tmp_path).datasets / f"text-{vocab_size}", schedule.data)
        return [warning for warning in make_plan(schedule, tmp_path).warnings if "vocab_size" in warning]

    assert found(300) == []
    assert found(1500) == [
        "data.vocab_size is 1,500, but the tokenizer trained on this text has 300 entries: the embedding's other rows "
        "are never trained."
    ]
