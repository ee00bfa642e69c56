"""The formula of activation memory is near what autograd saves and the measured peak of a pass."""

import pytest
import torch
import torch.nn.functional as F

from model import memory as memory_module
from model.config_growth import grow_config, ramp_config
from model.initialization import build_model
from model.memory import ActivationMemory
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from model.tokenformer_config import PATTENTIONS, BlockConfig, Routing
from tests.memory_tracking import MemoryTracking
from tests.model.growths import small_config, small_decoder
from tests.model.test_pattention import ALL_KINDS

SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}
MANY_WORDS = SHAPE | {"vocab_size": 2001}
BASE = small_config(attention_tokens=40, ffn_tokens=100, **SHAPE)
MIXED = BlockConfig(**dict.fromkeys(PATTENTIONS, ALL_KINDS))
LLAMA = small_decoder(
    num_layers=3, ffn_tokens=100, norm="rmsnorm", activation="swiglu", tie_embeddings=False, num_kv_heads=1, **SHAPE
)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Config = ModelConfig
CONFIGS: dict[str, Config] = {
    "tokenformer": BASE,
    "gelu_l2_norm": BASE.model_copy(update={"score_function": "gelu_l2_norm"}),
    "softmax": BASE.model_copy(update={"score_function": "softmax"}),
    "ramped": ramp_config(grow_config(BASE, attention_tokens=24, ffn_tokens=24), 1.0),
    "routed": grow_config(
        BASE, attention_tokens=80, ffn_tokens=200, policy=GrowthPolicy(routing=Routing(groups=4, read=2))
    ),
    "mixed": BASE.model_copy(update={"blocks": (MIXED, MIXED)}),
    "deeper": grow_config(BASE, attention_tokens=8, ffn_tokens=0, new_layers=1, layer_tokens=(30, 150)),
    "no-layers": small_config(num_layers=0, **SHAPE),
    "decoder": small_decoder(num_layers=3, ffn_tokens=100, **SHAPE),
    "llama": LLAMA,
    "grown-llama": grow_config(LLAMA, ffn_tokens=30, heads=2),
    "qwen": LLAMA.model_copy(update={"qk_norm": True, "qkv_bias": True, "tie_embeddings": True}),
    "relu2": small_decoder(num_layers=3, ffn_tokens=100, activation="relu2", **SHAPE),
    "tokenformer-documents": BASE.model_copy(update={"document_end_id": 0}),
    "windows": BASE.model_copy(update={"attention_window": 8}),
    "windows-documents": BASE.model_copy(
        update={"attention_window": 8, "full_attention_every": 2, "document_end_id": 0}
    ),
    "decoder-documents": small_decoder(num_layers=3, ffn_tokens=100, document_end_id=0, **SHAPE),
}
PEAKS: dict[str, Config] = {
    "wide-ffn": small_config(attention_tokens=40, ffn_tokens=2000, **SHAPE),
    "many-words": small_config(attention_tokens=40, ffn_tokens=100, **MANY_WORDS),
    "routed": CONFIGS["routed"],
    "wide-attention": small_config(num_layers=1, attention_tokens=500, ffn_tokens=400, **SHAPE),
    "decoder": small_decoder(ffn_tokens=1000, **SHAPE),
    "decoder-many-words": small_decoder(num_layers=1, ffn_tokens=100, **MANY_WORDS),
}
in_both_precisions = pytest.mark.parametrize("precision", ["bf16", "fp32"])


