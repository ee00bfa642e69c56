"""Chooses the untrained models to compare a checkpoint with. Imports no torch."""

from collections.abc import Sequence
from typing import NamedTuple, get_args

from growctl.ladder.equal_size import equal_size_transformer
from growctl.text.suggestion import did_you_mean
from model.config import ScoreFunction, TokenformerConfig, TransformerConfig
from model.errors import UserError
from stages.inspect.fresh import same_size

LINEAR, NONE = "linear", "none"
FUNCTIONS: tuple[ScoreFunction, ...] = get_args(ScoreFunction)
ALLOWED = (*FUNCTIONS, LINEAR, NONE)


class Untrained(NamedTuple):
    """A model to measure at its initialisation."""

    scores: str
    """Its score function, or `linear` for a Transformer."""

    config: TokenformerConfig | TransformerConfig


def untrained_models(configs: Sequence[TokenformerConfig | TransformerConfig], against: str | None) -> list[Untrained]:
    """The untrained models for checkpoints of `configs`, those with the checkpoints' own score functions first.

    All have the size of the first Tokenformer with layers; if none has any, there are no untrained models. Without a
    Tokenformer, the only one is the first Transformer itself. `against` names score functions and `linear`, separated
    by commas; None: all of them. `none`: no models at all. Raises UserError for an unknown name, and for a score
    function if there is no Tokenformer.
    """
    names = _names(against)
    if NONE in names:
        return []
    tokenformers = [config for config in configs if isinstance(config, TokenformerConfig)]
    if not tokenformers:
        if against is not None and names != [LINEAR]:
            raise UserError(
                f"--against {against!r}: score functions need a Tokenformer, but every checkpoint is a Transformer; "
                f"allowed here: {LINEAR}, {NONE}"
            )
        return [Untrained(LINEAR, configs[0])]
    base = next((config for config in tokenformers if config.num_layers), None)
    if base is None:
        return []
    functions = dict.fromkeys([config.score_function for config in tokenformers])
    functions |= dict.fromkeys(name for name in FUNCTIONS if name in names)
    found = [Untrained(function, same_size(base, function)) for function in functions]
    return [*found, Untrained(LINEAR, equal_size_transformer(base))] if LINEAR in names else found


def _names(against: str | None) -> list[str]:
    if against is None:
        return [*FUNCTIONS, LINEAR]
    names = [name.strip() for name in against.split(",")]
    for name in names:
        if name not in ALLOWED:
            raise UserError(f"--against {name!r}: must be of {', '.join(ALLOWED)}{did_you_mean(name, ALLOWED)}")
    if NONE in names and len(names) > 1:
        raise UserError(f"--against {against!r}: {NONE} stands alone")
    return names
