"""Schedules: how people write numbers and overrides, which file is meant, and what a mistake is answered with."""

import contextlib
import copy
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from growctl.controls import plan_controls
from growctl.plan_table import plan_json
from growctl.quantities import parse_count
from growctl.schedule import SHIPPED, ScheduleError, load_schedule, parse_schedule
from growctl.schema import Schedule

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED_NAMES = sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.yaml"))

BASE: dict[str, Any] = {
    "seed": 3,
    "data": {"source": "text", "vocab_size": 300, "validation_fraction": 0.1},
    "model": {"family": "tokenformer", "num_layers": 2, "hidden_size": 32, "num_heads": 2, "rotary_fraction": 0.25},
    "stages": [
        {"name": "small", "attention_tokens": 4, "ffn_tokens": 8, "train_tokens": "2k"},
        {"name": "large", "attention_tokens": 6, "ffn_tokens": 8, "train_steps": 20},
    ],
    "training": {"sequence_length": 16, "batch_size": 8},
    "learning_rate": {"peak": 1e-3, "final": 0.0, "warmup_steps": 2},
    "optimizer": {"betas": [0.9, 0.95]},
    "growth": {"ramp": 0.1},
    "controls": [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}, {"kind": "transformer-scratch"}],
    "launch": {"devices": 1, "zero_stage": 1, "micro_batch_size": 4},
}
TEXT = OmegaConf.to_yaml(OmegaConf.create(BASE))

TRAINING_KEYS = "sequence_length, batch_size, batch_tokens, precision, log_every"
STAGE_KEYS = "name, attention_tokens, ffn_tokens, layers, num_layers, hidden_size, ffn_size, train_tokens, train_steps"
GROWTH_KEYS = (
    "preset, init, tau, ramp, anneal, copy_noise, moments, allow_jump, old_tokens, lr_scale, weight_decay, rewarmup, "
    "when, slope, slope_window, operator"
)
TRANSFORMER_STAGES = {f"stages.{i}.{key}": None for i in (0, 1) for key in ("attention_tokens", "ffn_tokens")}
MODEL_KEYS = (
    "family, num_layers, hidden_size, num_heads, vocab_size, ffn_size, score_function, rotary_fraction, rotary_base"
)
TOP_KEYS = (
    "name, seed, data, model, stages, training, learning_rate, optimizer, growth, evaluation, checkpoint, controls, "
    "launch"
)
COUNT = "must be a whole number; 2.5k, 300M and 15B are fine"
NAME = "letters, digits, . _ - (a letter or digit first, 100 at most)"
DELETE = object()


def unknown(what: str, allowed: str, *, meant: str | None = None) -> str:
    return f"{what}: no such key{f'; did you mean {meant!r}?' if meant else ''} (allowed here: {allowed})"


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """BASE with values set, or deleted, at dotted paths."""
    data = copy.deepcopy(BASE)
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        node: Any = data
        for part in parents:
            node = node[part] if isinstance(node, list) else node.setdefault(part, {})
        if value is DELETE:
            del node[last]
        else:
            node[last] = value
    return data


def parse(data: Any) -> Schedule:
    return parse_schedule(data, label="s.yaml", default_name="s")


def message_of(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(ScheduleError) as caught:
        call(*arguments)
    return str(caught.value)


def file_of(folder: Path, content: str | bytes, name: str = "s.yaml") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# Numbers


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("15B", 15 * 10**9),
        ("300M", 3 * 10**8),
        ("2.5k", 2500),
        ("2.5K", 2500),
        ("1.1B", 11 * 10**8),
        ("0.3T", 3 * 10**11),
        ("1.234567891B", 1234567891),
        (" 60 B ", 60 * 10**9),
        ("4096", 4096),
        (4096, 4096),
        (1e9, 10**9),
        (640.0, 640),
    ],
)
def test_counts_are_read_as_people_write_them(written: Any, number: int) -> None:
    assert parse_count(written) == number
    assert parse(changed({"stages.0.train_tokens": written})).stages[0].train_tokens == number


