"""Tokenformer (arXiv 2410.23168) for Transformers 5: a language model whose linear layers are Pattentions.

Shapes: B batch, T sequence, D model width, H heads, E head width, N parameter tokens, R rotated dimensions of a head.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

from .configuration_tokenformer import TokenformerConfig

NORM_FLOOR = 1e-30
"""A row of scores with a norm below this has factors of zero."""

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
    """Attention of data tokens over parameter tokens: theta(X K^T) V.

    The keys and values are the parameters `key_tokens` and `value_tokens`, (N, D) each or, if the generations are kept
    apart, `key_tokens_0`, `key_tokens_1` and so on.
    """

    def __init__(self, config: TokenformerConfig, layout: dict[str, Any]) -> None:
        super().__init__()
        self.score_function = config.score_function
        self.sizes = [group["num_tokens"] for group in layout["groups"]]
        self.taus = [group["tau"] for group in layout["groups"]]
        generations = layout["generations"]
        if generations is None:
            parts = [("", sum(self.sizes), 1.0, 1.0)]
        else:
            parts = [(f"_{g['number']}", g["num_tokens"], g["key_ramp"], g["value_share"]) for g in generations]
        self.keys = [(f"key_tokens{suffix}", ramp) for suffix, _, ramp, _ in parts]
        self.values = [(f"value_tokens{suffix}", share) for suffix, _, _, share in parts]
        for suffix, num_tokens, _, _ in parts:
            for kind in ("key_tokens", "value_tokens"):
                self.register_parameter(kind + suffix, nn.Parameter(torch.empty(num_tokens, config.hidden_size)))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, T, D) in, (B, T, D) out."""
        keys, values = (self._joined(parts).split(self.sizes) for parts in (self.keys, self.values))
        outputs = [
            score_factors(hidden_states @ key.mT, tau, self.score_function) @ value
            for key, value, tau in zip(keys, values, self.taus, strict=True)
        ]
        return sum(outputs[1:], start=outputs[0])

    def _joined(self, parts: list[tuple[str, float]]) -> Tensor:
        scaled = [getattr(self, name) if scale == 1 else getattr(self, name) * scale for name, scale in parts]
        return scaled[0] if len(scaled) == 1 else torch.cat(scaled)


class TokenformerAttention(nn.Module):
    """Causal self-attention with a partial rotary embedding. Its four projections are Pattentions."""

    def __init__(self, config: TokenformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        layout = config.pattentions[layer_idx]
        self.query = TokenformerPattention(config, layout["query"])
        self.key = TokenformerPattention(config, layout["key"])
        self.value = TokenformerPattention(config, layout["value"])
        self.projection = TokenformerPattention(config, layout["projection"])

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Rotation,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (B, T, D), and the attention weights where the implementation returns them."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            pattention(hidden_states).view(shape).transpose(1, 2) for pattention in (self.query, self.key, self.value)
        )
        query, key = rotate(query, position_embeddings), rotate(key, position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.projection(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention operator by operator, (B, T, H, E), with its weights (B, H, T, T)."""
    weights = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def rotation(config: TokenformerConfig, position_ids: Tensor, like: Tensor) -> Rotation:
    """The cosines and sines of the rotary embedding at `position_ids` (B, T), on the device of `like`.

    Each forward pass computes them again: they are small, and a buffer would be cast with the model.
    """
    parameters = config.rope_parameters
    dtype = _at_least_float32(like)
    width = int(config.hidden_size // config.num_attention_heads * parameters["partial_rotary_factor"])
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


class TokenformerBlock(GradientCheckpointingLayer):
    """x += attention(norm(x)); x += ffn(norm(x)). The norms have no parameters."""

    def __init__(self, config: TokenformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_norm_eps = config.layer_norm_eps
        self.attention = TokenformerAttention(config, layer_idx)
        self.ffn = TokenformerPattention(config, config.pattentions[layer_idx]["ffn"])

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The output (B, T, D), and the attention weights where the implementation returns them."""
        attended, weights = self.attention(self._norm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended
        return hidden_states + self.ffn(self._norm(hidden_states)), weights

    def _norm(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.layer_norm(hidden_states, hidden_states.shape[-1:], eps=self.layer_norm_eps)


class TokenformerPreTrainedModel(PreTrainedModel):
    """What Transformers has to know about Tokenformers."""

    config_class = TokenformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TokenformerBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        """Draws parameter tokens as the published code does. They are raw parameters, which Transformers skips."""
        if isinstance(module, TokenformerPattention):
            value_std = 2 / self.config.num_hidden_layers / math.sqrt(self.config.hidden_size)
            for name, parameter in module.named_parameters(recurse=False):
                nn.init.normal_(parameter, std=self.config.initializer_range if name.startswith("key") else value_std)
        else:
            super()._init_weights(module)


class TokenformerModel(TokenformerPreTrainedModel):
    """The embedding, the blocks and the final norm."""

    def __init__(self, config: TokenformerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([TokenformerBlock(config, i) for i in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """The final hidden states (B, T, D). With `use_cache`, they follow on the positions in `past_key_values`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + seen).unsqueeze(0)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        hidden_states = inputs_embeds
        position_embeddings = rotation(self.config, position_ids, like=hidden_states)
        all_hidden_states, all_weights = [hidden_states], []
        for layer in self.layers:
            hidden_states, weights = layer(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=causal_mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
                **kwargs,
            )
            if output_hidden_states:
                all_hidden_states.append(hidden_states)
            if output_attentions:
                all_weights.append(weights)
        hidden_states = self.norm(hidden_states)
        all_hidden_states[-1] = hidden_states
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(all_hidden_states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
        )


class TokenformerForCausalLM(TokenformerPreTrainedModel, GenerationMixin):
    """A Tokenformer with its head, which is the embedding."""

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
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


TokenformerConfig.register_for_auto_class()
TokenformerModel.register_for_auto_class("AutoModel")
TokenformerForCausalLM.register_for_auto_class("AutoModelForCausalLM")

__all__ = ["TokenformerForCausalLM", "TokenformerModel", "TokenformerPreTrainedModel"]
