"""Models of images: what they compute, how they grow, what they cost, and what they refuse.

The references are written from the papers (TokenFormer, arXiv 2410.23168; ViT, arXiv 2010.11929), or are Transformers'.
All parameters are random in float64.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config import ImageInput, RotaryScaling
from model.config_growth import grow_config, ramp_config
from model.decoder_config import DecoderConfig
from model.errors import UserError
from model.flops import forward_flops_per_token, recomputed_flops_per_token, training_flops_per_token
from model.growth import grow_model
from model.images import class_scores
from model.initialization import build_model
from model.memory import ActivationMemory
from model.parameter_groups import parameter_groups
from model.policy import GrowthPolicy
from model.shapes import ModelConfig, num_parameters, parameter_shapes
from model.tokenformer_config import TokenformerConfig
from tests.model.growths import small_config, small_decoder
from tests.model.test_decoder import random_model, wide
from tests.model.test_memory import DTYPES, peaks, saved_bytes

SHAPE = {"vocab_size": 5, "hidden_size": 16, "num_heads": 2}


def image_input(**changes) -> ImageInput:
    return ImageInput(**({"size": 12, "patch": 4} | changes))


def tokenformer(**changes) -> TokenformerConfig:
    return small_config(**SHAPE, attention_tokens=6, ffn_tokens=10, image=image_input(**changes))


def vit(**changes) -> ModelConfig:
    return small_decoder(**SHAPE, ffn_tokens=24, norm_epsilon=1e-12, image=image_input(**changes))


CONFIGS = {
    f"{build.__name__}-{pooling}": build(pooling=pooling)
    for build in (tokenformer, vit)
    for pooling in ("class_token", "mean")
}
PIXELS = torch.randn(3, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([4, 0, 2])


VIT_NAMES = {
    "blocks": "vit.layers",
    "attention_norm": "layernorm_before",
    "ffn_norm": "layernorm_after",
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "projection": "attention.o_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "final_norm": "vit.layernorm",
    "head": "classifier",
    "embedding.positions": "vit.embeddings.position_embeddings",
    "embedding.class_token": "vit.embeddings.cls_token",
    "embedding": "vit.embeddings.patch_embeddings.projection",
}
"""Those of `ViTForImageClassification`."""


@pytest.fixture(params=CONFIGS)
def model(request):
    return random_model(CONFIGS[request.param])


class ReferencePattention(nn.Module):
    """Equations 3 to 5 of the paper: gelu of L2-normalised scores, times sqrt(n)."""

    def __init__(self, num_tokens: int, width: int) -> None:
        super().__init__()
        self.key_tokens, self.value_tokens = (nn.Parameter(torch.empty(num_tokens, width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        score = x @ self.key_tokens.T
        score = score / score.square().sum(-1, keepdim=True).sqrt() * len(self.key_tokens) ** 0.5
        return F.gelu(score) @ self.value_tokens


class ReferenceBlock(nn.Module):
    """Equations 6 to 9, with two heads that see the whole image, and norms without parameters."""

    def __init__(self, attention_tokens: int, ffn_tokens: int, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.projection = (
            ReferencePattention(attention_tokens, width) for _ in range(4)
        )
        self.ffn = ReferencePattention(ffn_tokens, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        h, heads = self.norm(x), []
        for q, k, v in zip(*(part(h).chunk(2, -1) for part in (self.query, self.key, self.value)), strict=True):
            heads.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        x = x + self.projection(torch.cat(heads, -1))
        return x + self.ffn(self.norm(x))


class ReferenceTokenformer(nn.Module):
    """The blocks between a ViT's patch embedding, equation 1 there, and a linear head."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.embedding = nn.Conv2d(3, 16, kernel_size=4, stride=4)
        self.positions = nn.Parameter(torch.empty(9 + (pooling == "class_token"), 16))
        self.class_token = nn.Parameter(torch.zeros(16))
        self.blocks = nn.ModuleList(ReferenceBlock(6, 10, 16) for _ in range(2))
        self.final_norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embedding(pixels).flatten(2).transpose(1, 2)
        if self.pooling == "class_token":
            x = torch.cat((self.class_token.repeat(len(x), 1, 1), x), 1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        return self.head(x[:, 0] if self.pooling == "class_token" else x.mean(1))


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_a_tokenformer_of_images_computes_what_the_papers_equations_say(pooling):
    model, reference = random_model(tokenformer(pooling=pooling)), ReferenceTokenformer(pooling).double()
    names = {f"embedding.{own}": own for own in ("positions", "class_token")}
    state = {names.get(name, name.removesuffix(".0")): value for name, value in model.state_dict().items()}
    state["embedding.weight"] = state["embedding.weight"].view(16, 3, 4, 4)
    loaded = reference.load_state_dict(state, strict=False)
    assert (loaded.unexpected_keys, set(loaded.missing_keys) - {"class_token"}) == ([], set())
    assert model(PIXELS).std() > 0.1
    torch.testing.assert_close(model(PIXELS), reference(PIXELS), rtol=0, atol=1e-10)


def test_a_vit_is_a_decoder_of_images_as_transformers_computes_it():
    from transformers import ViTConfig, ViTForImageClassification  # on use: every process of the suite collects this

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    reference = ViTForImageClassification(ViTConfig(**sizes, image_size=12, patch_size=4, num_labels=5)).double()
    model = random_model(vit())

    def renamed(name: str) -> str:
        for own, theirs in VIT_NAMES.items():
            name = re.sub(rf"(?<!\w){own}(?!\w)", theirs, name, count=1)
        return name

    shapes = {name: value.shape for name, value in reference.state_dict().items()}
    state = {}
    for name, value in model.state_dict().items():
        writes = name.endswith(("projection.weight.0", "down.weight.0"))
        state[renamed(name.removesuffix(".0"))] = value.mT if writes else value
    reference.load_state_dict({name: value.reshape(shapes[name]) for name, value in state.items()})
    assert model(PIXELS).std() > 0.1
    torch.testing.assert_close(model(PIXELS), reference(PIXELS).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "width", "attention_tokens", "ffn_tokens", "millions"),
    [(12, 768, 576, 2304, 86), (12, 768, 728, 2912, 109), (24, 1024, 776, 3104, 307), (24, 1024, 1030, 4120, 407)],
)
def test_the_papers_image_models_have_the_published_sizes(layers, width, attention_tokens, ffn_tokens, millions):
    """Table 3 of arXiv 2410.23168: TokenFormer-B/16 and L/16, at 224 x 224 with 1,000 classes. The token numbers of the
    latter three are not published anywhere we can reach; these give the printed millions."""
    sizes = {"num_layers": layers, "hidden_size": width, "num_heads": width // 64, "vocab_size": 1000}
    tokens = {"attention_tokens": attention_tokens, "ffn_tokens": ffn_tokens}
    config = small_config(**sizes, **tokens, image=ImageInput(size=224, patch=16))
    assert round(num_parameters(config) / 1e6) == millions


def test_a_configuration_of_images_has_the_built_models_parameters_and_survives_json(model):
    config = model.config
    assert list(parameter_shapes(config).items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert TypeAdapter(ModelConfig).validate_json(config.model_dump_json()) == config
    assert "image" not in small_config().model_dump()
    decaying = {id(p) for group in parameter_groups(model, 0.1) for p in group["params"] if group["weight_decay"]}
    decays = {name for name, p in model.named_parameters() if id(p) in decaying and not name.startswith("blocks")}
    assert decays == {"embedding.weight", "head.weight"}
    drawn = dict(build_model(config, seed=0).named_parameters())
    for name in {"embedding.positions", "embedding.class_token", "head.weight"} & drawn.keys():
        assert drawn[name].std().item() == pytest.approx(0.02, rel=0.5)


def test_growth_in_tokens_heads_layers_and_width_preserves_the_logits_and_trains_what_it_adds(model):
    before = model(PIXELS)
    is_decoder = isinstance(model.config, DecoderConfig)
    tokens = {"ffn_tokens": 5, "heads": 2} if is_decoder else {"attention_tokens": 4, "ffn_tokens": 5}
    for growth in (tokens, {"new_layers": 2, "policy": GrowthPolicy(depth="interleave")}, tokens | {"new_layers": 1}):
        model = grow_model(model, seed=1, **growth)
        torch.testing.assert_close(model(PIXELS), before, rtol=0, atol=1e-12)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == parameter_shapes(model.config)
    if is_decoder:
        torch.testing.assert_close(wide(model, 2)(PIXELS), before, rtol=0, atol=1e-12)
    else:
        model.set_scales(ramp_config(model.config, 0.5))
        assert not torch.allclose(model(PIXELS), before, atol=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(PIXELS, CLASSES).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any() or ".key.bias." in name, name  # the softmax does not see a key's bias


def test_targets_are_classes_or_probabilities_in_any_precision(model):
    loss, logits = model(PIXELS, CLASSES), model(PIXELS)
    certain = F.one_hot(CLASSES, 5).float()
    torch.testing.assert_close(loss, -logits.log_softmax(-1)[range(3), CLASSES].mean())
    torch.testing.assert_close(model(PIXELS, certain), loss)
    mixed = 0.3 * certain + 0.7 * certain.roll(1, 0)
    torch.testing.assert_close(model(PIXELS, mixed), 0.3 * loss + 0.7 * model(PIXELS, CLASSES.roll(1)))
    smooth = F.cross_entropy(logits, CLASSES, label_smoothing=0.1)
    torch.testing.assert_close(model(PIXELS, 0.9 * certain.double() + 0.1 / 5), smooth)
    model.bfloat16()
    assert model(PIXELS.float()).dtype == torch.bfloat16
    for targets in (CLASSES, certain):
        rounded = model(PIXELS.float(), targets)
        assert rounded.dtype == torch.float32
        assert rounded.item() == pytest.approx(loss.item(), rel=0.05)


@pytest.mark.parametrize("recompute_every", [None, 1])
def test_flops_are_those_that_torch_counts(model, recompute_every):
    config, data_tokens = model.config, len(PIXELS) * model.config.image.sequence_length
    model.recompute_every = recompute_every
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward, torch.no_grad():
        model(PIXELS)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as training:
        model(PIXELS, CLASSES).backward()
    attended = config.image.sequence_length
    again = recomputed_flops_per_token(config, attended) if recompute_every else 0
    for expected, counter in (
        (forward_flops_per_token(config, attended).total, forward),
        (training_flops_per_token(config, attended).total + again, training),
    ):
        assert round(expected * data_tokens) == counter.get_total_flops()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("pooling", ["class_token", "mean"])
@pytest.mark.parametrize("patch", [4, 8])
@pytest.mark.parametrize(("build", "added"), [(tokenformer, {"attention_tokens": 40}), (vit, {"ffn_tokens": 50})])
def test_activation_memory_is_within_15_percent_of_the_measured_one(build, added, patch, pooling, precision):
    config = grow_config(build(size=32, patch=patch, pooling=pooling), **added)
    length = config.image.sequence_length
    memory = ActivationMemory(config, precision, "cpu").of(2, length)
    assert memory.activations == pytest.approx(saved_bytes(config, 2, length, DTYPES[precision]), rel=0.06)
    training, forward = peaks(config, precision, length)
    assert memory.activations + max(memory.at_loss, memory.in_blocks) == pytest.approx(training, rel=0.15)
    if precision == "fp32":
        assert ActivationMemory(config, precision, "cpu").evaluation(2, length) == pytest.approx(forward, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_embeddings": True}, "tie_embeddings is True; a model of images needs False"),
        ({"rotary_fraction": 0.25}, "rotary_fraction is 0.25; a model of images needs 0.0"),
        (
            {"rotary_scaling": RotaryScaling(kind="linear", factor=2.0, trained_length=8)},
            "rotary_scaling is .*; a model of images needs None",
        ),
        ({"document_end_id": 0}, "document_end_id is 0; a model of images needs None"),
        ({"attention_window": 4}, "attention_window is 4; a model of images needs None"),
    ],
)
def test_what_only_text_has_is_rejected_for_images(changes, message):
    with pytest.raises(ValidationError, match=message):
        small_config(**SHAPE, image=image_input(), **changes)


def test_of_equal_logits_the_first_class_ranks_first_and_logits_that_are_not_finite_rank_no_class():
    logits_BK = torch.tensor([[0.0, 0, 0], [0, 1, 1], [2, 1, 0], [float("nan")] * 3])
    assert class_scores(logits_BK, torch.tensor([1, 1, 2, 0]))[1].tolist() == [1, 0, 2, 3]


def test_images_and_uses_that_do_not_fit_the_model_are_rejected(model):
    with pytest.raises(ValidationError, match="size 12 must be a multiple of patch 5"):
        image_input(patch=5)
    for use, message in (
        (lambda: model(PIXELS[:, :1]), r"shape \(1, 12, 12\); the model reads images of \(3, 12, 12\)"),
        (lambda: model(PIXELS[..., :8]), r"shape \(3, 12, 8\)"),
        (lambda: model(PIXELS, logits_to_keep=1), "no cache or logits_to_keep"),
        (lambda: model.new_cache(1, 10), "no KV cache and generates no text"),
    ):
        with pytest.raises(UserError, match=message):
            use()
