"""The configuration of an exported Tokenformer (arXiv 2410.23168), for Transformers 5."""

from typing import Any

from transformers import PreTrainedConfig


class TokenformerConfig(PreTrainedConfig):
    """The configuration of a Tokenformer: a model of text or of images whose linear layers are Pattentions.

    A Pattention is attention of data tokens over parameter tokens, which are learnable keys and values. Growing the
    model adds parameter tokens and changes no width.
    """

    model_type = "tokenformer"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 50304
    """Rows of the embedding. It may have more rows than the tokenizer has tokens."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: Any = None
    """None: as many as attention heads."""

    head_dim: Any = None
    """None: hidden_size / num_attention_heads."""

    score_function: str = "l2_norm_gelu"
    """How a Pattention turns scores into factors: `l2_norm_gelu`, `gelu_l2_norm` or `softmax`."""

    pattentions: Any = None
    """A list: for each layer, the groups of parameter tokens of its Pattentions `query`, `key`, `value`, `projection`
    and `ffn`. The tokens of a group are normalised together: `num_tokens`, and `tau`, the scale of their factors, which
    is never computed from the number of tokens.

    None: 576 tokens in each, and 2304 in the FFN, as in the published model of 124M parameters.
    """

    max_position_embeddings: int = 1024
    """The length of a training sequence. Positions are rotary, so nothing depends on it but scaled rotary embeddings
    and limits that other programs set."""

    rope_parameters: Any = None
    """`rope_theta`, `partial_rotary_factor` (the share of each head that is rotated) and `rope_type`."""

    image: Any = None
    """Of a classifier of square images: their `size` and that of a `patch`, in pixels; `channels`; and `pooling`: what
    the head reads, the `class_token` or the `mean` over the patches. None: the model reads text."""

    norm: str = "layernorm"
    """The norms of the residual stream: `layernorm` or `rmsnorm`."""

    layer_norm_eps: float = 1e-5
    qk_norm: bool = False
    """Whether queries and keys get an RMSNorm over each head before they are rotated."""

    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fills in what is None. Transformers calls it with the keys that are no fields."""
        if self.pattentions is None:
            layer = dict.fromkeys(("query", "key", "value", "projection"), _published(576)) | {"ffn": _published(2304)}
            self.pattentions = [layer] * self.num_hidden_layers
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if self.rope_parameters is None:
            fraction = 0.0 if self.image else 0.25
            self.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
        self.is_causal = self.image is None
        super().__post_init__(**kwargs)


def _published(num_tokens: int) -> list[dict[str, Any]]:
    return [{"num_tokens": num_tokens, "tau": num_tokens**0.5}]
