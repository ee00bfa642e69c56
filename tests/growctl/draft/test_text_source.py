"""A draft's text is a shipped one that is large enough, or the user's."""

from pathlib import Path

import pytest
import yaml

from growctl.draft.recipe import Wish, make_draft
from growctl.draft.sizes import SHAPES, Vocabularies
from growctl.draft.text_source import text_source
from growctl.schedule.fields import parse_count
from model.errors import UserError
from tests.stages.data.test_dataset import write_dataset

SMALL, PUBLISHED = SHAPES[2], SHAPES[6]


@pytest.mark.parametrize(
    ("params", "tokens", "choice"),
    [
        (300_000, 7.7e6, "python-stdlib"),
        (300_000, 7.9e6, "wikitext"),
        (1_000_000, 4e6, "python-stdlib"),
        (1_000_000, 6e6, "wikitext"),  # the first size from scratch reads more than the largest budget of the last
        (15_000_000, 300e6, "pile"),
        (10_000_000_000, 2e11, "pile"),
    ],
)
def test_the_default_is_the_smallest_shipped_text_that_no_run_reads_more_than_four_times(
    params: int, tokens: float, choice: str
) -> None:
    assert make_draft(Wish(params=params, tokens=round(tokens))).source == text_source(choice)


def test_a_shipped_text_keeps_its_tokenizer_unless_it_would_outweigh_a_narrow_model() -> None:
    published, narrow = (yaml.safe_load(text_source("pile").block(shape)) for shape in (PUBLISHED, SMALL))
    assert (published.get("tokenizer"), published.get("vocab_size")) == ("EleutherAI/gpt-neox-20b", None)
    assert (narrow.get("tokenizer"), narrow.get("vocab_size")) == (None, 8192)
    assert text_source("wikitext").vocabularies == Vocabularies(most=4096)
    assert yaml.safe_load(text_source("wikitext").block(PUBLISHED))["vocab_size"] == 4096


def text_of(folder: Path, documents: int, words: int) -> Path:
    """A folder with that many documents, all different."""
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        (folder / f"{number}.txt").write_text(" ".join(f"{number * words + word:x}" for word in range(words)))
    return folder


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("s3://bucket/text/*.jsonl", "s3://bucket/text/*.jsonl"),
        ("roneneldan/TinyStories", "hf://datasets/roneneldan/TinyStories"),
        *((name, f"FOLDER/{name}") for name in ("1.txt", "*.txt", "FOLDER/1.txt", "FOLDER/*.txt")),
        ("./1.txt", "FOLDER/1.txt"),
        ("FOLDER", "FOLDER"),
    ],
)
def test_a_url_a_data_set_of_the_hub_or_the_absolute_path_of_files_becomes_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.chdir(text_of(tmp_path, 3, 10))
    found = text_source(name.replace("FOLDER", str(tmp_path)))
    assert found.source == source.replace("FOLDER/FOLDER", "FOLDER").replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize(("documents", "words", "fraction"), [(9, 100, 0.2), (400, 100, 0.2), (1000, 1500, 0.05)])
def test_the_validation_share_of_a_local_text_is_enough_to_evaluate_on_or_a_fifth(
    tmp_path: Path, documents: int, words: int, fraction: float
) -> None:
    keys = yaml.safe_load(text_source(str(text_of(tmp_path / "text", documents, words))).block(SMALL))
    assert keys["validation_fraction"] == fraction
    assert parse_count(keys["approximate_tokens"]) > 0


def test_a_text_of_one_document_is_rejected_and_a_single_file_is_cut_into_documents(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(f"line {number} of a book\n" for number in range(10_000)))
    with pytest.raises(UserError, match=r"has 1 document, and training and validation need different ones; "):
        text_source(str(tmp_path)).block(SMALL)
    block = text_source(str(tmp_path / "book.txt")).block(SMALL)
    assert " documents: pieces of the file of 16 KiB, unless document_separator says" in block


def test_a_prepared_dataset_keeps_its_tokenizer(tmp_path: Path) -> None:
    source = text_source(str(write_dataset(tmp_path / "given", [100], [100])))
    assert source.vocabularies.of(SMALL) == source.vocabularies.of(PUBLISHED) == 2**16
    assert source.block(SMALL) == f'# A prepared dataset, which has its tokenizer.\nsource: "{tmp_path}/given"\n'
