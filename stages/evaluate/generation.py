"""What a task of lm-evaluation-harness says about the text to generate, as growctl's own settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lm_eval.models.utils import normalize_gen_kwargs
from pydantic import ValidationError

from model.errors import UserError
from model.strict import first_reason
from stages.generate.settings import Sampling

DEFAULT_NEW_TOKENS = 256
"""Tokens to generate for a task that does not say how many, as in lm_eval's own models."""

WITHOUT_EFFECT = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "use_cache": True,
}
"""Settings of Transformers that ask for nothing at these values."""


class Generation(NamedTuple):
    """How to continue the prompts of a task."""

    max_new_tokens: int
    until: tuple[str, ...]
    sampling: Sampling


def generation(task: str, asked: Mapping[str, Any]) -> Generation:
    """The `generation_kwargs` of a task, which have the names of Transformers.

    Raises UserError that names the first one that growctl does not have.
    """
    left = dict(normalize_gen_kwargs(dict(asked), DEFAULT_NEW_TOKENS))
    until, max_new_tokens = left.pop("until"), left.pop("max_gen_toks")
    samples = left.pop("do_sample")
    temperature = left.pop("temperature", 1.0) if samples else left.pop("temperature", 0.0) and 0.0
    top_k = left.pop("top_k", None)
    fields = {"top_k": top_k if top_k and top_k > 0 else None, "temperature": temperature}
    fields |= {name: left.pop(name) for name in ("top_p", "min_p") if left.get(name) is not None}
    for name, value in left.items():
        if value is not None and WITHOUT_EFFECT.get(name) != value:
            raise UserError(f"--tasks {task}: growctl cannot generate with {name}: {value}, as its YAML file asks")
    try:
        return Generation(max_new_tokens, tuple(until), Sampling.model_validate(fields))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UserError(
            f"--tasks {task}: generation_kwargs.{wrong['loc'][0]}: {wrong['input']!r}: {first_reason(error)}"
        ) from error
