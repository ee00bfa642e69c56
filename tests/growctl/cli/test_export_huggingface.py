"""`growctl export`: what it prints, what the model card takes from the run, and bad options."""

import json
from pathlib import Path

import pytest

from model.shapes import num_parameters
from stages.checkpoint.lineage import TrainingRecord, extended
from stages.huggingface.record import LogitsCheck
from tests.growctl.invented_runs import control, ladder
from tests.growctl.runs import run_here
from tests.growctl.runs.test_show import COST, rewrite_lineage
from tests.pretrained import write_pretrained


@pytest.fixture(autouse=True)
def same_as_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the process that loads an export; tests/stages/huggingface has what it does."""
    found = LogitsCheck(transformers="5.23.0", largest_difference=3e-7, allowed=2e-5)
    monkeypatch.setattr("stages.huggingface.export.check_logits", lambda *_, **__: found)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_an_export_as_json_lists_files_and_the_check_as_its_card_does(checkpoint, tmp_path):
    options = ("--dtype", "bfloat16", "--no-check", "--json")
    told = json.loads(run_here("export", checkpoint, tmp_path / "out", "--to", "huggingface", *options)[0])
    assert (told["dtype"], told["context_length"], told["check"]["not_checked"]) == ("bfloat16", 32, "--no-check")
    assert "| not checked: --no-check |" in (tmp_path / "out/README.md").read_text()
    assert {"README.md", "config.json", "model.safetensors"} < told["files"].keys()
    assert all(path.stat().st_size == told["files"][path.name]["bytes"] for path in (tmp_path / "out").iterdir())


def test_the_model_card_tells_the_lineage_the_loss_and_the_verdict_of_the_run(tmp_path):
    ladder(tmp_path, name="quick")
    for budget, loss in ((400, 1.4), (800, 1.3), (1600, 1.2)):
        control(tmp_path, budget, loss)
    final = tmp_path / "quick/stages/0-small/final"
    size = num_parameters(write_pretrained(final).model)
    drawn = extended((), "init", {"seed": 7}, num_parameters=size)
    trained = extended(drawn, "train", {"steps": 11}, num_parameters=size, cost=COST, made_in="quick/small")
    rewrite_lineage(final, history=trained, training=TrainingRecord(validation_loss=2.0))
    run_here("export", "quick/0-small", tmp_path / "out", "--to", "huggingface", "--runs-dir", tmp_path)
    card = (tmp_path / "out/README.md").read_text()
    for line in [
        "1. init: 6.13k parameters, 0 FLOPs so far",
        "2. train: 6.13k parameters, 6.00e09 FLOPs so far, in quick/small",
        "| validation | 2 nats per token |",
        "| cost | 6.00e09 FLOPs, 2.82k tokens in 11 steps, 1m 16s of device time |",
        "### quick against training 2.4M parameters from scratch",
        "- One run of each is a look, not a result: ",
    ]:
        assert f"\n{line}" in card
