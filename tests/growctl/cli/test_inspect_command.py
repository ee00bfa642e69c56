"""`growctl inspect`: the table and the JSON document, and whose tokenizer and data it takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.decoder_config import decoder_config
from model.tokenformer_config import PATTENTIONS
from tests.growctl.runs import run_here
from tests.pretrained import text_config, write_pretrained
from tests.stages.grow.test_compare import prepare_text, write_trained

WORDS = "the <b>cat</b> in the $hat$ ate the rest of it \x1b[31m then & there "
FEW = ("--sequences", "4", "--context", "12", "--batch-size", "2")
DECODER = decoder_config(vocab_size=261, hidden_size=16, num_heads=1, num_layers=2, ffn_tokens=32)
FUNCTIONS = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
DECODER_LAYERS = ("query", "key", "value", "projection", "up", "down")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of every kind, and texts."""
    folder = tmp_path_factory.mktemp("inspect")
    for function in FUNCTIONS:
        write_pretrained(folder / function, text_config(score_function=function))
    write_pretrained(folder / "decoder", DECODER)
    (folder / "text.txt").write_text(WORDS * 20)
    (folder / "texts").mkdir()
    for name in ("a", "b"):
        (folder / f"texts/{name}.jsonl").write_text(json.dumps({"text": WORDS}) + "\n")
    return folder


def inspect(folder: Path, *arguments: object, expect: int = 0) -> tuple[str, str]:
    return run_here("inspect", *FEW, *arguments, expect=expect, columns=80, cwd=folder)


def document(folder: Path, *arguments: object) -> Any:
    """What --json prints, as strict JSON."""
    out, err = inspect(folder, *arguments, "--json")
    assert err == ""
    return json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def test_every_checkpoint_is_measured_on_all_texts_as_if_they_were_one(place):
    told = document(place, *FUNCTIONS, "decoder", "--text", "texts", "--text", "text.txt")
    assert [model["score_function"] for model in told["models"]] == [*FUNCTIONS, None]
    assert told["text"] == {"source": "texts, text.txt", "num_sequences": 4, "context": 12, "batch_size": 2}
    for model in told["models"]:
        layers = [(layer["block"], layer["name"]) for layer in model["layers"]]
        names = PATTENTIONS if model["score_function"] else DECODER_LAYERS
        assert layers == [(block, name) for block in (0, 1) for name in names]
        assert model["gradient"]["mean"] > 0
        assert all((layer["scores"] is None) == (model["score_function"] is None) for layer in model["layers"])


@pytest.mark.slow
def test_the_table_compares_losses_and_has_a_picture(place, tmp_path):
    out, _ = inspect(place, "softmax", "decoder", "--text", "text.txt", "--picture", tmp_path / "seen.png")
    read = (place / "softmax", "--text", "text.txt", "--picture", tmp_path / "read.png", "--top-k-tokens", "0.5,1")
    assert "Loss by parameter tokens read" in inspect(place, *read)[0]
    pictures = [(tmp_path / f"{name}.png").read_bytes() for name in ("seen", "read")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    widths = [int.from_bytes(picture[16:20], "big") for picture in pictures]
    assert widths[1] * 3 == widths[0] * 5, "two more panels"
    assert "has the lowest of 2 losses" in " ".join(out.split())


def test_the_loss_on_the_validation_data_or_a_text_is_that_of_eval(place, tmp_path):
    top = ("--top-k-tokens", 0.5)
    dataset = prepare_text(tmp_path / "runs/.datasets")
    padded = write_trained(tmp_path / "runs/final", dataset, text_config(320))
    tokenizer = ("--tokenizer", dataset / "tokenizer.json")
    whole, settings = document(tmp_path, padded, *top), ("--split", "validation", "--sequences", 4, "--context", 12)
    assert whole["text"]["source"] == f"the validation split of {dataset.name}"
    assert document(tmp_path, padded, *top, "--data", dataset) == whole
    of_a_text = (place / "softmax", "--text", place / "text.txt")
    num_tokens = json.loads(run_here("eval", *of_a_text, "--context", 2000, "--json")[0])["scores"][0]["num_samples"]
    for told, evaluation in (
        (whole, ("eval", padded, *settings, *tokenizer)),
        (document(tmp_path, *of_a_text, "--context", num_tokens, *top), ("eval", *of_a_text, "--context", 2000)),
    ):
        evaluated, (model,) = json.loads(run_here(*evaluation, *top, "--json")[0]), told["models"]
        assert model["loss"] == pytest.approx(evaluated["scores"][0]["value"], abs=1e-5)
        losses = [[r["loss"] for r in each["readings"] if r["layer"] is None] for each in (model, evaluated)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
        of_layers = {r["layer"]: r["loss"] for r in model["readings"] if r["layer"] is not None}
        assert [*of_layers] == [0, 1]
        assert len({model["loss"], losses[0][1], *of_layers.values()}) == 4


def test_a_tokenizer_that_does_not_fit_the_dataset_is_rejected(place, tmp_path):
    dataset = prepare_text(tmp_path / ".datasets")
    checkpoint, other = write_trained(tmp_path / "final", dataset), place / "softmax/tokenizer.json"
    for command in (("inspect",), ("eval", "--split", "validation")):
        _, err = run_here(*command, checkpoint, "--context", 12, "--tokenizer", other, expect=2)
        assert f"{dataset.name} has 300 token ids, but the tokenizer " in err
