"""The settings of official models: what growctl computes, what changes nothing, and what it rejects."""

from typing import Any

import pytest

from model.config import TokenformerConfig
from stages.checkpoint.manifest import CheckpointError
from stages.official.layout import read_settings
from tests.stages.official_checkpoints import published, write_settings


def model_of(folder, **changes: Any) -> TokenformerConfig:
    return read_settings(write_settings(folder, **changes)).model(264)


def test_settings_that_change_the_function_are_honoured(tmp_path):
    assert model_of(tmp_path) == published()
    other = {"layernorm_epsilon": 1e-3, "rotary_emb_base": 500, "rotary_pct": None, "norm_activation_type": "softmax"}
    config = model_of(tmp_path, **other)
    assert (config.norm_epsilon, config.rotary_base, config.rotary_fraction) == (1e-3, 500, 1.0)
    assert config.score_function == "softmax"
    assert config.blocks[0].query.tau == 4  # the softmax's published tau is n
    assert model_of(tmp_path, pos_emb="none").rotary_width == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_mup": True}, "use_mup is True: Input should be False"),
        ({"pos_emb": "alibi"}, "pos_emb is 'alibi': Input should be 'rotary' or 'none'"),
        ({"norm": None}, "norm: Field required"),
        ({"final_norm": None}, "final_norm: Field required"),
        ({"no-weight-tying": True}, "no_weight_tying is True"),
        ({"model_parallel_size": 2}, "model_parallel_size is 2"),
        ({"attention_config": [[["tokenformer", "global"], 1]]}, "attention_config has 'global' layers"),
        ({"sliding_window_width": 15}, "sliding_window_width is 15; growctl only supports attention to all earlier"),
        ({"sliding_window_width": 16, "seq_length": None}, "sliding_window_width is 16"),
        ({"soft_prompt_tuning": {"enabled": True}}, "soft_prompt_tuning is enabled"),
        ({"num_layers": True}, "num_layers is True: Input should be a valid integer"),
        ({"qkv_slot_num": 0}, "qkv_slot_num is 0"),
        ({"norm_activation_type": "relu"}, "norm_activation_type is 'relu': Input should be 'l2_norm_gelu', 'gelu"),
    ],
)
def test_another_architecture_is_rejected_with_the_setting_and_its_value(tmp_path, changes, message):
    with pytest.raises(CheckpointError) as refused:
        read_settings(write_settings(tmp_path, **changes))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window_width": 16},
        {"soft_prompt_tuning": {"enabled": False}},
        {"attention_config": [[["tokenformer"], "all"]]},
        {"attention_config": ["tokenformer", "tokenformer"]},
        {"gpt_j_residual": True, "mlp_type": "llama", "num_kv_heads": 1, "train_iters": 143000},  # not read
    ],
)
def test_a_setting_that_excludes_nothing_is_accepted(tmp_path, changes):
    assert model_of(tmp_path, **changes) == published()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("!!python/object/apply:os.system [touch exploded]", "could not determine a constructor"),
        ("- 1", "has no keys"),
        ("a: [", "line 1, column 5: expected the node content"),
        ("x: " + "[" * 1000 + "]" * 1000, "is no YAML: RecursionError"),
        ("rotary_pct: ${oc.env:HOME}", None),
        ("no file", "No such file"),
    ],
)
def test_settings_are_read_as_plain_data_without_calls_or_lookups(tmp_path, monkeypatch, text, problem):
    monkeypatch.chdir(tmp_path)
    path = write_settings(tmp_path)
    path.write_text(text if problem else path.read_text().replace("rotary_pct: 0.25", text))
    if text == "no file":
        path.unlink()
    with pytest.raises(CheckpointError, match=problem or "oc.env:HOME") as refused:  # as written
        read_settings(path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "exploded").exists()