def batch_of(config: Config, batch: int, length: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their targets, or images and the probabilities of their classes."""
    if config.image is None:
        ids, targets = (torch.randint(0, config.vocab_size, (batch, length), device=device) for _ in range(2))
        return ids, targets
    size = config.image.size
    return torch.randn(batch, config.image.channels, size, size), torch.randn(batch, config.vocab_size).softmax(-1)


def saved_bytes(
    config: Config, batch: int, length: int, dtype: torch.dtype, device: str = "cpu", every: int | None = None
) -> int:
    """Bytes that autograd saves in a forward pass, each storage counted once, without parameters and single numbers.

    Inputs and targets count even if they are alive but not saved.
    """
    model = build_model(config, seed=0, device=device).to(dtype)
    model.recompute_every = every
    inputs, targets = batch_of(config, batch, length, device)
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in (inputs, targets)}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters and tensor.dim() > 0:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs, targets)
    return sum(storage.nbytes() for storage in storages.values())


@in_both_precisions
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("batch", "length"), [(1, 16), (3, 40)])
def test_activations_are_within_6_percent_of_what_autograd_saves(name, precision, batch, length):
    reckoned = ActivationMemory(CONFIGS[name], precision, "cpu").of(batch, length).activations
    assert reckoned == pytest.approx(saved_bytes(CONFIGS[name], batch, length, DTYPES[precision]), rel=0.06)


@pytest.mark.parametrize("name", ["ramped", "routed", "llama", "grown-llama"])
def test_with_activation_checkpointing_only_the_inputs_of_segments_are_saved(name):
    reckoned = ActivationMemory(CONFIGS[name], "fp32", "cpu", recompute_every=1).of(3, 40).activations
    saved = saved_bytes(CONFIGS[name], 3, 40, torch.float32, every=1)
    assert reckoned == pytest.approx(saved, rel=0.06)


@pytest.mark.parametrize("name", ["tokenformer", "ramped", "decoder"])
def test_activations_on_cuda_are_within_6_percent_of_what_autograd_saves_there(name, monkeypatch):
    """On the meta device, operators report the shapes of what they allocate on an accelerator, without any data."""

    def flash(query, key, value, mask, is_causal):
        assert mask is None
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", flash)
    config = CONFIGS[name]
    random_states = 16 * config.num_layers  # flash attention would need them for dropout
    saved = saved_bytes(config, 2, 128, torch.bfloat16, "meta") - random_states
    assert ActivationMemory(config, "bf16").of(2, 128).activations == pytest.approx(saved, rel=0.06)


def peaks(config: Config, precision: str, length: int = 64) -> tuple[int, int]:
    """The measured peaks of a forward and backward pass over two sequences, and of a forward pass alone, in bytes.

    Parameters, existing gradients and their transposes do not count.
    """
    model = build_model(config, seed=0).to(DTYPES[precision])
    inputs, targets = batch_of(config, 2, length)
    known = [inputs, targets, *model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        known.append(parameter.grad)
    with MemoryTracking(known) as training:
        held = training.live - inputs.nbytes - targets.nbytes
        model(inputs, targets).backward()
    with MemoryTracking(known) as forward, torch.no_grad():
        model(inputs, targets)
    return training.peak - held, forward.peak - held


@in_both_precisions
@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("tokens_at_once", [1000, 40], ids=["", "in-slices"])
def test_the_peaks_of_a_pass_are_within_15_percent_of_the_measured_ones(name, precision, tokens_at_once, monkeypatch):
    config = PEAKS[name]
    monkeypatch.setattr(memory_module, "LOGITS_AT_ONCE", tokens_at_once * config.vocab_size)
    training, forward = peaks(config, precision)
    memory = ActivationMemory(config, precision, "cpu").of(2, 64)
    assert memory.activations + max(memory.at_loss, memory.in_blocks) == pytest.approx(training, rel=0.15)
    if precision == "fp32":
        assert ActivationMemory(config, precision, "cpu").evaluation(2, 64) == pytest.approx(forward, rel=0.15)


@pytest.mark.parametrize("name", ["tokenformer-documents", "decoder-documents", "windows", "windows-documents"])
def test_an_evaluation_within_documents_or_windows_needs_memory_for_their_mask(name):
    _, measured = peaks(CONFIGS[name], "fp32", length=512)
    assert ActivationMemory(CONFIGS[name], "fp32", "cpu").evaluation(2, 512) == pytest.approx(measured, rel=0.15)