@pytest.mark.parametrize(
    "written", ["", "B", "15G", "1,000", "-5k", "1e3", "1.5", "1.2345k", 1.5, True, math.inf, math.nan, [], {}]
)
def test_what_is_no_whole_number_is_no_count(written: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        parse_count(written)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([("", 0), ("k", 3), ("M", 6), ("B", 9), ("T", 12)]))
def test_a_suffix_multiplies_exactly_and_decimals_never_round(number: int, suffix: tuple[str, int]) -> None:
    letter, zeros = suffix
    assert parse_count(f"{number}{letter}") == number * 10**zeros
    digits = str(number)
    whole, part = digits[:-2] or "0", digits[-2:].rjust(2, "0")
    if zeros:
        assert parse_count(f"{whole}.{part}{letter}") == number * 10 ** (zeros - 2)


# Files, names and overrides


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_every_shipped_schedule_loads_and_plans_by_its_short_and_its_long_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_schedule(name)
    assert loaded.name == Path(name).name
    assert plan_json(loaded)["total"]["flops"] > 0
    for reference in (f"{name}.yaml", f"schedules/{name}", f"schedules/{name}.yaml"):
        assert load_schedule(reference) == loaded


def test_a_file_that_exists_wins_over_a_shipped_name_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_schedule("quickstart").data.source != "text"
    (tmp_path / "quickstart").rmdir()
    file_of(tmp_path, TEXT, "quickstart")
    file_of(tmp_path, "not: this", "quickstart.yml")
    assert load_schedule("quickstart").data.source == "text"


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s", "s.txt", "s.YAML", "a=b $c:d {}/s.yaml"])
def test_a_schedule_may_have_any_ending_and_lie_in_any_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for key in ("data", "name", "seed"):  # what hydra would take for config groups
        (tmp_path / name).parent.joinpath(key).mkdir()
    loaded = load_schedule(file_of(tmp_path, TEXT, name), ["name=run", "seed=5"])
    assert loaded == parse(changed({"seed": 5, "name": "run"}))


def test_the_name_of_a_run_is_the_files_unless_the_schedule_has_one(tmp_path: Path) -> None:
    assert load_schedule(file_of(tmp_path, TEXT, "pile_1.4b.yaml")).name == "pile_1.4b"
    assert load_schedule(file_of(tmp_path, f"name: mine\n{TEXT}")).name == "mine"
    assert load_schedule(file_of(tmp_path, TEXT), ["name=mine"]).name == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "s.yaml")
    assert load_schedule(str(tmp_path / "link.yaml")).name == "link"
    path = file_of(tmp_path, TEXT, "my run.yaml")
    assert message_of(load_schedule, path) == f"{path}: name: is missing, and the file's 'my run' cannot be one: {NAME}"


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["stages.0.train_tokens=200k", "seed=1"], {"stages.0.train_tokens": 200_000, "seed": 1}),
        (["++seed=1"], {"seed": 1}),
        (["+checkpoint.every=7"], {"checkpoint.every": 7}),
        (["checkpoint.every=7", "checkpoint.keep=1"], {"checkpoint": {"every": 7, "keep": 1}}),
        (["learning_rate.peak=2e-4"], {"learning_rate.peak": 2e-4}),
        (["optimizer.betas=[0.8,0.9]"], {"optimizer.betas": [0.8, 0.9]}),
        (["optimizer.betas.1=0.99"], {"optimizer.betas": [0.9, 0.99]}),
        (["controls=[]"], {"controls": []}),
        (["~controls", "~launch.micro_batch_size"], {"controls": DELETE, "launch.micro_batch_size": DELETE}),
        (
            ["~stages.1.train_steps", "stages.1.train_tokens=4k"],
            {"stages.1.train_steps": DELETE, "stages.1.train_tokens": 4000},
        ),
        (["data.source=s3://bucket/a file.txt"], {"data.source": "s3://bucket/a file.txt"}),
        (["data={source: other}"], {"data.source": "other"}),
        (["data.source=${model.family}"], {"data.source": "tokenformer"}),
        (["seed=1", "seed=2"], {"seed": 2}),
        (
            ["stages=[{name: one, attention_tokens: 4, ffn_tokens: 8, train_steps: 5}]"],
            {"stages": [{"name": "one", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 5}]},
        ),
    ],
)
def test_overrides_are_written_as_for_hydra(tmp_path: Path, overrides: list[str], changes: dict[str, Any]) -> None:
    assert load_schedule(file_of(tmp_path, TEXT), overrides) == parse(changed(changes))


