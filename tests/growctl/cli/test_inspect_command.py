"""`growctl inspect`: the table, the page and the JSON document, and what it rejects."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.evaluate import inspection
from model.config import PATTENTIONS, TransformerConfig
from model.errors import Failure, UserError
from tests.growctl.runs import run_here
from tests.pretrained import text_config, write_pretrained
from tests.stages.grow.test_compare import alter, prepare_text, rewrite, write_trained

WORDS = "the <b>cat</b> in the $hat$ ate the rest of it \x1b[31m then & there "
FEW = ("--sequences", "4", "--context", "12", "--batch-size", "2")
TRANSFORMER = TransformerConfig(vocab_size=261, hidden_size=16, num_heads=1, num_layers=2, ffn_size=32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of every kind and a text."""
    folder = tmp_path_factory.mktemp("inspect")
    for function in ("l2_norm_gelu", "gelu_l2_norm", "softmax"):
        write_pretrained(folder / function, text_config(score_function=function))
    write_pretrained(folder / "transformer", TRANSFORMER)
    (folder / "text.txt").write_text(WORDS * 20)
    return folder


@pytest.fixture(scope="module")
def document(place: Path) -> dict[str, Any]:
    """What --json prints for all of them."""
    names = ("l2_norm_gelu", "gelu_l2_norm", "softmax", "transformer")
    out, err = run_here("inspect", *(place / name for name in names), "--text", place / "text.txt", *FEW, "--json")
    assert err == ""
    return json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def test_every_checkpoint_is_measured(place, document):
    functions = ["l2_norm_gelu", "gelu_l2_norm", "softmax", None]
    assert [model["score_function"] for model in document["models"]] == functions
    assert document["text"] == {
        "source": str(place / "text.txt"),
        "num_sequences": 4,
        "context": 12,
        "batch_size": 2,
    }
    for model in document["models"]:
        layers = [(layer["block"], layer["name"]) for layer in model["layers"]]
        names = PATTENTIONS if model["score_function"] else ("attention_input", "projection", "ffn_input", "ffn_output")
        assert layers == [(b, name) for b in (0, 1) for name in names]
        assert model["gradient"]["mean"] > 0
        assert all((layer["scores"] is None) == (model["score_function"] is None) for layer in model["layers"])


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Path) -> Callable[..., str]:
    """Runs `growctl inspect` in an empty folder on 80 columns; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in ("inspect", *FEW, *arguments)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_the_table_fits_80_columns_and_states_what_may_be_compared(place, call):
    out = call(place / "softmax", place / "transformer", "--text", place / "text.txt")
    lines = [line for line in out.splitlines() if str(place) not in line]
    assert max(map(len, lines)) <= 80
    words = " ".join(out.split())
    assert words.index("has the lowest of 2 losses") < words.index("4 windows of 12 tokens")
    for sentence in (
        "4 windows of 12 tokens, in 2 batches of 2",
        "Compare checkpoints that ran the same schedule but for the score function.",
        "Use by generation",
    ):
        assert sentence in words


def test_dead_tokens_are_counted(place, call, tmp_path):
    shutil.copytree(place / "l2_norm_gelu", tmp_path / "dead")
    alter(tmp_path / "dead", "blocks.1.ffn.value_tokens.0", lambda value: value.index_fill(0, torch.tensor([3, 4]), 0))
    words = " ".join(call("dead", "--text", place / "text.txt").split())
    assert "2 dead parameter tokens" in words
    assert "no dead parameter tokens" in call(place / "l2_norm_gelu", "--text", place / "text.txt")


def test_a_transformer_is_measured_without_scores_and_tokens(place, call):
    words = " ".join(call(place / "transformer", "--text", place / "text.txt").split())
    assert "transformer, every layer" in words
    for absent in ("dead", "effective", "generation tokens"):
        assert absent not in words


def test_the_text_is_the_validation_data_with_its_tokenizer_unless_a_file_is_given(call, tmp_path):
    dataset = prepare_text(tmp_path / "runs/.datasets")
    checkpoint = write_trained(tmp_path / "runs/final", dataset)
    told = json.loads(call(checkpoint, "--json"))
    assert told["text"]["source"] == f"the validation split of {dataset.name}"
    assert json.loads(call(checkpoint, "--data", dataset, "--json")) == told


def test_the_loss_is_that_of_eval_without_padding_rows_of_the_embedding(call, tmp_path):
    dataset = prepare_text(tmp_path / "runs/.datasets")
    padded = write_trained(tmp_path / "runs/final", dataset, text_config(320))
    tokenizer = ("--tokenizer", dataset / "tokenizer.json")
    inspected = json.loads(call(padded, *tokenizer, "--json"))
    settings = ("--split", "validation", "--sequences", 4, "--context", 12)
    out, _ = run_here("eval", padded, *settings, *tokenizer, "--json")
    evaluated = json.loads(out)
    assert evaluated["padding_rows"] == 20
    assert inspected["models"][0]["loss"] == pytest.approx(evaluated["scores"][0]["value"], abs=1e-5)


def test_a_changed_tokenizer_of_the_dataset_is_rejected(place, call, tmp_path):
    dataset = prepare_text(tmp_path / "runs/.datasets")
    checkpoint = write_trained(tmp_path / "runs/final", dataset)
    shutil.copy(place / "softmax/tokenizer.json", dataset / "tokenizer.json")
    with pytest.raises(UserError, match=r"is damaged: its tokenizer\.json is missing or changed"):
        call(checkpoint, "--data", dataset)


@pytest.mark.parametrize("command", [("inspect",), ("eval", "--split", "validation")], ids=lambda command: command[0])
def test_a_tokenizer_with_fewer_ids_than_the_dataset_is_rejected(place, tmp_path, command):
    dataset = prepare_text(tmp_path / ".datasets")
    checkpoint = write_trained(tmp_path / "final", dataset)
    arguments = [*command, checkpoint, "--context", 12, "--tokenizer", place / "softmax/tokenizer.json"]
    with pytest.raises(UserError, match=rf"{dataset.name} has 300 token ids, but the tokenizer .* has only 261; give"):
        typer.main.get_command(app).main([str(argument) for argument in arguments], standalone_mode=False)


def test_the_picture_is_a_png(place, call, tmp_path):
    call(place / "softmax", place / "transformer", "--text", place / "text.txt", "--picture", "seen.png")
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_an_unusable_picture_is_reported_before_anything_is_measured(place, call, monkeypatch):
    monkeypatch.setattr(inspection, "inspect_checkpoints", lambda *_: pytest.fail("it measured"))
    with pytest.raises(UserError, match="--picture"):
        call(place / "softmax", "--text", place / "text.txt", "--picture", place / "text.txt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["l2_norm_gelu"], "there is no dataset"),
        (["l2_norm_gelu", "--text", "nowhere.txt"], r"--text nowhere\.txt: there is no such file"),
        (["l2_norm_gelu", "--text", "text.txt", "--data", "d"], "give one of them"),
        (
            ["l2_norm_gelu", "--text", "short.txt"],
            "short.txt: the text has 4 tokens, but one window of --context 12 needs 13",
        ),
        (["l2_norm_gelu", "other", "--text", "text.txt"], "other has another tokenizer than l2_norm_gelu"),
        (["unknown", "l2_norm_gelu", "other", "--text", "text.txt"], "other has another tokenizer than l2_norm_gelu"),
        (["l2_norm_gelu", "wider", "--text", "text.txt"], "wider has another vocabulary than l2_norm_gelu"),
        (["nowhere", "--text", "text.txt"], "nowhere is neither a path nor a run"),
        (["l2_norm_gelu", "--text", "text.txt", "--device", "tpu"], "--device 'tpu'"),
    ],
)
def test_unusable_input_gives_one_message_and_writes_nothing(place, monkeypatch, call, arguments, message):
    monkeypatch.chdir(place)
    (place / "short.txt").write_text("abc")
    if "other" in arguments and not (place / "other").exists():
        write_pretrained(place / "other")
        rewrite(place / "other", tokenizer_sha256="f" * 64)
    if "unknown" in arguments and not (place / "unknown").exists():
        write_pretrained(place / "unknown")
        rewrite(place / "unknown", tokenizer_sha256=None)
    if "wider" in arguments and not (place / "wider").exists():
        write_pretrained(place / "wider", text_config(300))
    before = sorted(path.name for path in place.iterdir())
    with pytest.raises(UserError, match=message) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_model_whose_loss_is_not_finite_fails_with_its_name(place, call, tmp_path):
    shutil.copytree(place / "l2_norm_gelu", tmp_path / "diverged")
    alter(tmp_path / "diverged", "embedding.weight", lambda value: value * torch.nan)
    with pytest.raises(Failure, match="diverged: the loss is nan"):
        call("diverged", "--text", place / "text.txt")


def test_several_texts_and_folders_of_them_are_one_text(place, call, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"texts/{name}.jsonl").write_text(json.dumps({"text": WORDS}) + "\n")
    told = json.loads(call(place / "softmax", "--text", "texts", "--text", place / "text.txt", "--json"))
    assert told["text"]["source"] == f"texts, {place / 'text.txt'}"


def test_the_loss_on_a_text_is_that_of_eval(place, call):
    settings = (place / "softmax", "--text", place / "text.txt", "--json")
    evaluated = json.loads(run_here("eval", *settings, "--context", 2000)[0])
    inspected = json.loads(call(*settings, "--context", evaluated["scores"][0]["num_samples"]))
    assert inspected["models"][0]["loss"] == pytest.approx(evaluated["scores"][0]["value"], abs=1e-5)
