"""Tokenformer (arXiv 2410.23168) for Transformers 5: a model of text or of images whose linear layers are Pattentions.

Shapes: B batch, T sequence, D model width, H heads, E head width, N parameter tokens, R rotated dimensions of a head.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, ImageClassifierOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_tokenformer import TokenformerConfig

NORM_FLOOR = 1e-30
"""A row of scores with a norm below this has factors of zero."""

CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What Transformers calls the cache: `cache` from 5.24 on."""

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, (B, T, R) each, in at least float32."""


def score_factors(scores: Tensor, tau: float, function: str) -> Tensor:
    """The factor on each parameter token's value, from the scores (B, T, N) of tokens that are normalised together."""
    if function == "softmax":
        return torch.softmax(scores, dim=-1) * tau
    if function == "gelu_l2_norm":
        return _normalised(nn.functional.gelu(scores), tau)
    return nn.functional.gelu(_normalised(scores, tau))


def _normalised(scores: Tensor, tau: float) -> Tensor:
    norm = torch.linalg.vector_norm(scores, dim=-1, keepdim=True, dtype=_at_least_float32(scores))
    # A Python number divided by a tensor would be the number times a reciprocal, which is rounded twice.
    scale = torch.full_like(norm, tau) / norm.masked_fill(norm < NORM_FLOOR, math.inf)
    return scores * scale.to(scores.dtype)


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


