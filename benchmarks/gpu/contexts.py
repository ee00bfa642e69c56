"""Measures training speed by context length: the largest Tokenformer, the same with windows, and a Transformer of its
size.

A Tokenformer's width does not grow, so attention over data tokens is a smaller share of its work. Compiled on a GPU,
windows leave out the blocks of scores that no token sees (FlexAttention).
"""

from functools import partial
from typing import Any

from benchmarks.gpu.section import Section
from benchmarks.gpu.settings import Kernels
from benchmarks.gpu.training import tokenformer, training_speed
from model.decoder_config import decoder_config
from model.shapes import ModelConfig

ORDER: tuple[tuple[Kernels, int | None], ...] = (("compiled", 1), ("eager", None), ("triton", None), ("compiled", None))
"""Kernels and how many of the contexts to run with them, in order; the one with a goal comes first."""


def measure(section: Section) -> None:
    """Measures both families, and computes a ratio as soon as both have a row."""
    settings = section.settings
    full = tokenformer(settings, settings.largest)
    configs: dict[str, ModelConfig] = {
        "tokenformer": full,
        "windowed": full.model_copy(update={"attention_window": settings.window}),
        "transformer": decoder_config(**settings.transformer),
    }
    section.facts["ratios"] = []
    done: dict[tuple[str, str, int], float] = {}
    for kernels, count in ORDER:
        for context in settings.contexts[:count]:
            for family, config in configs.items():
                # A Transformer has no Pattention: the triton kernels are compared with its best speed.
                key = family, kernels, context
                if key in done or kernels in section.without or (family, kernels) == ("transformer", "triton"):
                    continue
                work = partial(training_speed, section, config, kernels, context, 1)
                row = section.case(work, family=family, kernels=kernels, context=context)
                if row:
                    done[key] = row["tokens_per_second"]
            section.facts["ratios"] = ratios(done)
    section.save()


def ratios(speeds: dict[tuple[str, str, int], float]) -> list[dict[str, Any]]:
    """The Tokenformer's tokens per second over the Transformer's with the same kernels (for triton: with its best)."""
    found = []
    for (family, kernels, context), speed in speeds.items():
        others = {k: s for (f, k, c), s in speeds.items() if f == "transformer" and c == context}
        other = others.get(kernels) if kernels != "triton" else max(others.values(), default=None)
        if family == "tokenformer" and other:
            found.append({"context": context, "kernels": kernels, "ratio": round(speed / other, 4)})
    return sorted(found, key=lambda ratio: (ratio["kernels"], ratio["context"]))