def test_interpolations_and_defaults_lists_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPUS", "somewhere")
    file_of(tmp_path, TEXT, "base.yaml")
    path = file_of(tmp_path, "defaults: [base, _self_]\nseed: 9\ndata: {source: '${oc.env:CORPUS}'}\n")
    assert load_schedule(path) == parse(changed({"seed": 9, "data.source": "somewhere"}))


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_schedules_own_dump_reloads_to_an_equal_schedule_and_so_do_its_controls(tmp_path: Path, name: str) -> None:
    schedule = load_schedule(name)
    for original in (schedule, *(control.schedule for control in plan_controls(schedule))):
        text = OmegaConf.to_yaml(OmegaConf.create(original.model_dump(mode="json")))
        assert load_schedule(file_of(tmp_path, text)) == original


@settings(max_examples=25, deadline=None)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\$"), min_size=1),
    st.floats(1e-12, 10.0),
)
def test_names_texts_and_rates_survive_the_dump(name: str, separator: str, peak: float) -> None:
    original = parse(changed({"name": name, "data.document_separator": separator, "learning_rate.peak": peak}))
    text = OmegaConf.to_yaml(OmegaConf.create(original.model_dump(mode="json")))
    assert parse(OmegaConf.to_container(OmegaConf.create(text))) == original


def test_importing_schedules_and_plans_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'deepspeed', 'hydra', 'omegaconf', 'datatrove', 'matplotlib', 'tokenizers'}"
    code = f"import sys, growctl.schedule, growctl.plan; sys.exit(str({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stderr.strip() == "set()"


