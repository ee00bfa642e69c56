"""Explanations of growctl's words, and numbers with their nouns."""

import pytest

from growctl.text.first_use import WORDS, FirstUse
from stages.counted import counted, plural


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_explained_where_an_output_first_uses_it_and_not_again(word: str) -> None:
    words = FirstUse()
    assert words.explained(f"5 {word} and 6 {word}") == f"5 {word} ({WORDS[word]}) and 6 {word}"
    assert words.explained(f"7 {word}") == f"7 {word}"
    assert FirstUse().explained(f"7 {word}") == f"7 {word} ({WORDS[word]})"


@pytest.mark.parametrize("text", ["runs/tau/ledger.db", "growth.tau = ramp", "a/ledger: no", "naturals", "my-tau"])
def test_names_paths_and_keys_are_not_taken_for_words(text: str) -> None:
    assert FirstUse().explained(text) == text


def test_a_number_has_the_noun_that_goes_with_it() -> None:
    assert [counted(number, "document") for number in (0, 1, 2, 1200)] == [
        *("0 documents", "1 document", "2 documents", "1,200 documents"),
    ]
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(3, "batch", "batches") == "3 batches"
    assert plural(2, "is", "are") == "are"


def test_the_explanation_of_a_unit_follows_what_it_is_counted_per() -> None:
    assert FirstUse().explained("2 nats per token, or so") == f"2 nats per token ({WORDS['nats']}), or so"
