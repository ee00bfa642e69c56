"""What a schedule takes over from its dataset, the vocabulary and the tokens attended to, and the ledger records."""

import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rich.console import Console

from growctl.ladder.conditions import data_conditions
from growctl.ladder.load import counted_on, load_resolved, load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.run.dataset import RunDataset
from growctl.run.requests import schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from model.config_growth import grow_config
from model.shapes import model_shape
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest
from stages.data.documents import document_lengths, mean_attended_tokens
from stages.data.errors import DataError
from stages.data.packing import packing_facts
from stages.data.spec import DataSpec
from tests.growctl.ladder import spec_of
from tests.growctl.schedules import TEXT, file_of
from tests.model.growths import small_config, small_decoder
from tests.stages.data.test_dataset import write_dataset as write_numbers
from tests.stages.data.test_documents import write_dataset

MASKED = "data.document_mask=true"
WITHOUT_A_TEXT = ("~data.vocab_size", "~data.validation_fraction")


def loaded(folder: Path, *overrides: str) -> Schedule:
    return load_schedule(file_of(folder, TEXT), overrides, runs_dir=folder / "runs")


def change_manifest(dataset: Path, **changes: Any) -> Path:
    manifest = read_dataset_manifest(dataset).model_copy(update=changes)
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    return dataset


def prepare(folder: Path) -> Path:
    """The dataset of the schedule, in the runs directory; documents of a few lengths."""
    dataset = write_dataset(RunsPaths(folder / "runs").datasets / "text-0", [[5, 30, 7, 12], [9, 9, 40]])
    spec = loaded(folder).data.in_one_spelling()
    return change_manifest(dataset, spec=DataSpec(**{name: getattr(spec, name) for name in DataSpec.model_fields}))


def begin(folder: Path, schedule: Schedule) -> Path:
    """The stored schedule of a run that has begun."""
    (folder / "runs/s/stages").mkdir(parents=True)
    (folder / "runs/s/schedule.yaml").write_text(schedule_yaml(schedule))
    return folder / "runs/s/schedule.yaml"


def test_plan_and_worker_count_the_tokens_attended_to_once_the_text_is_prepared(tmp_path: Path) -> None:
    def notes(*overrides: str) -> str:
        return " ".join(make_plan(loaded(tmp_path, *overrides), tmp_path / "runs").notes)

    plain = plan_stages(loaded(tmp_path, "data.attended_tokens={a: 3}"))[0].flops
    assert plan_stages(loaded(tmp_path, MASKED))[0].flops == plain, "the whole context, before"
    assert "the FLOPs of attention are an upper limit" in notes(MASKED)
    assert "attend" not in notes()
    expected = mean_attended_tokens(document_lengths(prepare(tmp_path), "train"), 16)
    masked = loaded(tmp_path, MASKED)
    assert masked.data.attended_tokens == {"16": expected}
    flops = plan_stages(masked)[0].flops
    assert (flops.attention, flops.parameters) == (pytest.approx(plain.attention * expected / 16), plain.parameters)
    assert "upper limit" not in notes(MASKED)
    spec = spec_of(masked)
    assert (spec.attended_tokens, spec.packing) == (expected, "concatenate")
    assert spec.model.document_end_id is not None
    begun = masked.model_copy(update={"data": masked.data.model_copy(update={"attended_tokens": {"16": 7.5}})})
    begin(tmp_path, begun)
    assert loaded(tmp_path, MASKED).data.attended_tokens == {"16": 7.5}, "a run that has begun keeps its number"


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_documents_that_no_end_of_text_tells_apart_are_rejected_at_any_time(tmp_path: Path, packing: str) -> None:
    keys = (MASKED, f"data.packing={packing}")
    before, dataset = loaded(tmp_path, *keys), prepare(tmp_path)
    splits = read_dataset_manifest(dataset).splits
    train = splits["train"].model_copy(update={"num_unended_documents": 3})
    change_manifest(dataset, splits=splits | {"train": train})
    message = rf"data\.document_mask = true: 3 of the 7 documents of {dataset} do not end in <\|endoftext\|> \(id 0\); "
    with pytest.raises(ScheduleError, match=message):
        loaded(tmp_path, *keys)
    with pytest.raises(DataError, match=message):
        counted_on(before, dataset)
    loaded(tmp_path)


def test_packed_documents_are_counted_once_they_are_packed(tmp_path: Path) -> None:
    dataset, packed = prepare(tmp_path), (MASKED, "data.packing=best_fit")
    for _ in range(2):
        assert loaded(tmp_path, *packed).data.attended_tokens is None, "loading a schedule packs nothing"
    facts = packing_facts(dataset, 16)
    assert loaded(tmp_path, *packed).data.attended_tokens == {"16": facts.attended_tokens}


def given(folder: Path) -> Path:
    """A dataset whose tokenizer has 400 entries."""
    return change_manifest(write_numbers(folder, [900], [200], token_bytes=2), vocab_size=400)