# Mistakes: one message each


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        # keys
        ({"stages.0.train_token": "2k"}, unknown("stages.0.train_token = '2k'", STAGE_KEYS, meant="train_tokens")),
        ({"stage": []}, unknown("stage = []", TOP_KEYS, meant="stages")),
        ({"model.num_layer": 3}, unknown("model.num_layer = 3", MODEL_KEYS, meant="num_layers")),
        ({"xyz": 1}, unknown("xyz = 1", TOP_KEYS)),
        ({"model._target_": "os.system"}, unknown("model._target_ = 'os.system'", MODEL_KEYS)),
        (
            {"launch.batch_size": 8},
            "launch.batch_size = 8: no such key here; it belongs to training (allowed here: cluster, nodes, devices, "
            "zero_stage, offload, micro_batch_size, environment, hostfile, slurm, hardware)",
        ),
        (
            {"growth.every": 8},
            f"growth.every = 8: no such key here; it belongs to evaluation or checkpoint (allowed here: {GROWTH_KEYS})",
        ),
        (
            {"growth.seed": 8},
            f"growth.seed = 8: no such key here; it belongs to the top level (allowed here: {GROWTH_KEYS})",
        ),
        (
            {"stages.1.hidden_size": 64},
            "stages.1.hidden_size = 64: a tokenformer grows by tokens only; set it for all stages under model",
        ),
        (
            {"stages.1.num_heads": 4},
            "stages.1.num_heads = 4: a stage cannot change this; set model.num_heads for all stages",
        ),
        (
            {"training.batch_size": DELETE, "training.batch_sise": 8},
            unknown("training.batch_sise = 8", TRAINING_KEYS, meant="batch_size"),
        ),
        ({"data.source": DELETE}, "data.source: is missing"),
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
            "'single-jump' or 'official-growth'",
        ),
        ({"launch.devices": "all"}, "launch.devices = 'all': must be auto, or a whole number above 0"),
        ({"launch.devices": True}, "launch.devices = true: must be auto, or a whole number above 0"),
        (
            {"launch.zero_stage": 0},
            "launch.zero_stage = 0: ZeRO 0 keeps no optimizer state that growth could read; use 1, which costs no more",
        ),
        ({"launch.zero_stage": 4}, "launch.zero_stage = 4: must be 1, 2 or 3"),
        ({"launch.zero_stage": True}, "launch.zero_stage = true: must be 1, 2 or 3"),
        ({1: 2}, "1 = 1: keys must be text"),
        # ranges
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
            "data: vocab_size (300) is the size of a tokenizer to train, but the tokenizer 'gpt2' is given: "
            "leave one of the two out",
        ),
        (
            {"data.vocab_size": DELETE, "data.tokenizer": "gpt2"},
            "model.vocab_size: is missing; data.tokenizer is a given one, so say how many tokens it has",
        ),
        ({"model.vocab_size": 299}, "model.vocab_size = 299: must be at least the tokenizer's 300"),
        ({"model.num_heads": 5}, "model.num_heads = 5: must divide model.hidden_size, 32"),
        (
            {"model.rotary_fraction": 0.1},
            "model.rotary_fraction = 0.1: turns 1 of the 16 dimensions of a head; it must come to an even "
            "number, 2 or more, or be 0",
        ),
        ({"model.ffn_size": 64}, "model.ffn_size = 64: is a transformer's; a tokenformer's stages have ffn_tokens"),
        (
            {"stages.0.train_steps": 4},
            "stages.0: has both train_tokens and train_steps; drop one (as an override: ~stages.0.train_tokens)",
        ),
        ({"stages.0.train_tokens": DELETE}, "stages.0: needs train_tokens or train_steps"),
        ({"stages.0.train_tokens": 127}, "stages.0.train_tokens = 127: one step alone takes 128; that or more"),
        (
            {"stages.0.ffn_tokens": DELETE},
            "stages.0.ffn_tokens: is missing; a tokenformer's stage says how many parameter tokens it has",
        ),
        (
            {"stages.1.ffn_tokens": 7},
            "stages.1.ffn_tokens = 7: is less than the 8 of the stage before; growth only adds",
        ),
        (
            {"stages.1.attention_tokens": 4},
            "stages.1: is as large as the stage before; add tokens, or make the two one stage",
        ),
        ({"stages.1.name": "small"}, "stages.1.name = 'small': another stage has that name; each needs its own"),
        (
            {"model.score_function": "softmax"},
            "growth: score_function 'softmax' cannot be grown by a ramp from zero keys: exp(0) = 1 would change the "
            "function; use init 'zero-value' with tau 'per-generation', or init 'copy' with tau 'recompute'",
        ),
        (
            {"model.family": "transformer", "controls": []} | TRANSFORMER_STAGES,
            "growth.operator: is missing; a transformer of several stages needs one of net2net, hypercloning, stack, "
            "identity-blocks",
        ),
        ({"learning_rate.final": 0.1}, "learning_rate.final = 0.1: must not be above learning_rate.peak, 0.001"),
        ({"launch.micro_batch_size": 3}, "launch.micro_batch_size = 3: must divide training.batch_size, 8"),
        (
            {"controls.1.kind": "tokenformer-scratch"},
            "controls.1.kind = 'tokenformer-scratch': is there already; write all its budgets in one list",
        ),
        (
            {"controls.0.budgets": [2, 2.0]},
            "controls.0.budgets = [2.0, 2.0]: has a budget twice; each needs its own run",
        ),
    ],
)
def test_a_mistake_is_answered_by_one_line(changes: dict[str, Any], problem: str) -> None:
    data = changed({path: value for path, value in changes.items() if isinstance(path, str)})
    data |= {key: value for key, value in changes.items() if not isinstance(key, str)}
    assert message_of(parse, data) == f"s.yaml: {problem}"


def test_a_transformer_has_no_parameter_tokens_and_no_tokenformer_to_compare_with() -> None:
    one = {"model.family": "transformer", "stages": BASE["stages"][:1], "controls": BASE["controls"][:1]}
    assert message_of(parse, changed(one)) == (
        "s.yaml: 3 problems\n"
        "  stages.0.attention_tokens = 4: a transformer has no parameter tokens; leave it out\n"
        "  stages.0.ffn_tokens = 8: a transformer has no parameter tokens; leave it out\n"
        "  controls.0.kind = 'tokenformer-scratch': the schedule has no tokenformer; use 'transformer-scratch'"
    )


def test_all_mistakes_are_named_at_once_and_unknown_keys_first() -> None:
    data = changed({"seed": "x", "training.batch_sise": 1, "learning_rate.peak": DELETE})
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 3 problems",
        f"  {unknown('training.batch_sise = 1', TRAINING_KEYS, meant='batch_size')}",
        "  seed = 'x': must be a whole number",
        "  learning_rate.peak: is missing",
    ]


def test_the_softmax_and_the_transformer_are_welcome_where_nothing_grows() -> None:
    assert parse(changed({"model.score_function": "softmax", "stages": BASE["stages"][:1]}))
    one = {"name": "base", "train_steps": 3}
    assert parse(changed({"model.family": "transformer", "stages": [one], "controls": BASE["controls"][1:]}))


