"""The error message for a mistake in any value of a schedule."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.plan import make_plan
from growctl.schedule.errors import ScheduleError
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse, paths_of

ROOT = Path(__file__).resolve().parent.parent.parent.parent

TRAINING_KEYS = "sequence_length, batch_size, ladder_tokens, ladder_flops, precision, log_every"
STAGE_KEYS = (
    "name, attention_tokens, ffn_tokens, layers, num_layers, hidden_size, ffn_size, train_tokens, train_steps, "
    "until, batch_size, sequence_length, ramp_steps, mixture, release"
)
GROWTH_KEYS = (
    "preset, init, tau, ramp, anneal, depth, copy_noise, moments, allow_jump, old_tokens, lr_scale, weight_decay, "
    "rewarmup, when, slope, slope_window"
)
TRANSFORMER_STAGES = {f"stages.{i}.{key}": None for i in (0, 1) for key in ("attention_tokens", "ffn_tokens")}
MODEL_KEYS = (
    "family, num_layers, hidden_size, num_heads, vocab_size, ffn_size, score_function, rotary_fraction, rotary_base"
)
TOP_KEYS = (
    "name, seed, data, model, start, stages, training, learning_rate, optimizer, growth, evaluation, samples, "
    "checkpoint, anomalies, releases, controls, trackers, launch"
)
COUNT = "must be a whole number; 2.5k, 300M and 15B are fine"
NAME = "letters, digits, . _ - (a letter or digit first, 100 at most)"


def unknown(what: str, allowed: str, *, meant: str | None = None) -> str:
    return f"{what}: no such key{f'; did you mean {meant!r}?' if meant else ''} (allowed here: {allowed})"


# Mistakes: one message each


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        # keys
        ({"stages.0.train_token": "2k"}, "stages.0.train_token"),
        ({"stage": []}, "stage"),
        ({"model.num_layer": 3}, "model.num_layer"),
        ({"xyz": 1}, "xyz"),
        ({"stages.0.release": {"deacy": 0.1}}, "stages.0.release.deacy"),
        ({"stages.0.release": {"decay": 2}}, "stages.0.release.decay"),
        ({"stages.0.release": "yes"}, "stages.0.release"),
        ({"model._target_": "os.system"}, "model._target_"),
        ({"launch.batch_size": 8}, "launch.batch_size"),
        ({"growth.every": 8}, "growth.every"),
        ({"growth.seed": 8}, "growth.seed"),
        ({"stages.1.hidden_size": 64}, "stages.1.hidden_size"),
        ({"stages.1.num_heads": 4}, "stages.1.num_heads"),
        ({"training.batch_size": DELETE, "training.batch_sise": 8}, "training.batch_sise"),
        ({"data.source": DELETE}, "data.source"),
        ({"learning_rate": DELETE}, "learning_rate"),
        ({"stages.0.name": DELETE}, "stages.0.name"),
        # types
        ({"model.num_layers": "two"}, "model.num_layers"),
        ({"model.num_layers": 2.5}, "model.num_layers"),
        ({"seed": True}, "seed"),
        ({"seed": None}, "seed"),
        ({"training.batch_size": True}, "training.batch_size"),
        ({"training.batch_size": 64.5}, "training.batch_size"),
        ({"training.batch_size": "many"}, "training.batch_size"),
        ({"stages.0.train_tokens": "15X"}, "stages.0.train_tokens"),
        ({"data.document_mask": "maybe"}, "data.document_mask"),
        ({"data.document_mask": [1]}, "data.document_mask"),
        ({"learning_rate.peak": "high"}, "learning_rate.peak"),
        ({"training": [1]}, "training"),
        ({"training": None}, "training"),
        ({"stages": 3}, "stages"),
        ({"stages": None}, "stages"),
        ({"stages": []}, "stages"),
        ({"stages.0": 5}, "stages.0"),
        ({"stages.0.name": 124}, "stages.0.name"),
        ({"stages.0.name": "a/b"}, "stages.0.name"),
        ({"name": "a/b"}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"optimizer.betas": [0.9]}, "optimizer.betas"),
        ({"optimizer.betas": [0.9, 1.5]}, "optimizer.betas.1"),
        ({"learning_rate.shape": "linear"}, "learning_rate.shape"),
        ({"controls.0.kind": "scratch"}, "controls.0.kind"),
        ({"launch.devices": "all"}, "launch.devices"),
        ({"launch.devices": True}, "launch.devices"),
        ({"launch.zero_stage": 0}, "launch.zero_stage"),
        ({"launch.activation_checkpointing": "all"}, "launch.activation_checkpointing"),
        ({"launch.activation_checkpointing": {"every": 0}}, "launch.activation_checkpointing.every"),
        ({"launch.activation_checkpointing": {"evry": 2}}, "launch.activation_checkpointing.evry"),
        ({"launch.activation_checkpointing": True}, "launch.activation_checkpointing"),
        ({"launch.zero_stage": 4}, "launch.zero_stage"),
        ({"launch.zero_stage": True}, "launch.zero_stage"),
        ({1: 2}, "1"),
        ({"launch.environment": {1: "x"}}, "launch.environment.1"),
        ({"data.source": "\ud800"}, "data.source"),
        ({"\x1b[2J": 1}, "'\\x1b[2J'"),
        ({"a\nb": 1}, "'a\\nb'"),
        ({"k" * 999: 1}, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk..."),
        # ranges
        ({"launch.devices": 10**400}, "launch.devices"),
        ({"launch.nodes": [1, 10**7]}, "launch.nodes.1"),
        ({"training.batch_size": -8}, "training.batch_size"),
        ({"training.batch_size": 10**30}, "training.batch_size"),
        ({"stages.0.train_tokens": "9" * 90 + "T"}, "stages.0.train_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"model.num_layers": 10**9}, "model.num_layers"),
        ({"model.hidden_size": 10**9}, "model.hidden_size"),
        ({"learning_rate.peak": math.inf}, "learning_rate.peak"),
        ({"learning_rate.peak": math.nan}, "learning_rate.peak"),
        ({"learning_rate.peak": 0.0}, "learning_rate.peak"),
        ({"learning_rate.decay": 2}, "learning_rate.decay"),
        ({"growth.ramp": 0.0}, "growth.ramp"),
        ({"controls.0.budgets": [1e300]}, "controls.0.budgets.0"),
        ({"data.vocab_size": 100}, "data.vocab_size"),
        ({"data.validation_fraction": 2}, "data.validation_fraction"),
        ({"data.validation_fraction": math.nan}, "data.validation_fraction"),
        ({"data.source": ""}, "data.source"),
        # combinations
        ({"data.tokenizer": "gpt2"}, "data"),
        ({"data.vocab_size": DELETE, "data.tokenizer": "gpt2"}, "model.vocab_size"),
        ({"model.vocab_size": 299}, "model.vocab_size"),
        ({"model.num_heads": 5}, "model.num_heads"),
        ({"model.rotary_fraction": 0.1}, "model.rotary_fraction"),
        ({"model.ffn_size": 64}, "model.ffn_size"),
        ({"stages.0.train_steps": 4}, "stages.0"),
        ({"stages.0.train_tokens": DELETE}, "stages.0"),
        ({"stages.0.train_tokens": 127}, "stages.0.train_tokens"),
        ({"stages.0.ffn_tokens": DELETE}, "stages.0.ffn_tokens"),
        ({"stages.1.ffn_tokens": 7}, "stages.1.ffn_tokens"),
        ({"stages.1.attention_tokens": 4}, "stages.1"),
        ({"stages.1.name": "small"}, "stages.1.name"),
        ({"model.score_function": "softmax"}, "stages.1"),
        (
            {"model.family": "transformer", "controls": [], "stages.1.num_layers": 1} | TRANSFORMER_STAGES,
            "stages.1",
        ),
        ({"learning_rate.final": 0.1}, "learning_rate.final"),
        ({"launch.micro_batch_size": 3}, "launch.micro_batch_size"),
        ({"launch.kernels": "compiled", "launch.zero_stage": 3}, "launch.kernels"),
        ({"controls.1.kind": "tokenformer-scratch"}, "controls.1.kind"),
        ({"controls.0.budgets": [2, 2.0]}, "controls.0.budgets"),
    ],
)
def test_a_mistake_gives_one_line(changes: dict[str, Any], paths: str) -> None:
    data = changed({path: value for path, value in changes.items() if isinstance(path, str)})
    data |= {key: value for key, value in changes.items() if not isinstance(key, str)}
    assert paths_of(parse, data) == paths


def test_a_transformer_ladder_rejects_parameter_tokens_and_tokenformer_controls() -> None:
    one = {"model.family": "transformer", "stages": BASE["stages"][:1], "controls": BASE["controls"][:1]}
    assert message_of(parse, changed(one)) == (
        "s.yaml: 2 problems\n"
        "  stages.0.attention_tokens = 4: is for model.family = 'tokenformer'; leave it out\n"
        "  stages.0.ffn_tokens = 8: is for model.family = 'tokenformer'; leave it out"
    )
    sizes = {f"stages.0.{key}": DELETE for key in ("attention_tokens", "ffn_tokens")}
    needed = "s.yaml: controls.0.kind = 'tokenformer-scratch': needs a tokenformer; the schedule has none"
    assert message_of(parse, changed(one | sizes)) == needed


def test_all_mistakes_are_reported_together_with_unknown_keys_first() -> None:
    data = changed({"seed": "x", "training.batch_sise": 1, "learning_rate.peak": DELETE})
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 3 problems",
        f"  {unknown('training.batch_sise = 1', TRAINING_KEYS, meant='batch_size')}",
        "  seed = 'x': must be a valid integer",
        "  learning_rate.peak: is missing",
    ]


def test_a_message_lists_only_the_first_of_very_many_mistakes() -> None:
    lines = message_of(parse, changed({f"x{number}": 1 for number in range(1000)})).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("s.yaml: 1000 problems", "  ...", 22)


def test_a_ladder_has_at_most_32_stages() -> None:
    stages = [BASE["stages"][0] | {"name": f"s{number}", "ffn_tokens": 8 + number} for number in range(33)]
    assert message_of(parse, changed({"stages": stages})).endswith(
        "...: must have at most 32 items after validation, not 33"
    )
    assert len(parse(changed({"stages": stages[:-1], "controls": []})).stages) == 32


def test_softmax_scores_and_transformers_are_accepted_if_nothing_grows() -> None:
    assert parse(changed({"model.score_function": "softmax", "stages": BASE["stages"][:1]}))
    one = {"name": "base", "train_steps": 3}
    assert parse(changed({"model.family": "transformer", "stages": [one], "controls": BASE["controls"][1:]}))


def test_stages_without_sizes_are_not_also_reported_as_equal() -> None:
    stages = [{"name": name, "train_steps": 3} for name in ("a", "b")]
    lines = message_of(parse, changed({"stages": stages})).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "stages.0.attention_tokens",
        "stages.0.ffn_tokens",
    ]


def test_long_values_are_shortened() -> None:
    assert message_of(parse, changed({"seed": "x" * 999})) == f"s.yaml: seed = '{'x' * 56}...: must be a valid integer"


def test_the_command_prints_the_message_and_no_traceback_and_exits_with_2(tmp_path: Path) -> None:
    path = file_of(tmp_path, TEXT.replace("train_steps", "train_step"))
    command = [sys.executable, "-m", "growctl.cli.app", "plan", path]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    problem = unknown("stages.1.train_step = 20", STAGE_KEYS, meant="train_steps")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"growctl: {path}: {problem}\n")


# Any content gives a schedule that plans, or a ScheduleError

ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["15B", "1.5k", "auto", "softmax", "transformer", "${seed}"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "x"]), st.integers(), max_size=2),
)


def paths_in(data: Any, path: str = "") -> list[str]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [p for key, value in entries for p in paths_in(value, f"{path}.{key}".lstrip("."))]


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from([*paths_in(BASE), "model.ffn_size", "x"]), ANY_VALUE, min_size=1, max_size=1))
def test_any_value_anywhere_gives_a_schedule_that_plans_or_short_messages(changes: dict[str, Any]) -> None:
    try:
        schedule = parse(changed(changes))
    except ScheduleError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1 or lines[0] == f"s.yaml: {len(lines) - 1} problems"
        assert max(map(len, lines)) < 400
    else:
        make_plan(schedule)