@pytest.mark.slow
def test_a_dataset_as_the_text_brings_its_vocabulary(tmp_path: Path) -> None:
    dataset = given(tmp_path / "given")
    keys, tokenizer = (f"data.source={dataset}", *WITHOUT_A_TEXT), f"++data.tokenizer={dataset / 'tokenizer.json'}"
    assert loaded(tmp_path, *keys).vocab_size == loaded(tmp_path, *keys, tokenizer).vocab_size == 400
    assert loaded(tmp_path, *keys, "model.vocab_size=512").vocab_size == 512
    for more, message in (
        (["model.vocab_size=399"], r"model\.vocab_size = 399: must be at least the tokenizer's 400"),
        (["++data.vocab_size=500"], r"data\.vocab_size: 500, but data\.source .* which was made with 400; leave"),
    ):
        with pytest.raises(ScheduleError, match=message):
            loaded(tmp_path, *keys, *more)
    assert loaded(tmp_path, "data.tokenizer_vocab_size=7").vocab_size == 300, "growctl alone writes it"
    stored = begin(tmp_path, loaded(tmp_path, *keys))
    shutil.rmtree(dataset)
    assert load_resolved(stored).vocab_size == loaded(tmp_path, *keys).vocab_size == 400, "without the dataset too"
    assert loaded(tmp_path).vocab_size == 300, "another text has another vocabulary"


def test_a_mixture_of_datasets_brings_the_vocabulary_that_they_share(tmp_path: Path) -> None:
    datasets = [given(tmp_path / name) for name in ("a", "b")]
    entries = ",".join(f"{{name: {dataset.name}, source: {dataset}, weight: 1}}" for dataset in datasets)
    keys = (f"++data.mixture=[{entries}]", "~data.source", *WITHOUT_A_TEXT)
    assert loaded(tmp_path, *keys).vocab_size == 400
    change_manifest(datasets[1], tokenizer_sha256="other")
    with pytest.raises(ScheduleError, match=r"data\.mixture: 'b' .* has another tokenizer than 'a'"):
        loaded(tmp_path, *keys)


@pytest.mark.slow
def test_a_dataset_at_a_url_brings_its_vocabulary_once_it_was_opened(tmp_path: Path) -> None:
    fsspec.filesystem("memory").put(str(given(tmp_path / "given")), "/bucket/vocabulary", recursive=True)
    keys = ("data.source=memory://bucket/vocabulary", *WITHOUT_A_TEXT)
    with pytest.raises(ScheduleError, match=r"at least the tokenizer's 8192"):
        loaded(tmp_path, *keys, "model.vocab_size=512")

    def run() -> RunDataset:
        return RunDataset(loaded(tmp_path, *keys), tmp_path / "runs", Screen(Console(file=StringIO())))

    with pytest.raises(RunError, match=r"has 400 tokens\. .*; run the same command again"):
        run().prepared()
    copy = run().prepared()
    assert loaded(tmp_path, *keys).vocab_size == 400
    assert loaded(tmp_path, *keys, "model.vocab_size=512").vocab_size == 512
    (copy / "manifest.json").write_text("{}")
    assert loaded(tmp_path, *keys).vocab_size == 8192, "a damaged copy is fetched again"


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, Path]:
    found = {name: write_numbers(tmp_path / name, [500], [100]) for name in ("books", "code")}
    for number, directory in enumerate(found.values(), 1):
        splits, hashed = read_dataset_manifest(directory).splits, {"text_hash": f"{number:032x}"}
        change_manifest(directory, splits={name: split.model_copy(update=hashed) for name, split in splits.items()})
    return found


def test_mixtures_share_a_validation_text_only_with_equal_weights(datasets: dict[str, Path], tmp_path: Path) -> None:
    def conditions(limit: float | None = None, **weights: float) -> dict[str, object]:
        sources = [Ingredient(name, datasets[name], weight, limit) for name, weight in weights.items()]
        return data_conditions(read_dataset_manifest(write_mixture(sources, tmp_path)))

    base, alone = conditions(books=3, code=1), data_conditions(read_dataset_manifest(datasets["books"]))
    assert base["data.mixture"] == {"books": 3.0, "code": 1.0}
    assert "data.mixture" not in alone
    assert conditions(code=0.2, books=0.6)["data.validation_text"] == base["data.validation_text"]
    hashes = [each["data.validation_text"] for each in (base, conditions(books=1, code=1), conditions(books=1), alone)]
    assert len(set(hashes)) == len(hashes)
    assert "data.epochs_at_most" not in base
    assert conditions(2.0, code=1)["data.epochs_at_most"] == {"code": 2.0}, "how often a source may be read"


def test_the_shape_of_a_stage_holds_every_size_that_a_growth_may_change() -> None:
    decoder = small_decoder(num_layers=2, num_heads=4, num_kv_heads=2, hidden_size=16, rotary_fraction=0.5)
    of_decoders: list[dict[str, Any]] = [{"ffn_tokens": 4}, {"heads": 2}, {"new_layers": 1}, {"widen": 2}]
    of_tokenformers: list[dict[str, Any]] = [
        {"attention_tokens": 4, "ffn_tokens": 0},
        {"ffn_tokens": 4},
        {"new_layers": 1},
    ]
    for model, growths in ((decoder, of_decoders), (small_config(), of_tokenformers)):
        for growth in growths:
            assert model_shape(grow_config(model, **growth)) != model_shape(model)
