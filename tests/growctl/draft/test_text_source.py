"""A draft's text is a shipped one that is large enough, or the user's."""

from pathlib import Path

import pytest
import yaml

from growctl.draft.recipe import Wish, make_draft
from growctl.draft.sizes import SHAPES
from growctl.draft.text_source import text_source
from growctl.schedule.fields import parse_count
from model.errors import UserError
from tests.growctl.schedules import text_of
from tests.stages.data.test_dataset import write_dataset

SMALL, PUBLISHED = SHAPES[2], SHAPES[6]


@pytest.mark.parametrize(
    ("params", "tokens", "choice"),
    [
        (300_000, 7.7e6, "python-stdlib"),
        (300_000, 7.9e6, "wikitext"),
        (1_000_000, 6e6, "wikitext"),  # the first size from scratch reads more than the largest budget of the last
        (15_000_000, 300e6, "pile"),
    ],
)
def test_the_default_is_the_smallest_shipped_text_that_lasts_4_epochs(params: int, tokens: float, choice: str) -> None:
    assert make_draft(Wish(params=params, tokens=round(tokens))).source == text_source(choice)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("s3://bucket/text/*.jsonl", "s3://bucket/text/*.jsonl"),
        ("roneneldan/TinyStories", "hf://datasets/roneneldan/TinyStories"),
        ("1.txt", "FOLDER/1.txt"),
        ("*.txt", "FOLDER/*.txt"),
    ],
)
def test_a_url_a_hub_data_set_or_an_absolute_path_becomes_the_source(tmp_path, monkeypatch, name, source):
    monkeypatch.chdir(text_of(tmp_path, 3, 10))
    assert text_source(name).source == source.replace("FOLDER", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "words", "fraction"), [(9, 100, 0.2), (1000, 1500, 0.05)])
def test_a_local_text_has_enough_validation_or_a_fifth(tmp_path: Path, documents: int, words: int, fraction: float):
    keys = yaml.safe_load(text_source(str(text_of(tmp_path / "text", documents, words))).block(SMALL))
    assert keys["validation_fraction"] == fraction
    assert parse_count(keys["approximate_tokens"]) > 0


@pytest.mark.slow
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
