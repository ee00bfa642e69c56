"""`growctl import`: what it prints, that other commands take it, and outputs that are refused."""

import json
from pathlib import Path

import pytest

from growctl.ladder.stage_plans import plan_stages
from model.decoder_config import decoder_config
from tests.growctl.bases import load_started
from tests.growctl.runs import run_here
from tests.pretrained import adding_tokenizer, byte_tokenizer, write_pretrained
from tests.stages.official_checkpoints import EMBEDDING, official_state, published, write_official


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An import of the size of `tests.growctl.schedules.BASE`. Nobody changes it."""
    folder = tmp_path_factory.mktemp("official")
    weights, settings = write_official(folder, {EMBEDDING: official_state(300)[EMBEDDING]})
    run_here("import", "official", weights, "--config", settings, "--output", folder / "imported")
    return folder / "imported"


def test_an_import_names_padding_and_prints_one_json_document_with_text(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    weights, settings = write_official(tmp_path)
    given = ("import", "official", weights, "--config", settings, "--tokenizer", tmp_path / "tokenizer.json")
    out, _ = run_here(*given, "--output", tmp_path / "imported")
    assert "vocabulary 264 (3 rows of padding), context 16" in out
    told = json.loads(run_here(*given, "--output", tmp_path / "again", "--json")[0])
    assert (told["path"], told["text"]["tokenizer_vocab_size"]) == (str(tmp_path / "again"), 261)


def test_an_import_can_be_shown_verified_expanded_and_trained_by_a_run_that_grows_it(checkpoint, tmp_path):
    assert "import 12.7k parameters" in " ".join(run_here("show", checkpoint)[0].split())
    assert "imported: OK" in run_here("verify", "--integrity", checkpoint)[0]
    run_here("expand", checkpoint, "--add-tokens", 2, "--output", tmp_path / "grown")
    first, second = plan_stages(load_started(tmp_path, f"start.checkpoint={checkpoint}"))
    assert first.model == published(300)
    assert second.model.newest_generation == 1


@pytest.mark.slow  # Transformers loads the model in a process of its own
def test_a_model_of_transformers_is_imported_and_compared_with_it(tmp_path):
    gpt_neox = decoder_config(vocab_size=270, hidden_size=32, num_heads=2, num_layers=2, ffn_tokens=64)
    write_pretrained(tmp_path / "checkpoint", gpt_neox)
    run_here("export", tmp_path / "checkpoint", tmp_path / "hf", "--no-check")
    adding_tokenizer().save(str(tmp_path / "hf/tokenizer.json"))
    out, _ = run_here("import", "huggingface", tmp_path / "hf", "--output", tmp_path / "imported")
    assert "vocabulary 270 (9 rows of padding), context 32" in out
    assert "original: Transformers 5" in out
    shown = " ".join(run_here("show", tmp_path / "imported")[0].split())
    assert "each text begins with <|endoftext|>" in shown
    assert "original Transformers 5" in shown
    assert "Its tokenizer puts <|endoftext|> before each text, and so does growctl" in " ".join(out.split())
