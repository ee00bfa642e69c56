"""The formula of activation memory is near what autograd saves and the measured peak of a pass."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from model import memory as memory_module
from model.config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    PattentionConfig,
    TokenformerConfig,
    TransformerConfig,
    tokenformer_config,
)
from model.initialization import build_model
from model.memory import ActivationMemory
from model.policy import GrowthPolicy, Init, TauPolicy, grow_config, ramp_config
from model.precision import BYTES, Precision
from tests.memory_tracking import MemoryTracking

SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}
BASE = tokenformer_config(num_layers=2, attention_tokens=40, ffn_tokens=100, **SHAPE)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def grown(init: Init, tau: TauPolicy, *added: tuple[int, int]) -> TokenformerConfig:
    """The base model, grown with this policy once for each pair of attention and FFN tokens."""
    config = BASE
    for attention_tokens, ffn_tokens in added:
        policy = GrowthPolicy(init=init, tau=tau, allow_jump=True)
        config = grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, policy=policy)
    return config


def mixed() -> TokenformerConfig:
    """A model with a separately scaled and normalised generation, followed by one of copies."""
    generations = (
        Generation(num_tokens=20),
        Generation(num_tokens=24, number=1, key_ramp=0.5, tau=3.0),
        Generation(num_tokens=44, number=2, copies=1),
    )
    pattention = PattentionConfig(generations=generations, tau=8.0)
    block = BlockConfig(**dict.fromkeys(PATTENTIONS, pattention))
    return TokenformerConfig(blocks=(block, block), **SHAPE)


CONFIGS: dict[str, TokenformerConfig | TransformerConfig] = {
    "tokenformer": BASE,
    "gelu_l2_norm": BASE.model_copy(update={"score_function": "gelu_l2_norm"}),
    "softmax": BASE.model_copy(update={"score_function": "softmax"}),
    "ramped": ramp_config(grown("matched", "ramp", (8, 24), (16, 0)), 1.0),
    "ramping": ramp_config(grown("matched", "ramp", (8, 24)), 0.5),
    "per-generation": grown("zero-value", "per-generation", (8, 24), (3, 5)),
    "all-at-once": mixed(),
    "copied": grown("copy", "recompute", (80, 200), (240, 600)),
    "deeper": grow_config(BASE, attention_tokens=8, ffn_tokens=0, new_layers=1, layer_tokens=(30, 150)),
    "no-layers": tokenformer_config(num_layers=0, attention_tokens=1, ffn_tokens=1, **SHAPE),
    "transformer": TransformerConfig(num_layers=3, ffn_size=100, **SHAPE),
    "tokenformer-documents": BASE.model_copy(update={"document_end_id": 0}),
    "transformer-documents": TransformerConfig(num_layers=3, ffn_size=100, document_end_id=0, **SHAPE),
}


def saved_bytes(
    config: TokenformerConfig | TransformerConfig, batch: int, length: int, dtype: torch.dtype, device: str = "cpu"
) -> int:
    """Bytes that autograd saves in a forward pass, each storage counted once, without parameters and single numbers."""
    model = build_model(config, seed=0, device=device).to(dtype)
    ids, targets = (torch.randint(0, config.vocab_size, (batch, length), device=device) for _ in range(2))
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    storages = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters and tensor.dim() > 0:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, targets)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("batch", "length"), [(1, 16), (3, 40)])
def test_activations_are_within_6_percent_of_what_autograd_saves(
    name: str, precision: Precision, batch: int, length: int
) -> None:
    config = CONFIGS[name]
    reckoned = ActivationMemory(config, precision, "cpu").of(batch, length).activations
    targets = 8 * batch * length  # alive, but not saved
    assert reckoned == pytest.approx(saved_bytes(config, batch, length, DTYPES[precision]) + targets, rel=0.06)


def peaks(
    config: TokenformerConfig | TransformerConfig, precision: Precision, batch: int = 2, length: int = 64
) -> tuple[int, int]:
    """The measured peaks of a forward and backward pass, and of a forward pass alone, in bytes.

    Parameters, existing gradients and their transposes do not count.
    """
    model = build_model(config, seed=0).to(DTYPES[precision])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(0, config.vocab_size, (batch, length))
    known = [*model.parameters(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    with MemoryTracking([*known, ids]) as training:
        held = training.live - 2 * ids.nbytes  # the formula counts both inputs, here they are one
        model(ids, ids).backward()
    with MemoryTracking([*known, ids]) as forward, torch.no_grad():
        model(ids, ids)
    return training.peak - held, forward.peak - held


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "config",
    [
        tokenformer_config(num_layers=2, attention_tokens=40, ffn_tokens=2000, **SHAPE),
        tokenformer_config(num_layers=2, attention_tokens=40, ffn_tokens=100, **SHAPE | {"vocab_size": 2001}),
        tokenformer_config(num_layers=1, attention_tokens=500, ffn_tokens=400, **SHAPE),
        TransformerConfig(num_layers=2, ffn_size=1000, **SHAPE),
        TransformerConfig(num_layers=1, ffn_size=100, **SHAPE | {"vocab_size": 2001}),
    ],
    ids=["wide-ffn", "many-words", "wide-attention", "transformer", "transformer-many-words"],
)
@pytest.mark.parametrize("tokens_at_once", [1000, 40], ids=["", "in-slices"])
def test_the_peaks_of_a_pass_are_within_15_percent_of_the_measured_ones(
    config: TokenformerConfig | TransformerConfig, precision: Precision, tokens_at_once: int, monkeypatch
) -> None:
    monkeypatch.setattr(memory_module, "LOGITS_AT_ONCE", tokens_at_once * config.vocab_size)
    training, forward = peaks(config, precision)
    memory = ActivationMemory(config, precision, "cpu").of(2, 64)
    assert memory.activations + max(memory.at_loss, memory.in_blocks) == pytest.approx(training, rel=0.15)
    if precision == "fp32":
        assert ActivationMemory(config, precision, "cpu").evaluation(2, 64) == pytest.approx(forward, rel=0.15)


@pytest.mark.parametrize("name", ["tokenformer-documents", "transformer-documents"])
def test_an_evaluation_within_documents_needs_memory_for_their_mask(name: str) -> None:
    _, measured = peaks(CONFIGS[name], "fp32", batch=2, length=512)
    assert ActivationMemory(CONFIGS[name], "fp32", "cpu").evaluation(2, 512) == pytest.approx(measured, rel=0.15)


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(sorted(BYTES)), st.sampled_from(["cuda", "cpu"]))
def test_memory_grows_with_the_number_of_sequences_on_either_device(batch, more, precision, device) -> None:
    passes = ActivationMemory(CONFIGS["ramped"], precision, device)
    small, large = passes.of(batch, 32), passes.of(batch + more, 32)
    constant = 2 * small.activations - passes.of(2 * batch, 32).activations  # the gradient of the head
    assert 0 < constant < small.activations
    assert large.activations - constant == pytest.approx((small.activations - constant) * (batch + more) / batch)
    assert all(b > a or b == a < 0 for a, b in zip(small[:2], large[:2], strict=True))


@pytest.mark.parametrize("name", ["tokenformer", "ramped", "transformer"])
def test_activations_on_cuda_are_within_6_percent_of_what_autograd_saves_there(name: str, monkeypatch) -> None:
    """On the meta device, operators report the shapes of what they allocate on an accelerator, without any data."""

    def flash(query, key, value, mask, is_causal):
        assert mask is None
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", flash)
    config = CONFIGS[name]
    reckoned = ActivationMemory(config, "bf16").of(2, 128).activations
    random_states = 16 * config.num_layers  # flash attention would need them for dropout
    saved = saved_bytes(config, 2, 128, torch.bfloat16, "meta") + 8 * 2 * 128 - random_states
    assert reckoned == pytest.approx(saved, rel=0.06)
