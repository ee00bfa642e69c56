"""Exports in the installed Transformers. `make test-interop` runs the same checks with other versions."""

import importlib
from typing import Any

import pytest
import torch

from model.config_growth import grow_config
from model.initialization import build_model
from model.tokenformer import Tokenformer
from stages.huggingface.decoders import rope_parameters
from stages.huggingface.layouts import tokenformer_settings, tokenformer_tensors
from tests.interop.exports import write_export
from tests.pretrained import text_config
from tests.stages.huggingface.test_export import COPIES, OWN_NORM, half_ramped

pytestmark = [
    pytest.mark.slow,  # importing Transformers, Trainer and PEFT takes most of the time
    pytest.mark.filterwarnings(  # the new names do not exist in Transformers 5.19
        "ignore:`(is_)?gradient_checkpointing(_enable)?` is deprecated:FutureWarning"
    ),
]


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


@pytest.mark.parametrize("name", ["grown", "llama", "gpt_neox"])
def test_an_export_does_in_transformers_what_the_model_does(behaviours, tmp_path, name):
    export = write_export(tmp_path, name)
    for check in (*behaviours.FOR_ALL, *(behaviours.OF_TOKENFORMERS if name == "grown" else ())):
        check(export)


CONFIGS = {
    "new": text_config(),
    "gelu_l2_norm": text_config().model_copy(update={"score_function": "gelu_l2_norm"}),
    "softmax": text_config().model_copy(update={"score_function": "softmax"}),
    "half_ramped": half_ramped(),
    "copies": grow_config(text_config(), attention_tokens=10, ffn_tokens=20, policy=COPIES),
    "own_norm_between_new_layers": grow_config(
        text_config(), attention_tokens=3, ffn_tokens=4, new_layers=2, policy=OWN_NORM
    ),
    "modern": text_config(
        width=32,
        num_heads=4,
        num_kv_heads=2,
        head_width=12,
        rotary_fraction=0.5,
        norm="rmsnorm",
        qk_norm=True,
        tie_embeddings=False,
    ),
    "no_rotation": text_config().model_copy(update={"rotary_fraction": 0.0}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_modeling_code_computes_the_same_logits(behaviours, name):
    from stages.huggingface.code.configuration_tokenformer import TokenformerConfig
    from stages.huggingface.code.modeling_tokenformer import TokenformerForCausalLM

    config = CONFIGS[name]
    ours = build_model(config, seed=1).double()
    assert isinstance(ours, Tokenformer)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(5)  # logits of about 5
    settings = tokenformer_settings(ours) | {"rope_parameters": rope_parameters(config)}
    theirs = TokenformerForCausalLM(TokenformerConfig(**settings)).double()
    missing = theirs.load_state_dict(tokenformer_tensors(ours), strict=False)
    assert missing == (["lm_head.weight"] if config.tie_embeddings else [], [])
    ids = torch.randint(261, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=0, atol=1e-12)
