"""The models and shapes of the GPU benchmark: the paper's sizes, and tiny ones for a trial.

Imports no torch.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kernels = Literal["eager", "compiled", "triton"]
KERNELS: tuple[Kernels, ...] = get_args(Kernels)
"""The same as in model/config.py, which needs pydantic."""


@dataclass(frozen=True)
class Settings:
    """The sizes of one run of the benchmark."""

    rows: int
    """Data tokens in a micro-batch, and in an input without sequences."""

    layer_tokens: tuple[int, ...]
    """Parameter tokens of the single Pattentions."""

    shape: dict[str, Any]
    """The Tokenformers' vocabulary, layers, heads and width; single Pattentions have the same width."""

    sizes: dict[str, tuple[int, int]]
    """Attention and FFN tokens of the Tokenformers, by name: the stages of growth, the smallest first."""

    order: tuple[str, ...]
    """The sizes in the order in which they are measured."""

    largest: str
    """The size that is compared with `transformer` at every context."""

    transformer: dict[str, Any]
    """The Transformer with as many parameters as `largest`, by the rule of growctl's controls."""

    context: int
    """Data tokens per sequence, in all sections but `contexts`."""

    contexts: tuple[int, ...]
    """Context lengths in the order in which they are measured."""

    window: int
    """How many positions a token of the windowed Tokenformer attends to."""

    micro_batches: int
    """Micro-batches per optimizer step."""

    warm_up_steps: int
    """Untimed steps of every training loop, in which kernels are chosen and memory is allocated."""

    steps: int
    """Timed steps of every training loop."""

    rounds: int
    """The most times that each of several interleaved variants runs."""

    matrix: int
    """Rows and columns of the matrices whose product measures the device's own speed."""

    zero_sizes: tuple[str, ...] = field(default=())
    """Sizes that are also trained on a DeepSpeed engine."""

    @property
    def width(self) -> int:
        """The width D of models and single Pattentions."""
        return int(self.shape["hidden_size"])


PAPER = Settings(
    rows=16384,
    layer_tokens=(576, 2304, 2140, 8560, 34480),
    shape={"vocab_size": 50304, "num_layers": 12, "num_heads": 12, "hidden_size": 768},
    sizes={"124m": (576, 2304), "354m": (2140, 8560), "757m": (4850, 19400), "1.4b": (8620, 34480)},
    order=("354m", "1.4b", "757m", "124m"),
    largest="1.4b",
    transformer={
        "vocab_size": 50304, "num_layers": 24, "num_heads": 32, "hidden_size": 2048, "ffn_tokens": 8192
    },
    context=1024,
    contexts=(8192, 1024, 16384, 4096, 2048),
    window=1024,
    micro_batches=4,
    warm_up_steps=3,
    steps=5,
    rounds=20,
    matrix=8192,
    zero_sizes=("354m", "1.4b"),
)  # fmt: skip
"""Sizes of arXiv 2410.23168, as in schedules/openwebtext_1.4b.yaml (1.4b has 1.31B parameters)."""

TRIAL = Settings(
    rows=8,
    layer_tokens=(21,),
    shape={"vocab_size": 30, "num_layers": 1, "num_heads": 1, "hidden_size": 8},
    sizes={"small": (4, 8), "large": (6, 12)},
    order=("large",),
    largest="large",
    transformer={"vocab_size": 30, "num_layers": 1, "num_heads": 1, "hidden_size": 8, "ffn_tokens": 16},
    context=4,
    contexts=(8, 4),
    window=2,
    micro_batches=2,
    warm_up_steps=1,
    steps=1,
    rounds=1,
    matrix=64,
    zero_sizes=("large",),
)
"""Shows only whether everything runs; its times are meaningless."""
