"""What the model card of an export may say about where the training data came from."""

import pytest

from growctl.evaluate.model_card import public_source


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("python-stdlib", "python-stdlib"),
        ("hf://datasets/owner/name@main/*.parquet", "hf://datasets/owner/name@main/*.parquet"),
        ("https://example.org/texts/a.jsonl.gz", "https://example.org/texts/a.jsonl.gz"),
        ("/home/me/private/texts", "texts"),
        ("../clients/acme/*.jsonl", "*.jsonl"),
        ("file:///home/me/texts.txt", "texts.txt"),
        ("local:///home/me/texts.txt", "texts.txt"),
        ("zip://inside.txt::/home/me/texts.zip", "zip://inside.txt::texts.zip"),
        ("https://me:secret@example.org:8080/a.txt?token=secret#part", "https://example.org:8080/a.txt"),
        ("/", "a local folder"),
    ],
)
def test_it_names_remote_sources_but_only_the_last_part_of_local_paths(source, shown):
    assert public_source(source) == shown
