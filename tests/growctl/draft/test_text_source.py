"""A draft's text is a shipped one that is large enough, or the user's."""

from pathlib import Path

import pytest

from growctl.draft.recipe import Wish, make_draft
from growctl.draft.sizes import SHAPES, Vocabularies
from growctl.draft.text_source import text_source
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


def test_a_shipped_text_keeps_its_comments_and_its_tokenizer_at_published_widths() -> None:
    block = text_source("pile").block(PUBLISHED)
    assert block.startswith("# The Pile without its copyrighted parts")
    assert "tokenizer: EleutherAI/gpt-neox-20b\n" in block
    assert "vocab_size" not in block


def test_a_narrow_model_gets_a_tokenizer_of_its_own_because_the_published_one_would_outweigh_it() -> None:
    block = text_source("pile").block(SMALL)
    assert "vocab_size: 8192" in block
    assert "tokenizer:" not in block


def test_a_shipped_text_keeps_its_own_vocabulary_where_the_model_could_take_more() -> None:
    assert text_source("wikitext").vocabularies == Vocabularies(most=4096)
    assert "vocab_size: 4096" in text_source("wikitext").block(PUBLISHED)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("s3://bucket/text/*.jsonl", "s3://bucket/text/*.jsonl"),
        ("roneneldan/TinyStories", "hf://datasets/roneneldan/TinyStories"),
    ],
)
def test_a_url_or_a_data_set_of_the_hub_becomes_the_source(name: str, source: str) -> None:
    assert f'source: "{source}"\n' in text_source(name).block(SMALL)


def test_a_file_or_a_glob_becomes_the_source(tmp_path: Path) -> None:
    (tmp_path / "my text.txt").write_text("text")
    for name in (tmp_path / "my text.txt", tmp_path, tmp_path / "*.txt"):
        assert text_source(str(name)).text == f'source: "{name}"\n'


def test_a_prepared_dataset_keeps_its_tokenizer(tmp_path: Path) -> None:
    source = text_source(str(write_dataset(tmp_path / "given", [100], [100])))
    assert source.vocabularies.of(SMALL) == source.vocabularies.of(PUBLISHED) == 2**16
    assert source.block(SMALL) == f'# A prepared dataset, which has its tokenizer.\nsource: "{tmp_path}/given"\n'


def test_a_relative_path_becomes_absolute_because_the_schedule_may_lie_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "./a.txt", "*.txt"):
        assert text_source(name).source == f"{tmp_path}/{Path(name).name}"


def test_a_name_that_stands_for_nothing_is_rejected_with_the_nearest_choice() -> None:
    with pytest.raises(UserError, match=r"^--data 'wikitexx': .*; did you mean 'wikitext'\?$"):
        text_source("wikitexx")
