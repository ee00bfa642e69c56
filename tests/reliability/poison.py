"""Poisons training samples: the losses of some are NaN, those of others a hundred times the real ones."""

import math

from model.language_model import LanguageModel
from stages.data.samples import TrainingSamples

TOKENS = {"nan": (7, math.nan), "spike": (8, 100.0)}
"""By kind, the token that poisoned samples repeat, and the factor on their loss."""


def install(samples: dict[str, list[int]]) -> None:
    """From now on, the samples with these indices are poisoned: {"nan": [index, ...], "spike": [index, ...]}."""
    kinds = {index: kind for kind, indices in samples.items() for index in indices}
    batch, forward = TrainingSamples.batch, LanguageModel.forward

    def poisoned_batch(self, first_index, count):
        tokens_BT = batch(self, first_index, count)
        for row, tokens_T in enumerate(tokens_BT, first_index):
            if row in kinds:
                tokens_T[:] = TOKENS[kinds[row]][0]
        return tokens_BT

    def poisoned_forward(self, input_ids_BT, targets_BT=None):
        loss = forward(self, input_ids_BT, targets_BT)
        for token, factor in TOKENS.values():
            if self.training and (input_ids_BT == token).all(1).any():
                loss = loss * factor
        return loss

    setattr(TrainingSamples, "batch", poisoned_batch)  # noqa: B010 (mypy refuses to assign a method)
    setattr(LanguageModel, "forward", poisoned_forward)  # noqa: B010
