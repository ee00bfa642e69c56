"""The error message for a mistake in any value of a schedule."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.load import ScheduleError
from growctl.ladder.plan import make_plan
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse

ROOT = Path(__file__).resolve().parent.parent.parent.parent

TRAINING_KEYS = "sequence_length, batch_size, batch_tokens, ladder_tokens, ladder_flops, precision, log_every"
STAGE_KEYS = (
    "name, attention_tokens, ffn_tokens, layers, num_layers, hidden_size, ffn_size, train_tokens, train_steps, "
    "until, batch_size, batch_tokens, sequence_length, ramp_steps, mixture, release"
)
GROWTH_KEYS = (
    "preset, init, tau, ramp, anneal, depth, copy_noise, moments, allow_jump, old_tokens, lr_scale, weight_decay, "
    "rewarmup, when, slope, slope_window, operator"
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
    ("changes", "problem"),
    [
        # keys
        ({"stages.0.train_token": "2k"}, unknown("stages.0.train_token = '2k'", STAGE_KEYS, meant="train_tokens")),
        ({"stage": []}, unknown("stage = []", TOP_KEYS, meant="stages")),
        ({"model.num_layer": 3}, unknown("model.num_layer = 3", MODEL_KEYS, meant="num_layers")),
        ({"xyz": 1}, unknown("xyz = 1", TOP_KEYS)),
        ({"stages.0.release": {"deacy": 0.1}}, unknown("stages.0.release.deacy = 0.1", "decay", meant="decay")),
        ({"stages.0.release": {"decay": 2}}, "stages.0.release.decay = 2: must be 1 or less"),
        (
            {"stages.0.release": "yes"},
            "stages.0.release = 'yes': must be true, false, or {decay: SHARE}, with a share above 0 and 1 at most",
        ),
        (
            {"model._target_": "os.system"},
            "model._target_ = 'os.system': _target_ names Python to call; a schedule cannot call any",
        ),
        (
            {"launch.environment": {"_partial_x": "1"}},
            "launch.environment._partial_x = '1': _partial_x names Python to call; a schedule cannot call any",
        ),
        (
            {"launch.batch_size": 8},
            "launch.batch_size = 8: no such key here; it belongs to stages.N or training (allowed here: cluster, "
            "nodes, devices, zero_stage, offload, activation_checkpointing, kernels, micro_batch_size, environment, "
            "grace, hang_timeout, max_restarts, hostfile, slurm, hardware)",
        ),
        (
            {"growth.every": 8},
            "growth.every = 8: no such key here; it belongs to evaluation or checkpoint or "
            f"launch.activation_checkpointing (allowed here: {GROWTH_KEYS})",
        ),
        (
            {"growth.seed": 8},
            f"growth.seed = 8: no such key here; it belongs to the top level (allowed here: {GROWTH_KEYS})",
        ),
        (
            {"stages.1.hidden_size": 64},
            "stages.1.hidden_size = 64: a tokenformer grows by tokens and layers only; set it for all stages under "
            "model",
        ),
        (
            {"stages.1.num_heads": 4},
            "stages.1.num_heads = 4: a stage cannot change this; set model.num_heads for all stages",
        ),
        (
            {"training.batch_size": DELETE, "training.batch_sise": 8},
            unknown("training.batch_sise = 8", TRAINING_KEYS, meant="batch_size"),
        ),
        ({"data.source": DELETE}, "data.source: is missing; set it to a text, or name several in data.mixture"),
        ({"learning_rate": DELETE}, "learning_rate: is missing"),
        ({"stages.0.name": DELETE}, "stages.0.name: is missing"),
        # types
        ({"model.num_layers": "two"}, "model.num_layers = 'two': must be a whole number"),
        ({"model.num_layers": 2.5}, "model.num_layers = 2.5: must be a whole number"),
        ({"seed": True}, "seed = true: must be a whole number"),
        ({"seed": None}, "seed = null: must be a whole number"),
        ({"training.batch_size": True}, f"training.batch_size = true: {COUNT}"),
        ({"training.batch_size": 64.5}, f"training.batch_size = 64.5: {COUNT}"),
        ({"training.batch_size": "many"}, f"training.batch_size = 'many': {COUNT}"),
        ({"stages.0.train_tokens": "15X"}, f"stages.0.train_tokens = '15X': {COUNT}"),
        ({"data.document_mask": "maybe"}, "data.document_mask = 'maybe': must be true or false"),
        ({"data.document_mask": [1]}, "data.document_mask = [1]: must be true or false"),
        ({"learning_rate.peak": "high"}, "learning_rate.peak = 'high': must be a number"),
        ({"training": [1]}, "training = [1]: must be a block of keys"),
        ({"training": None}, "training = null: must be a block of keys"),
        ({"stages": 3}, "stages = 3: must be a list"),
        ({"stages": None}, "stages = null: must be a list"),
        ({"stages": []}, "stages = []: must have 1 or more entries"),
        ({"stages.0": 5}, "stages.0 = 5: must be a block of keys"),
        ({"stages.0.name": 124}, "stages.0.name = 124: must be text; put it in quotes"),
        ({"stages.0.name": "a/b"}, f"stages.0.name = 'a/b': must be {NAME}"),
        ({"name": "a/b"}, f"name = 'a/b': must be {NAME}"),
        ({"name": ".hidden"}, f"name = '.hidden': must be {NAME}"),
        ({"name": "x" * 101}, f"name = '{'x' * 56}...: must be {NAME}"),
        ({"optimizer.betas": [0.9]}, "optimizer.betas = [0.9]: must have 2 or more entries"),
        ({"optimizer.betas": [0.9, 1.5]}, "optimizer.betas.1 = 1.5: must be below 1"),
        ({"learning_rate.shape": "linear"}, "learning_rate.shape = 'linear': must be 'wsd' or 'cosine'"),
        (
            {"controls.0.kind": "scratch"},
            "controls.0.kind = 'scratch': must be 'tokenformer-scratch', 'transformer-scratch', 'best-scratch', "
            "'scratch-of-each-size', 'single-jump' or 'official-growth'",
        ),
        ({"launch.devices": "all"}, "launch.devices = 'all': must be auto, or a whole number above 0"),
        ({"launch.devices": True}, "launch.devices = true: must be auto, or a whole number above 0"),
        (
            {"launch.zero_stage": 0},
            "launch.zero_stage = 0: ZeRO 0 saves no optimizer state that growth could read; use 1, which costs no more",
        ),
        (
            {"launch.activation_checkpointing": "all"},
            "launch.activation_checkpointing = 'all': must be none, blocks, or {every: N} with a number of blocks",
        ),
        (
            {"launch.activation_checkpointing": {"every": 0}},
            "launch.activation_checkpointing.every = 0: must be above 0",
        ),
        (
            {"launch.activation_checkpointing": {"evry": 2}},
            "launch.activation_checkpointing.evry = 2: no such key; did you mean 'every'? (allowed here: every)",
        ),
        (
            {"launch.activation_checkpointing": True},
            "launch.activation_checkpointing = true: must be none, blocks, or {every: N} with a number of blocks; "
            "blocks recomputes every block",
        ),
        ({"launch.zero_stage": 4}, "launch.zero_stage = 4: must be 1, 2 or 3"),
        ({"launch.zero_stage": True}, "launch.zero_stage = true: must be 1, 2 or 3"),
        ({1: 2}, "1 = 1: keys must be text"),
        ({"launch.environment": {1: "x"}}, "launch.environment.1: keys must be text; put this in quotes"),
        ({"data.source": "\ud800"}, r"data.source = '\ud800': must be text that UTF-8 can encode"),
        ({"\x1b[2J": 1}, unknown(r"'\x1b[2J' = 1", TOP_KEYS)),
        ({"a\nb": 1}, unknown(r"'a\nb' = 1", TOP_KEYS)),
        ({"k" * 999: 1}, unknown(f"{'k' * 57}... = 1", TOP_KEYS)),
        # ranges
        ({"launch.devices": 10**400}, f"launch.devices = 1{'0' * 56}...: must be 1000000 or less"),
        ({"launch.nodes": [1, 10**7]}, "launch.nodes = [1, 10000000]: must be 1000000 or less"),
        ({"training.batch_size": -8}, "training.batch_size = -8: must be above 0"),
        ({"training.batch_size": 10**30}, f"training.batch_size = {10**30}: must be 100T or less"),
        ({"stages.0.train_tokens": "9" * 90 + "T"}, f"stages.0.train_tokens = '{'9' * 56}...: must be 100T or less"),
        ({"seed": -1}, "seed = -1: must be 0 or more"),
        ({"seed": 2**32}, "seed = 4294967296: must be below 4294967296"),
        ({"model.num_layers": 10**9}, "model.num_layers = 1000000000: must be 1000 or less"),
        ({"model.hidden_size": 10**9}, "model.hidden_size = 1000000000: must be 1048576 or less"),
        ({"learning_rate.peak": math.inf}, "learning_rate.peak = Infinity: must be a finite number"),
        ({"learning_rate.peak": math.nan}, "learning_rate.peak = NaN: must be a finite number"),
        ({"learning_rate.peak": 0.0}, "learning_rate.peak = 0.0: must be above 0"),
        ({"learning_rate.decay": 2}, "learning_rate.decay = 2: must be 1 or less"),
        ({"growth.ramp": 0.0}, "growth.ramp = 0.0: must be above 0"),
        ({"controls.0.budgets": [1e300]}, "controls.0.budgets.0 = 1e+300: must be 1000 or less"),
        ({"data.vocab_size": 100}, "data.vocab_size = 100: must be 257 or more"),
        ({"data.validation_fraction": 2}, "data.validation_fraction = 2: must be below 1"),
        ({"data.validation_fraction": math.nan}, "data.validation_fraction = NaN: must be a finite number"),
        ({"data.source": ""}, "data.source = '': must not be empty"),
        # combinations
        (
            {"data.tokenizer": "gpt2"},
            "data: vocab_size (300) is the size of a tokenizer to train, but tokenizer 'gpt2' is set: "
            "leave out one of the two",
        ),
        (
            {"data.vocab_size": DELETE, "data.tokenizer": "gpt2"},
            "model.vocab_size: is missing; with data.tokenizer, set it to the number of tokens of that tokenizer",
        ),
        ({"model.vocab_size": 299}, "model.vocab_size = 299: must be at least the tokenizer's 300"),
        ({"model.num_heads": 5}, "model.num_heads = 5: must divide model.hidden_size, 32"),
        (
            {"model.rotary_fraction": 0.1},
            "model.rotary_fraction = 0.1: rotates 1 of the 16 dimensions of a head; that number must be "
            "even and 2 or more, or the fraction 0",
        ),
        ({"model.ffn_size": 64}, "model.ffn_size = 64: is for a transformer; a tokenformer's stages have ffn_tokens"),
        (
            {"stages.0.train_steps": 4},
            "stages.0: has both train_tokens and train_steps; drop one (as an override: ~stages.0.train_tokens)",
        ),
        ({"stages.0.train_tokens": DELETE}, "stages.0: needs train_tokens, train_steps or until"),
        ({"stages.0.train_tokens": 127}, "stages.0.train_tokens = 127: must be 128 or more, the tokens of one step"),
        (
            {"stages.0.ffn_tokens": DELETE},
            "stages.0.ffn_tokens: is missing; the first stage of a tokenformer with layers needs a number of "
            "parameter tokens",
        ),
        (
            {"stages.1.ffn_tokens": 7},
            "stages.1.ffn_tokens = 7: is less than the 8 of the stage before; a growth only adds",
        ),
        (
            {"stages.1.attention_tokens": 4},
            "stages.1: has the size, batch, context and mixture of the stage before; change one of them, or merge the "
            "two stages",
        ),
        ({"stages.1.name": "small"}, "stages.1.name = 'small': another stage has that name; each needs its own"),
        (
            {"model.score_function": "softmax"},
            "growth: score_function 'softmax' cannot grow with a ramp from zero keys: exp(0) = 1 would change the "
            "function; use init 'zero-value' with tau 'per-generation', or init 'copy' with tau 'recompute'",
        ),
        (
            {"model.family": "transformer", "controls": [], "stages.1.num_layers": 4} | TRANSFORMER_STAGES,
            "growth.operator: is missing; a transformer that grows needs one of net2net, hypercloning, stack, "
            "identity-blocks",
        ),
        ({"learning_rate.final": 0.1}, "learning_rate.final = 0.1: must not be above learning_rate.peak, 0.001"),
        ({"launch.micro_batch_size": 3}, "launch.micro_batch_size = 3: must divide training.batch_size, 8"),
        (
            {"launch.kernels": "compiled", "launch.zero_stage": 3},
            "launch.kernels = 'compiled': needs launch.zero_stage 1 or 2; ZeRO-3 has no whole weights to compile with",
        ),
        (
            {"controls.1.kind": "tokenformer-scratch"},
            "controls.1.kind = 'tokenformer-scratch': is already in the list; give that entry all the budgets",
        ),
        (
            {"controls.0.budgets": [2, 2.0]},
            "controls.0.budgets = [2.0, 2.0]: lists a budget twice; each may occur once",
        ),
    ],
)
def test_a_mistake_gives_one_line(changes: dict[str, Any], problem: str) -> None:
    data = changed({path: value for path, value in changes.items() if isinstance(path, str)})
    data |= {key: value for key, value in changes.items() if not isinstance(key, str)}
    assert message_of(parse, data) == f"s.yaml: {problem}"


def test_a_transformer_ladder_rejects_parameter_tokens_and_tokenformer_controls() -> None:
    one = {"model.family": "transformer", "stages": BASE["stages"][:1], "controls": BASE["controls"][:1]}
    assert message_of(parse, changed(one)) == (
        "s.yaml: 3 problems\n"
        "  stages.0.attention_tokens = 4: a transformer has no parameter tokens; leave it out\n"
        "  stages.0.ffn_tokens = 8: a transformer has no parameter tokens; leave it out\n"
        "  controls.0.kind = 'tokenformer-scratch': the schedule has no tokenformer; use 'transformer-scratch'"
    )


def test_all_mistakes_are_reported_together_with_unknown_keys_first() -> None:
    data = changed({"seed": "x", "training.batch_sise": 1, "learning_rate.peak": DELETE})
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 3 problems",
        f"  {unknown('training.batch_sise = 1', TRAINING_KEYS, meant='batch_size')}",
        "  seed = 'x': must be a whole number",
        "  learning_rate.peak: is missing",
    ]


def test_a_message_lists_only_the_first_of_very_many_mistakes() -> None:
    lines = message_of(parse, changed({f"x{number}": 1 for number in range(1000)})).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("s.yaml: 1000 problems", "  ...", 22)


def test_a_ladder_has_at_most_32_stages() -> None:
    stages = [BASE["stages"][0] | {"name": f"s{number}", "ffn_tokens": 8 + number} for number in range(33)]
    assert message_of(parse, changed({"stages": stages})).endswith("...: must have 32 or fewer entries")
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
    assert message_of(parse, changed({"seed": "x" * 999})) == f"s.yaml: seed = '{'x' * 56}...: must be a whole number"


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
        assert max(map(len, lines)) < 350
    else:
        make_plan(schedule)