def test_stages_without_sizes_are_not_also_called_equal() -> None:
    stages = [{"name": name, "train_steps": 3} for name in ("a", "b")]
    lines = message_of(parse, changed({"stages": stages})).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "stages.0.attention_tokens",
        "stages.0.ffn_tokens",
        "stages.1.attention_tokens",
        "stages.1.ffn_tokens",
    ]


def test_long_values_are_shortened() -> None:
    assert message_of(parse, changed({"seed": "x" * 999})) == f"s.yaml: seed = '{'x' * 56}...: must be a whole number"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("foo", "'foo' is no override; write key=value, for example training.batch_size=64"),
        ("a..b=1", "'a..b=1' is no override; write key=value, for example training.batch_size=64"),
        ("=5", "'=5' is no override; write key=value, for example training.batch_size=64"),
        ("--name=x", "'--name=x' is no override; write key=value, for example training.batch_size=64"),
        ("model/family=x", "'model/family=x' is no override; write key=value, for example training.batch_size=64"),
        ("stages.9.name=x", "override 'stages.9.name=x': the list has no such entry; they count from 0"),
        (
            "stages.x.name=x",
            "override 'stages.x.name=x': does not fit; a list stays a list, and its entries are set by number "
            "(stages.0.name=a), not deleted",
        ),
        (
            "~stages.0",
            "override '~stages.0': does not fit; a list stays a list, and its entries are set by number "
            "(stages.0.name=a), not deleted",
        ),
        ("~nothing", "override '~nothing': Could not delete from config. 'nothing' does not exist."),
        ("+seed=1", "override '+seed=1': Could not append to config. An item is already at 'seed'."),
        ("seed=1,2", "override 'seed=1,2': gives several values; write a list as key=[1,2]"),
        ("seed=range(1,3)", "override 'seed=range(1,3)': gives several values; write a list as key=[1,2]"),
        (
            "seed=[1",
            "override 'seed=[1': the value cannot be read; put text with special characters in quotes, inside "
            "those for the shell: 'key=\"...\"'",
        ),
        ("seed=???", "override 'seed=???': seed: must be given"),
        ("seed=${no.such}", "override 'seed=${no.such}': seed: Interpolation key 'no.such' not found"),
        (
            "seed=${oc.env:GROWCTL_NO_SUCH}",
            "override 'seed=${oc.env:GROWCTL_NO_SUCH}': seed: Environment variable 'GROWCTL_NO_SUCH' not found",
        ),
        ("hydra.verbose=true", "override 'hydra.verbose=true': hydra's own settings are no part of a schedule"),
        ("stages=3", "{label}: stages = 3: must be a list"),
        ("seed.x=3", '{label}: seed = {{"x": 3}}: must be a whole number'),
        ("seed=", "{label}: seed = '': must be a whole number"),
        (
            "launch.device=2",
            "{label}: launch.device = 2: no such key; did you mean 'devices'? (allowed here: cluster, nodes, devices, "
            "zero_stage, offload, micro_batch_size, environment, hostfile, slurm, hardware)",
        ),
        (
            "stages.1.train_tokens=4k",
            "{label}: stages.1: has both train_tokens and train_steps; drop one (as an override: "
            "~stages.1.train_tokens)",
        ),
    ],
)
def test_an_unusable_override_is_answered_by_one_line(tmp_path: Path, override: str, problem: str) -> None:
    path = file_of(tmp_path, TEXT)
    expected = problem.format(label=path) if problem.startswith("{label}") else problem
    assert message_of(load_schedule, path, [override]) == expected


def test_of_several_overrides_the_unusable_one_is_named(tmp_path: Path) -> None:
    overrides = ["seed=1", "stages.9.name=x", "training.batch_size=16"]
    problem = "override 'stages.9.name=x': the list has no such entry; they count from 0"
    assert message_of(load_schedule, file_of(tmp_path, TEXT), overrides) == problem


