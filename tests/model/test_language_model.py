"""Both language models as functions: logits, loss, causality, dtypes."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.config_growth import grow_config, ramp_config
from model.initialization import build_model, initial_parameter
from model.language_model import KernelsMissing
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from model.tokenformer import TokenformerBlock
from model.tokenformer_config import Routing
from tests.model.growths import small_config, small_decoder

SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}
CONFIGS: dict[str, ModelConfig] = {
    "tokenformer": small_config(attention_tokens=6, ffn_tokens=10, **SHAPE),
    "transformer": small_decoder(ffn_tokens=128, **SHAPE),
}
IDS = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(3))
TARGETS = IDS.roll(-1, 1)


@pytest.fixture(params=CONFIGS)
def model(request):
    return build_model(CONFIGS[request.param], seed=0).double()


def test_the_loss_is_the_mean_cross_entropy_of_the_logits_that_of_a_uniform_guess_at_first(model):
    logits, loss = model(IDS), model(IDS, TARGETS)
    assert logits.shape == (2, 12, 61)
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten()))
    assert loss.item() == pytest.approx(math.log(61), abs=0.3)
    model.bfloat16()
    assert model(IDS).dtype == torch.bfloat16
    assert model(IDS, TARGETS).dtype == torch.float32
    assert model(IDS, TARGETS).item() == pytest.approx(loss.item(), rel=0.01)


def test_initial_values_depend_only_on_seed_and_name():
    config, name = CONFIGS["tokenformer"], "blocks.1.ffn.key_tokens.0"
    value = initial_parameter(name, config, 5)
    assert torch.equal(value, build_model(config, seed=5).get_parameter(name))
    for other in (initial_parameter(name, config, 6), initial_parameter("blocks.0.ffn.key_tokens.0", config, 5)):
        assert not torch.equal(value, other)


@pytest.mark.trains
def test_a_compiled_model_follows_a_ramp_and_recomputes_blocks_without_compiling_again(monkeypatch):
    from torch._dynamo.utils import counters  # on use: every process of the suite collects this file

    monkeypatch.setattr(TokenformerBlock, "compile", lambda block: nn.Module.compile(block, backend="aot_eager"))
    ramped: Any = grow_config(CONFIGS["tokenformer"], attention_tokens=3, ffn_tokens=5, policy=GrowthPolicy())
    models: list[Any] = [build_model(ramp_config(ramped, 0.1), seed=0) for _ in range(2)]
    eager, compiled = models
    compiled.use_kernels("compiled")
    graphs = []
    for progress, compiled.recompute_every in ((0.1, None), (0.4, None), (0.7, 2)):
        for model in models:
            model.set_scales(ramp_config(ramped, progress))
            model.zero_grad()
            model(IDS, IDS).backward()
        graphs.append(counters["stats"]["unique_graphs"])
        for one, other in zip(eager.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert graphs[0] > 0
    assert len(set(graphs)) == 1
    assert not counters["graph_break"]


@pytest.mark.trains
def test_a_compiled_model_that_is_routed_computes_the_same_and_so_does_a_copy_with_its_own_parameters(monkeypatch):
    monkeypatch.setattr(TokenformerBlock, "compile", lambda block: nn.Module.compile(block, backend="aot_eager"))
    config = small_config(attention_tokens=4, ffn_tokens=8, routing=Routing(groups=4, read=1), **SHAPE)
    eager, compiled = (build_model(config, seed=0) for _ in range(2))
    compiled.use_kernels("compiled")
    copied = deepcopy(compiled)
    copied.load_state_dict(build_model(config, seed=1).state_dict())
    eager(IDS, IDS).backward()
    compiled(IDS, IDS).backward()
    for one, other in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(copied(IDS), build_model(config, seed=1)(IDS))


def test_kernels_that_the_machine_cannot_run_are_rejected(model, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(KernelsMissing, match="needs a GPU of compute capability 8"):
        model.use_kernels("triton")
    assert model.kernels == "eager"
