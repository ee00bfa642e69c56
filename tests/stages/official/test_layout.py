"""The settings of official models: what growctl computes, what changes nothing, and what it rejects."""

from typing import Any

import pytest
import yaml

from stages.checkpoint.manifest import CheckpointError
from stages.official.layout import OfficialModel, official_model, official_settings, read_settings
from tests.stages.official_checkpoints import published, write_settings

SCORE_FUNCTIONS = {"tiny": "l2_norm_gelu", "tiny_gelu_l2": "gelu_l2_norm", "tiny_softmax": "softmax"}


def described(folder, **changes: Any) -> OfficialModel:
    path = write_settings(folder, **changes)
    return official_model(read_settings(path), path, vocab_size=264)


@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
def test_the_configuration_matches_the_yaml_of_each_reference_model(shared, name):
    path = shared / "vectors" / "tokenformer" / f"{name}.yml"
    model = official_model(read_settings(path), path, vocab_size=128)
    assert model.config.rotary_fraction == 0.25
    assert model.config.score_function == SCORE_FUNCTIONS[name]
    assert (model.config.hidden_size, model.config.num_heads, model.config.vocab_size) == (64, 4, 128)
    assert (model.context_length, model.ignored) == (32, {})


def test_settings_that_change_the_function_are_honoured(tmp_path):
    assert described(tmp_path).config == published()
    config = described(
        tmp_path,
        layernorm_epsilon=1e-3,
        rotary_emb_base=500,
        rotary_pct=None,
        norm_activation_type="softmax",
        attention_config=[[["tokenformer"], 2]],
    ).config
    assert (config.norm_epsilon, config.rotary_base, config.rotary_fraction) == (1e-3, 500, 1.0)
    assert config.score_function == "softmax"
    assert config.blocks[0].query.tau == 4  # the softmax's published tau is n
    assert described(tmp_path, pos_emb="none").config.rotary_width == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_mup": True}, "use_mup is True; growctl only supports False"),
        ({"pos_emb": "alibi"}, "pos_emb is 'alibi'; growctl only supports 'rotary' or 'none'"),
        ({"pos_emb": None}, "pos_emb is not set, which means 'learned' to GPT-NeoX; growctl only supports 'rotary'"),
        ({"norm": "rmsnorm"}, "norm is 'rmsnorm'; growctl only supports 'layernorm_nonparam'"),
        ({"norm": None}, "norm is not set, which means 'layernorm' to GPT-NeoX"),
        ({"final_norm": None}, "final_norm is not set, which means 'layernorm_nonparam' to GPT-NeoX"),
        ({"no-weight-tying": True}, "no_weight_tying is True; growctl only supports False"),
        ({"model_parallel_size": 2}, "model_parallel_size is 2; growctl only supports 1"),
        ({"transformer_increase_dim": 64}, "transformer_increase_dim is 64; growctl only supports 0"),
        ({"attention_config": [[["flash"], 2]]}, "attention_config has 'flash' layers"),
        ({"attention_config": [[["tokenformer", "global"], 1]]}, "attention_config has 'global' layers"),
        ({"attention_config": [[["tokenformer"], 99]]}, "in attention_config add up to 99; num_layers is 2"),
        ({"attention_config": ["tokenformer"]}, "in attention_config add up to 1; num_layers is 2"),
        (
            {"attention_config": [[["tokenformer"] * 3, "all"]]},
            "in attention_config add up to 3; num_layers is 2",
        ),
        (
            {"attention_config": [["tokenformer", 2]]},
            "attention_config is [['tokenformer', 2]]; for 2 layers it",
        ),
        ({"attention_config": "tokenformer"}, "attention_config is 'tokenformer'; for 2 layers it"),
        ({"num-layers": 2}, "has num-layers and num_layers, which are the same key; keep one of them"),
        ({"attention_config": ["tokenformer", "mamba"]}, "attention_config has 'mamba' layers"),
        ({"sliding_window_width": 8}, "sliding_window_width is 8; growctl only supports attention to all earlier"),
        ({"soft_prompt_tuning": {"enabled": True}}, "soft_prompt_tuning is enabled"),
        ({"num_layers": None}, "lacks num_layers"),
        ({"num_layers": 2.5}, "num_layers is 2.5; it must be a whole number, 1 or more"),
        ({"num_layers": True}, "num_layers is True; it must be a whole number"),
        ({"qkv_slot_num": 0}, "qkv_slot_num is 0; it must be a whole number, 1 or more"),
        ({"seq_length": "long"}, "seq_length is 'long'; it must be a whole number"),
        ({"num_attention_heads": 5}, "does not describe a model: hidden_size 32 must be a multiple of num_heads 5"),
        ({"norm_activation_type": "relu"}, "score_function: Input should be 'l2_norm_gelu', 'gelu_l2_norm' or"),
        ({"rotary_pct": "a quarter"}, "could not convert string to float"),
        ({"layernorm_epsilon": -1}, "norm_epsilon: Input should be greater than 0"),
    ],
)
def test_another_architecture_is_rejected_with_the_setting_and_its_value(tmp_path, changes, message):
    with pytest.raises(CheckpointError) as refused:
        described(tmp_path, **changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window_width": 16},
        {"soft_prompt_tuning": {"enabled": False}},
        {"attention_config": [[["tokenformer"], "all"]]},
        {"attention_config": ["tokenformer", "tokenformer"]},
        {"attention_config": [[["tokenformer"], 1], [["tokenformer"], 1]]},
    ],
)
def test_a_setting_that_excludes_nothing_is_accepted(tmp_path, changes):
    assert described(tmp_path, **changes).config == published()


