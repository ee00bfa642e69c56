"""Which untrained models a checkpoint is compared with."""

import pytest

from growctl.inspect.choices import untrained_models
from growctl.inspect.rows import ranges
from model.config import TransformerConfig, num_parameters
from model.errors import UserError
from tests.stages.checkpoints import small_config

TOKENFORMER = small_config(width=32, num_heads=2)
TRANSFORMER = TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=2, ffn_size=24)
ALL = ["l2_norm_gelu", "gelu_l2_norm", "softmax", "linear"]


def names(configs, against) -> list[str]:
    return [model.scores for model in untrained_models(configs, against)]


def test_by_default_every_score_function_and_a_transformer_of_equal_size():
    found = untrained_models([TOKENFORMER], None)
    assert [model.scores for model in found] == ALL
    assert isinstance(found[-1].config, TransformerConfig)
    assert num_parameters(found[-1].config) == pytest.approx(num_parameters(TOKENFORMER), rel=0.1)


def test_the_checkpoints_own_score_functions_are_always_there_and_first():
    softmax = small_config(score_function="softmax")
    assert names([softmax], "linear") == ["softmax", "linear"]
    assert names([softmax, TOKENFORMER], "gelu_l2_norm, softmax") == ["softmax", "l2_norm_gelu", "gelu_l2_norm"]
    assert names([TOKENFORMER], "none") == []


def test_a_transformer_among_tokenformers_takes_the_size_of_the_first_tokenformer():
    found = untrained_models([TRANSFORMER, TOKENFORMER], "softmax")
    assert [model.scores for model in found] == ["l2_norm_gelu", "softmax"]
    assert found[0].config == TOKENFORMER


def test_transformers_alone_are_compared_with_the_first_of_them_untrained():
    for against in (None, "linear"):
        assert [tuple(model) for model in untrained_models([TRANSFORMER], against)] == [("linear", TRANSFORMER)]
    with pytest.raises(UserError, match=r"--against 'softmax': score functions need a Tokenformer"):
        untrained_models([TRANSFORMER], "softmax")


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("softmx", "--against 'softmx': must be of l2_norm_gelu, .*did you mean 'softmax'"),
        ("softmax,", "--against '': must be of"),
        ("none,linear", "none stands alone"),
    ],
)
def test_unknown_names_are_rejected_with_what_is_allowed(against, message):
    with pytest.raises(UserError, match=message):
        untrained_models([TOKENFORMER], against)


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((4,), "4"), ((1, 2, 3, 7), "1-3, 7"), ((0, 2, 3), "0, 2-3"), ((5, 6), "5-6")]
)
def test_runs_of_dead_tokens_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_models_without_layers_have_no_untrained_one_and_give_no_other_its_size():
    none = small_config(num_layers=0)
    assert names([none], None) == []
    assert untrained_models([none, TOKENFORMER], "softmax")[0].config == TOKENFORMER