NO_SCHEDULE = f"is no schedule; one has the keys {TOP_KEYS}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", NO_SCHEDULE),
        ("# nothing\n", NO_SCHEDULE),
        ("- 1\n- 2\n", NO_SCHEDULE),
        ("hello\n", NO_SCHEDULE),
        ("5\n", "cannot be read: Invalid loaded object type: int"),
        (bytes(range(256)), "is not text in UTF-8; a schedule is a YAML file"),
        ("h\xe9\n".encode("latin-1"), "is not text in UTF-8; a schedule is a YAML file"),
        ("seed: 0: 1\n", "line 1, column 8: mapping values are not allowed here"),
        ("model:\n\tfamily: x\n", r"line 2, column 1: found character '\t' that cannot start any token"),
        ("seed: 1\nmodel: {}\nseed: 2\n", "line 3, column 1: found duplicate key seed"),
        ("model:\n  family: a\n  family: b\n", "line 3, column 3: found duplicate key family"),
        ("seed: 1\n---\nseed: 2\n", "line 2, column 1: but found another document"),
        (
            "seed: !!python/object/apply:os.getcwd []\n",
            "line 1, column 7: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object/apply:os.getcwd'",
        ),
        ("seed: &a [*a]\n", "cannot be read: is nested too deeply, or contains itself"),
        ("seed: ${no.such}\n", "seed: Interpolation key 'no.such' not found"),
        ("seed: ${seed}\n", "seed: Recursive interpolation detected"),
        (
            "data: {source: '${oc.env:GROWCTL_NO_SUCH}'}\n",
            "data.source: Environment variable 'GROWCTL_NO_SUCH' not found",
        ),
        ("seed: ${\n", "cannot be read: seed: no viable alternative at input '${'"),
        ("seed: ???\n", "seed: must be given"),
        ("seed: 1\nhydra: {verbose: true}\n", "hydra: hydra's own settings are no part of a schedule"),
        ("seed: 1\ndefaults: [nothing, _self_]\n", "In 'growctl-schedule': Could not load 'nothing'."),
    ],
)
def test_an_unusable_file_is_answered_by_one_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    path = file_of(tmp_path, content)
    assert message_of(load_schedule, path) == f"{path}: {problem}"


def test_what_is_no_file_is_answered_with_the_shipped_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comes_with = f"no such file; growctl comes with {', '.join(SHIPPED_NAMES)}"
    (tmp_path / "folder").mkdir()
    for reference in ("folder", ".", "a/b", "../schedules", "/no/such.yaml", "", "a\0b"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}"
    assert message_of(load_schedule, "x" * 5000) == f"'{'x' * 56}...: {comes_with}"
    for reference in ("quikstart", "schedules/quickstar.yaml", "no/such/quickstart"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}; did you mean 'quickstart'?"


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # exists, is no folder, and fails to be read even for root
    if not memory.exists():
        pytest.skip("no /proc here")
    assert message_of(load_schedule, str(memory)) == f"{memory}: cannot be read: Input/output error"


def test_the_command_prints_the_message_and_no_traceback_and_exits_with_2(tmp_path: Path) -> None:
    path = file_of(tmp_path, TEXT.replace("train_steps", "train_step"))
    command = [sys.executable, "-m", "growctl.cli", "plan", path]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    problem = unknown("stages.1.train_step = 20", STAGE_KEYS, meant="train_steps")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"growctl: {path}: {problem}\n")


# Whatever is written: a schedule that plans, or a ScheduleError

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


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*paths_in(BASE), "model.ffn_size", "x"]), ANY_VALUE, min_size=1, max_size=1))
def test_any_value_anywhere_makes_a_schedule_that_plans_or_a_message_of_short_lines(changes: dict[str, Any]) -> None:
    try:
        schedule = parse(changed(changes))
    except ScheduleError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1 or lines[0] == f"s.yaml: {len(lines) - 1} problems"
        assert max(map(len, lines)) < 300
    else:
        plan_json(schedule)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            "{}{}={}".format,
            st.sampled_from(["", "", "+", "++", "~"]),
            st.sampled_from(["seed", "stages", "stages.0", "stages.2.name", "data", "data.source", "x", "controls"]),
            st.one_of(
                st.sampled_from(["", "1,2", "[1]", "{a: 1}", "[", "${x}", "${", "${stages}", "null", "glob(*)", "'"]),
                st.text(max_size=6),
            ),
        )
        | st.text(max_size=8),
        min_size=1,
        max_size=2,
    )
)
def test_any_override_makes_a_schedule_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    path = file_of(tmp_path_factory.getbasetemp(), TEXT)
    with contextlib.suppress(ScheduleError):
        assert load_schedule(path, overrides).stages
