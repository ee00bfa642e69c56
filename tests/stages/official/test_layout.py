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
        ({"no-weight-tying": True}, "no_weight_tying is True"),
        ({"model_parallel_size": 2}, "model_parallel_size is 2"),
        ({"attention_config": [[["tokenformer", "global"], 1]]}, "attention_config has 'global' layers"),
        ({"sliding_window_width": 15}, "sliding_window_width is 15; growctl only supports attention to all earlier"),
        ({"sliding_window_width": 16, "seq_length": None}, "sliding_window_width is 16"),
        ({"soft_prompt_tuning": {"enabled": True}}, "soft_prompt_tuning is enabled"),
    ],
)
def test_another_architecture_is_rejected_with_the_setting_and_its_value(tmp_path, changes, message):
    with pytest.raises(CheckpointError) as refused:
        read_settings(write_settings(tmp_path, **changes))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("layers", [[[["tokenformer"], "all"]], ["tokenformer", "tokenformer"]])
def test_a_setting_that_excludes_nothing_is_accepted(tmp_path, layers):
    without = {"sliding_window_width": 16, "soft_prompt_tuning": {"enabled": False}, "gpt_j_residual": True}
    assert model_of(tmp_path, attention_config=layers, **without) == published()


def test_settings_are_read_as_plain_data_without_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yml").write_text("!!python/object/apply:os.system [touch exploded]")
    with pytest.raises(CheckpointError, match="could not determine a constructor"):
        read_settings(tmp_path / "model.yml")
    assert not (tmp_path / "exploded").exists()
