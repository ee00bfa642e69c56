"""Exports in the installed Transformers. `make test-interop` runs the same checks with other versions."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from model.initialization import build_model
from model.policy import grow_config
from model.tokenformer import Tokenformer
from stages.huggingface.layouts import tokenformer_settings, tokenformer_tensors
from tests.interop.exports import small_models, write_export
from tests.pretrained import text_config
from tests.stages.huggingface.test_export import COPIES, OWN_NORM, half_ramped

pytestmark = [
    pytest.mark.slow,  # importing Transformers, Trainer and PEFT takes most of the time
    pytest.mark.filterwarnings(  # the new names do not exist in Transformers 5.19
        "ignore:`(is_)?gradient_checkpointing(_enable)?` is deprecated:FutureWarning"
    ),
]

CHECKS = {
    "tokenformer": (
        "loads_by_every_auto_class",
        "generates_with_a_cache_what_it_generates_without",
        "runs_the_code_in_its_model_card",
        "never_generates_ids_without_a_token",
        "runs_in_bfloat16",
        "attends_by_every_implementation",
        "checkpoints_gradients",
        "trains_with_trainer",
        "loads_with_a_device_map",
        "scales_its_rotary_embedding",
    ),
    "grown": (
        "gives_the_logits_of_the_checkpoint",
        "keeps_its_tokenizer",
        "generates_in_left_padded_batches_what_it_generates_alone",
        "trains_lora_on_parameter_tokens",
    ),
    "transformer": ("gives_the_logits_of_the_checkpoint", "generates_with_a_cache_what_it_generates_without"),
}
"""The checks of each export: those that depend on how it is stored, or each once."""


@pytest.fixture(scope="module")
def behaviours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The checks. Transformers copies the code of exports into a folder that it chooses when it is imported."""
    environment = {"HF_MODULES_CACHE": str(tmp_path_factory.mktemp("modules")), "HF_HUB_OFFLINE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        found = importlib.import_module("tests.interop.behaviours")
        found.silence()
        yield found


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    for name in small_models():
        write_export(folder, name)
    return folder


@pytest.mark.parametrize(("name", "check"), [(name, check) for name, checks in CHECKS.items() for check in checks])
def test_an_export(behaviours, exports, name, check):
    getattr(behaviours, check)(exports / name)


def test_every_check_is_made(behaviours):
    everything = {check.__name__ for check in (*behaviours.FOR_ALL, *behaviours.OF_TOKENFORMERS)}
    assert {check for checks in CHECKS.values() for check in checks} == everything


CONFIGS = {
    "new": text_config(),
    "gelu_l2_norm": text_config().model_copy(update={"score_function": "gelu_l2_norm"}),
    "softmax": text_config().model_copy(update={"score_function": "softmax"}),
    "half_ramped": half_ramped(),
    "copies": grow_config(text_config(), attention_tokens=10, ffn_tokens=20, policy=COPIES),
    "own_norm": grow_config(text_config(), attention_tokens=3, ffn_tokens=4, policy=OWN_NORM),
    "no_rotation": text_config().model_copy(update={"rotary_fraction": 0.0}),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["32", "64"])
def test_the_modeling_code_computes_the_same_logits(behaviours, name, dtype, tolerance):
    from stages.huggingface.code.configuration_tokenformer import TokenformerConfig
    from stages.huggingface.code.modeling_tokenformer import TokenformerForCausalLM

    ours = build_model(CONFIGS[name], seed=1).to(dtype)
    assert isinstance(ours, Tokenformer)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(5)  # logits of about 5
    config = CONFIGS[name]
    theirs = TokenformerForCausalLM(
        TokenformerConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": config.rotary_base,
                "partial_rotary_factor": config.rotary_fraction,
            },
            **tokenformer_settings(ours),
        )
    ).to(dtype)
    missing = theirs.load_state_dict(tokenformer_tensors(ours), strict=False)
    assert missing == (["lm_head.weight"], [])
    ids = torch.randint(261, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=0, atol=tolerance)
