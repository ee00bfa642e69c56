"""What a schedule takes over from its dataset: the vocabulary, and for a document mask the tokens attended to."""

import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rich.console import Console

from growctl.ladder.load import counted_on, load_resolved, load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.run.dataset import RunDataset
from growctl.run.requests import schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest
from stages.data.documents import document_lengths, mean_attended_tokens
from stages.data.errors import DataError
from stages.data.packing import packing_facts
from stages.data.spec import DataSpec
from tests.growctl.schedules import TEXT, file_of
from tests.stages.data.test_dataset import write_dataset as write_numbers
from tests.stages.data.test_documents import write_dataset

MASKED = "data.document_mask=true"


def loaded(folder: Path, *overrides: str) -> Schedule:
    return load_schedule(file_of(folder, TEXT), overrides, runs_dir=folder / "runs")


def prepare(folder: Path) -> Path:
    """The dataset of the schedule, in the runs directory; documents of a few lengths."""
    dataset = write_dataset(RunsPaths(folder / "runs").datasets / "text-0", [[5, 30, 7, 12], [9, 9, 40]])
    spec = loaded(folder).data.in_one_spelling()
    described = DataSpec(**{name: getattr(spec, name) for name in DataSpec.model_fields})
    manifest = read_dataset_manifest(dataset).model_copy(update={"spec": described})
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    return dataset


def notes(folder: Path, *overrides: str) -> str:
    return " ".join(make_plan(loaded(folder, *overrides), folder / "runs").notes)


def test_before_the_text_is_prepared_the_plan_counts_the_whole_context_and_says_so(tmp_path: Path) -> None:
    masked, plain = loaded(tmp_path, MASKED), loaded(tmp_path)
    assert plan_stages(masked)[0].flops == plan_stages(plain)[0].flops
    assert "the FLOPs of attention are an upper limit" in notes(tmp_path, MASKED)
    assert "attend" not in notes(tmp_path)


def test_afterwards_plan_and_worker_count_the_tokens_attended_to(tmp_path: Path) -> None:
    dataset = prepare(tmp_path)
    expected = mean_attended_tokens(document_lengths(dataset, "train"), 16)
    masked, plain = loaded(tmp_path, MASKED), loaded(tmp_path, "data.attended_tokens={a: 3}")
    assert (masked.data.attended_tokens, plain.data.attended_tokens) == ({"16": expected}, None)
    [flops, of_plain] = [plan_stages(schedule)[0].flops for schedule in (masked, plain)]
    assert flops.attention == pytest.approx(of_plain.attention * expected / 16)
    assert flops.parameters == of_plain.parameters
    assert "upper limit" not in notes(tmp_path, MASKED)
    where: dict[str, Any] = {
        "directory": "d",
        "dataset": "d",
        "initial": None,
        "resume": None,
        "attempt": 1,
    }
    where |= {"samples_seen": 0, "micro_batch_size": 1, "launched_at": 0.0}
    spec = worker_spec(masked, plan_stages(masked)[0], **where)
    assert (spec.attended_tokens, spec.packing) == (expected, "concatenate")
    assert spec.model.document_end_id is not None


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_documents_that_the_end_of_text_does_not_tell_apart_are_rejected_before_and_after_preparing(
    tmp_path: Path, packing: str
) -> None:
    keys = (MASKED, f"data.packing={packing}")
    before = loaded(tmp_path, *keys)
    dataset = prepare(tmp_path)
    manifest = read_dataset_manifest(dataset)
    train = manifest.splits["train"].model_copy(update={"num_unended_documents": 3})
    changed = manifest.model_copy(update={"splits": manifest.splits | {"train": train}})
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(changed))
    message = rf"data\.document_mask = true: 3 of the 7 documents of {dataset} do not end in <\|endoftext\|> \(id 0\); "
    with pytest.raises(ScheduleError, match=message):
        loaded(tmp_path, *keys)
    with pytest.raises(DataError, match=message):
        counted_on(before, dataset)
    loaded(tmp_path)


def test_packed_documents_are_counted_once_they_are_packed(tmp_path: Path) -> None:
    dataset, packed = prepare(tmp_path), (MASKED, "data.packing=best_fit")
    assert loaded(tmp_path, *packed).data.attended_tokens is None
    assert loaded(tmp_path, *packed).data.attended_tokens is None, "loading a schedule packs nothing"
    facts = packing_facts(dataset, 16)
    assert loaded(tmp_path, *packed).data.attended_tokens == {"16": facts.attended_tokens}


