"""The model card of an export: what it says, and what it may say about where the training data came from."""

from dataclasses import replace
from pathlib import Path

import pytest

from growctl.evaluate.model_card import model_card, public_source
from growctl.runs.show import CheckpointFacts, read_facts
from stages.huggingface.record import HuggingFaceExport, LogitsCheck
from tests.pretrained import write_pretrained

EXPORT = HuggingFaceExport(
    path=Path("quick"),
    checkpoint=Path("final"),
    architecture="TokenformerForCausalLM",
    needs_trust_remote_code=True,
    dtype="float32",
    context_length=64,
    files={},
    weight_bytes=1_234_567,
    check=LogitsCheck(transformers="5.23.0", largest_difference=3e-7, allowed=2e-5),
)


@pytest.fixture
def facts(tmp_path: Path) -> CheckpointFacts:
    write_pretrained(tmp_path / "final")
    return read_facts(tmp_path / "final")


def test_it_says_if_the_logits_were_not_compared(facts):
    unchecked = replace(EXPORT, check=LogitsCheck(not_checked="Transformers is not installed"))
    assert "| not checked: Transformers is not installed |" in model_card(facts, unchecked)


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