def test_settings_that_official_tokenformer_layers_do_not_read_are_accepted_and_named(tmp_path):
    asked = {"gpt_j_residual": True, "use_bias_in_attn_linear": True, "mlp_type": "llama", "num_kv_heads": 1}
    model = described(tmp_path, **asked, gpt_j_tied=False, train_iters=143000, data_path="./data/pile")
    assert model.config == published()
    assert model.ignored == asked


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("!!python/object/apply:os.system [touch exploded]", "could not determine a constructor"),
        ("- 1", "has no keys"),
        ("3", "is not a YAML file of settings"),
        ("a: [", "line 1, column 5: expected the node content"),
        ("x: !!bool foo", "is no YAML"),
        ("x: !!int foo", "invalid literal for int"),
        ("x: !!timestamp foo", "is no YAML"),
        ("x: " + "[" * 3000 + "]" * 3000, "is no YAML: RecursionError"),
        ("x: !!binary aGk=", "x is not plain data"),
        ("x: !!timestamp 2020-01-01", "x is not plain data"),
        ('activation: "\\uD800"', "activation is not plain data"),
        ("rotary_pct: ${oc.env:HOME}", None),
    ],
)
def test_settings_are_read_as_plain_data_without_calls_or_lookups(tmp_path, monkeypatch, text, problem):
    monkeypatch.chdir(tmp_path)
    path = write_settings(tmp_path)
    path.write_text(text if problem else path.read_text().replace("rotary_pct: 0.25", text))
    with pytest.raises(CheckpointError, match=problem or "oc.env:HOME") as refused:  # as written
        official_model(read_settings(path), path, vocab_size=264)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "exploded").exists()


def test_settings_that_are_no_file_are_one_clear_error(tmp_path):
    for path, what in ((tmp_path, "is a directory"), (tmp_path / "nowhere.yml", "does not exist")):
        with pytest.raises(CheckpointError, match=what):
            read_settings(path)


@pytest.mark.parametrize(
    ("vocab_size", "tokenizer_vocab_size", "multiple"), [(50304, 50277, 128), (50304, 50000, 50304), (261, 261, 261)]
)
def test_written_settings_describe_the_same_model_and_pad_to_its_rows(
    tmp_path, vocab_size, tokenizer_vocab_size, multiple
):
    config = published(vocab_size).model_copy(update={"norm_epsilon": 1e-6, "rotary_base": 500.5})
    written = official_settings(config, 16, tokenizer_vocab_size)
    assert written["make_vocab_size_divisible_by"] == multiple
    assert -(-tokenizer_vocab_size // multiple) * multiple == vocab_size  # as GPT-NeoX pads
    path = tmp_path / "written.yml"
    path.write_text(yaml.safe_dump(written))
    assert official_model(read_settings(path), path, vocab_size) == OfficialModel(config, 16, {})