def test_a_run_that_has_begun_keeps_its_number(tmp_path: Path) -> None:
    prepare(tmp_path)
    schedule = loaded(tmp_path, MASKED)
    begun = schedule.model_copy(update={"data": schedule.data.model_copy(update={"attended_tokens": {"16": 7.5}})})
    run = tmp_path / "runs/s"
    (run / "stages").mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(begun))
    assert loaded(tmp_path, MASKED).data.attended_tokens == {"16": 7.5}


def given(folder: Path, entries: int = 400) -> tuple[Path, tuple[str, ...]]:
    """A dataset whose tokenizer has so many entries, and the overrides that make it the text of the schedule."""
    dataset = write_numbers(folder, [900], [200], token_bytes=2)
    manifest = read_dataset_manifest(dataset).model_copy(update={"vocab_size": entries})
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    return dataset, (f"data.source={dataset}", "~data.vocab_size", "~data.validation_fraction")


def test_a_dataset_as_the_text_brings_its_vocabulary(tmp_path: Path) -> None:
    dataset, keys = given(tmp_path / "given")
    schedule = loaded(tmp_path, *keys)
    assert schedule.vocab_size == 400
    assert loaded(tmp_path, *keys, "model.vocab_size=512").vocab_size == 512
    tokenizer = f"++data.tokenizer={dataset / 'tokenizer.json'}"
    assert loaded(tmp_path, *keys, tokenizer).vocab_size == 400
    for more, message in (
        (["model.vocab_size=399"], r"model\.vocab_size = 399: must be at least the tokenizer's 400"),
        ([tokenizer, "model.vocab_size=399"], r"model\.vocab_size = 399: must be at least the tokenizer's 400"),
        (["++data.vocab_size=500"], r"data\.vocab_size: 500, but data\.source .* which was made with 400; leave"),
    ):
        with pytest.raises(ScheduleError, match=message):
            loaded(tmp_path, *keys, *more)
    assert loaded(tmp_path, "data.tokenizer_vocab_size=7").vocab_size == 300, "growctl alone writes it"


def test_the_schedule_of_a_run_keeps_the_vocabulary_without_the_dataset(tmp_path: Path) -> None:
    dataset, keys = given(tmp_path / "given")
    run = tmp_path / "runs/s"
    (run / "stages").mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(loaded(tmp_path, *keys)))
    shutil.rmtree(dataset)
    assert load_resolved(run / "schedule.yaml").vocab_size == 400
    assert loaded(tmp_path, *keys).vocab_size == 400
    assert loaded(tmp_path).vocab_size == 300, "another text has another vocabulary"


def test_a_mixture_of_datasets_brings_the_vocabulary_that_they_share(tmp_path: Path) -> None:
    datasets = [given(tmp_path / name)[0] for name in ("a", "b")]
    entries = ",".join(f"{{name: {dataset.name}, source: {dataset}, weight: 1}}" for dataset in datasets)
    keys = (f"++data.mixture=[{entries}]", "~data.source", "~data.vocab_size", "~data.validation_fraction")
    assert loaded(tmp_path, *keys).vocab_size == 400
    other = read_dataset_manifest(datasets[1]).model_copy(update={"tokenizer_sha256": "other"})
    (datasets[1] / "manifest.json").write_bytes(dataset_manifest_bytes(other))
    with pytest.raises(ScheduleError, match=r"data\.mixture: 'b' .* has another tokenizer than 'a'"):
        loaded(tmp_path, *keys)


def test_a_dataset_at_a_url_brings_its_vocabulary_once_it_was_opened(tmp_path: Path) -> None:
    dataset, keys = given(tmp_path / "given")
    fsspec.filesystem("memory").put(str(dataset), "/bucket/vocabulary", recursive=True)
    keys = ("data.source=memory://bucket/vocabulary", *keys[1:])
    with pytest.raises(ScheduleError, match=r"at least the tokenizer's 8192"):
        loaded(tmp_path, *keys, "model.vocab_size=512")
    for expected in (8192, 400):
        schedule = loaded(tmp_path, *keys)
        assert schedule.vocab_size == expected
        run = RunDataset(schedule, tmp_path / "runs", Screen(Console(file=StringIO())))
        if expected == 8192:
            with pytest.raises(RunError, match=r"has 400 tokens\. .*; run the same command again"):
                run.prepared()
    copy = run.prepared()
    assert loaded(tmp_path, *keys, "model.vocab_size=512").vocab_size == 512
    (copy / "manifest.json").write_text("{}")
    assert loaded(tmp_path, *keys).vocab_size == 8192, "a damaged copy is fetched again"