class TokenformerPattention(nn.Module):
    """Attention of data tokens over parameter tokens: theta(X K^T) V, with keys (N, I) and values (N, O)."""

    def __init__(
        self,
        config: TokenformerConfig,
        groups: list[dict[str, Any]],
        inputs: int | None = None,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        self.score_function = config.score_function
        self.sizes = [group["num_tokens"] for group in groups]
        self.taus = [group["tau"] for group in groups]
        self.key_tokens = nn.Parameter(torch.empty(sum(self.sizes), inputs or config.hidden_size))
        self.value_tokens = nn.Parameter(torch.empty(sum(self.sizes), outputs or config.hidden_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, T, I) in, (B, T, O) out; both are D by default."""
        parts = zip(self.key_tokens.split(self.sizes), self.value_tokens.split(self.sizes), self.taus, strict=True)
        outputs = [score_factors(hidden_states @ key.mT, tau, self.score_function) @ value for key, value, tau in parts]
        return sum(outputs[1:], start=outputs[0])


class TokenformerAttention(nn.Module):
    """Self-attention with a partial rotary embedding, causal in text. Its four projections are Pattentions."""

    def __init__(self, config: TokenformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = config.is_causal
        layout = config.pattentions[layer_idx]
        width = config.num_attention_heads * config.head_dim
        self.query = TokenformerPattention(config, layout["query"], outputs=width)
        self.key = TokenformerPattention(config, layout["key"], outputs=width // self.num_key_value_groups)
        self.value = TokenformerPattention(config, layout["value"], outputs=width // self.num_key_value_groups)
        self.projection = TokenformerPattention(config, layout["projection"], inputs=width)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Rotation,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (B, T, D), and the attention weights where the implementation returns them."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            pattention(hidden_states).view(shape).transpose(1, 2) for pattention in (self.query, self.key, self.value)
        )
        if self.config.qk_norm:
            query, key = (normalised(self.config, heads, rms=True) for heads in (query, key))
        query, key = rotate(query, position_embeddings), rotate(key, position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.projection(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


def rotation(config: TokenformerConfig, position_ids: Tensor, like: Tensor) -> Rotation:
    """The cosines and sines of the rotary embedding at `position_ids` (B, T), on the device of `like`.

    Each forward pass computes them again: they are small, and a buffer would be cast with the model.
    """
    parameters = config.rope_parameters
    dtype = _at_least_float32(like)
    width = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
    rope_type, attention_scaling = parameters.get("rope_type", "default"), 1.0
    if rope_type == "default" or width == 0:
        exponents = torch.arange(0, width, 2, device=like.device, dtype=dtype) / max(width, 1)
        frequencies = parameters["rope_theta"] ** -exponents
    else:
        length = int(position_ids.max()) + 1 if rope_type in ("dynamic", "longrope") else None
        frequencies, attention_scaling = ROPE_INIT_FUNCTIONS[rope_type](config, device=like.device, seq_len=length)
    angles = position_ids.to(like.device, dtype)[..., None] * frequencies.to(like.device, dtype)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * attention_scaling, angles.sin() * attention_scaling


def rotate(heads: Tensor, position_embeddings: Rotation) -> Tensor:
    """Rotates the first R dimensions of each head in (B, H, T, E), in the convention that rotates halves."""
    cos, sin = (table.unsqueeze(1) for table in position_embeddings)
    width = cos.shape[-1]
    if width == 0:
        return heads
    turned, rest = heads[..., :width], heads[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(heads.dtype), rest), dim=-1)


def normalised(config: TokenformerConfig, x: Tensor, rms: bool = False) -> Tensor:
    """The norm without parameters over the last dimension: an RMSNorm if the model, or `rms`, says so."""
    norm = nn.functional.rms_norm if rms or config.norm == "rmsnorm" else nn.functional.layer_norm
    return norm(x, x.shape[-1:], eps=config.layer_norm_eps)


class TokenformerBlock(GradientCheckpointingLayer):
    """x += attention(norm(x)); x += ffn(norm(x)). The norms have no parameters."""

    def __init__(self, config: TokenformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.attention = TokenformerAttention(config, layer_idx)
        self.ffn = TokenformerPattention(config, config.pattentions[layer_idx]["ffn"])

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """(B, T, D) in, (B, T, D) out."""
        hidden_states = hidden_states + self.attention(normalised(self.config, hidden_states), **kwargs)[0]
        return hidden_states + self.ffn(normalised(self.config, hidden_states))


class TokenformerPreTrainedModel(PreTrainedModel):
    """What Transformers has to know about Tokenformers."""

    config_class = TokenformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TokenformerBlock", "TokenformerPatches"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": TokenformerBlock, "attentions": TokenformerAttention}

    def _init_weights(self, module: nn.Module) -> None:
        """Draws parameter tokens as the published code does. They are raw parameters, which Transformers skips."""
        if isinstance(module, TokenformerPattention):
            value_std = 2 / self.config.num_hidden_layers / math.sqrt(self.config.hidden_size)
            for name, parameter in module.named_parameters(recurse=False):
                nn.init.normal_(parameter, std=self.config.initializer_range if name.startswith("key") else value_std)
        else:
            super()._init_weights(module)


class TokenformerPatches(nn.Linear):
    """The embedding of the patches of images, with learned positions and maybe a class token before them."""

    def __init__(self, config: TokenformerConfig) -> None:
        width, patch, has_token = config.hidden_size, config.image["patch"], config.image["pooling"] == "class_token"
        super().__init__(config.image["channels"] * patch**2, width)
        self.patch = patch
        self.positions = nn.Parameter(torch.zeros((config.image["size"] // patch) ** 2 + has_token, width))
        self.class_token = nn.Parameter(torch.zeros(width)) if has_token else None

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, channels, size, size) in, (B, T, D) out."""
        patches = nn.functional.unfold(pixel_values.to(self.weight.dtype), self.patch, stride=self.patch)
        tokens = super().forward(patches.mT)
        if self.class_token is not None:
            tokens = torch.cat((self.class_token.expand(len(tokens), 1, -1), tokens), dim=1)
        return tokens + self.positions


class TokenformerModel(TokenformerPreTrainedModel):
    """The embedding, the blocks and the final norm."""

    def __init__(self, config: TokenformerConfig) -> None:
        super().__init__(config)
        embedding = TokenformerPatches(config) if config.image else nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_tokens = embedding
        self.layers = nn.ModuleList([TokenformerBlock(config, i) for i in range(config.num_hidden_layers)])
        norm = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
        self.norm = norm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """The final hidden states (B, T, D). With `use_cache`, they follow on the positions in the cache."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + seen).unsqueeze(0)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE: cache},
        )
        hidden_states = inputs_embeds
        position_embeddings = rotation(self.config, position_ids, like=hidden_states)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=causal_mask,
                cache=cache,
                position_ids=position_ids,
                **kwargs,
            )
        returned = {CACHE: cache} if use_cache else {}
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), **returned)


class TokenformerForCausalLM(TokenformerPreTrainedModel, GenerationMixin):
    """A Tokenformer with its head, which is the embedding if they are tied."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: TokenformerConfig) -> None:
        super().__init__(config)
        self.model = TokenformerModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """The logits (B, T, vocab_size) of the last `logits_to_keep` positions (0: all) and, given labels, the loss.

        `labels` are the input ids themselves; the loss shifts them. It ignores labels of -100.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **rest)


class TokenformerForImageClassification(TokenformerPreTrainedModel):
    """A Tokenformer with a head that classifies images."""

    main_input_name = "pixel_values"

    def __init__(self, config: TokenformerConfig) -> None:
        super().__init__(config)
        self.model = TokenformerModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any) -> ImageClassifierOutput:
        """The logits (B, num_labels) of images (B, channels, size, size) and, given labels (B,), the loss."""
        outputs = self.model(inputs_embeds=self.model.embed_tokens(pixel_values), use_cache=False, **kwargs)
        tokens = outputs.last_hidden_state
        logits = self.classifier(tokens.mean(dim=1) if self.config.image["pooling"] == "mean" else tokens[:, 0])
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


TokenformerConfig.register_for_auto_class()
TokenformerModel.register_for_auto_class("AutoModel")
TokenformerForCausalLM.register_for_auto_class("AutoModelForCausalLM")
TokenformerForImageClassification.register_for_auto_class("AutoModelForImageClassification")

__all__ = ["TokenformerForCausalLM", "TokenformerForImageClassification", "TokenformerModel"]
