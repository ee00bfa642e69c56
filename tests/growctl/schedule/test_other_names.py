"""Keys that other programs use: the message names ours."""

import pytest
import typer

from growctl.cli.app import app
from growctl.schedule.blocks import Schedule
from growctl.schedule.other_names import OPTIONS, OUR_KEYS
from growctl.schedule.tree import blocks_by_path
from tests.growctl.schedules import DELETE, changed, message_of, parse

KEYS = {f"{path}.{key}" if path else key for path, block in blocks_by_path(Schedule) for key in block.model_fields}


def test_every_key_and_option_that_is_suggested_exists() -> None:
    assert set(OUR_KEYS.values()) <= KEYS
    [command] = [command for name, command in typer.main.get_group(app).commands.items() if name == "run"]
    assert set(OPTIONS.values()) <= {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("stages.0.tokens", "stages.0.train_tokens"),
        ("stages.1.max_steps", "stages.1.train_steps"),
        ("stages.0.n_layer", "stages.0.num_layers"),
        ("stages.0.depth", "stages.0.num_layers"),
        ("stages.0.add_layers", "stages.0.num_layers"),
        ("model.layers", "model.num_layers"),
        ("data.path", "data.source"),
        ("dataset_name", "data.source"),
        ("lr", "learning_rate.peak"),
        ("optimizer.learning_rate", "learning_rate.peak"),
        ("training.weight_decay", "optimizer.weight_decay"),
        ("training.seq_len", "training.sequence_length"),
        ("stages.0.context", "stages.0.sequence_length"),
        ("stages.0.batch", "stages.0.batch_size"),
        ("gradient_checkpointing", "launch.activation_checkpointing"),
        ("model.n_embd", "model.hidden_size"),
        ("model.d-model", "model.hidden_size"),
        ("training.bf16", "training.precision"),
        ("training.global_batch_size", "training.batch_size"),
        ("max_steps", "stages.N.train_steps"),
        ("launch.gpus", "launch.devices"),
        ("training.output_dir", "--runs-dir"),
    ],
)
def test_a_key_of_another_program_is_answered_with_ours(key: str, ours: str) -> None:
    said = message_of(parse, changed({key: 7}))
    assert f"{key} = 7: no such key here; growctl calls it {ours} (allowed here: " in said


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("training.epochs", "growctl counts tokens, not epochs: set stages.N.train_tokens; "),
        ("num_train_epochs", "growctl counts tokens, not epochs: set stages.N.train_tokens; "),
        ("stages.0.params", "the size of a stage follows from attention_tokens, ffn_tokens and num_layers"),
        ("model.num-parameters", "the size of a stage follows from attention_tokens, ffn_tokens and num_layers"),
    ],
)
def test_what_growctl_has_no_key_for_is_answered_with_what_to_do_instead(key: str, instead: str) -> None:
    assert f"{key} = 7: no such key; {instead}" in message_of(parse, changed({key: 7}))


def test_what_the_other_name_stands_for_is_not_also_missing() -> None:
    said = message_of(parse, changed({"data.source": DELETE, "data.path": "text"}))
    assert said.count("\n") == 0


@pytest.mark.parametrize(
    ("key", "ours"), [("stages.0.train_token", "train_tokens"), ("learning_rate.warmup_step", "warmup_steps")]
)
def test_a_misspelling_is_still_answered_with_the_nearest_key(key: str, ours: str) -> None:
    assert f"did you mean {ours!r}?" in message_of(parse, changed({key: 7}))
