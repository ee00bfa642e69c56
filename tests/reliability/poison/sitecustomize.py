"""Poisons the data of real runs: Python imports this at start if PYTHONPATH has this folder.

The variable POISON names the training samples as JSON: {"nan": [index, ...], "spike": [index, ...]}. Such a sample
repeats one token, and its training loss is NaN or a hundred times the real one.
"""

import importlib.abc
import importlib.machinery
import json
import math
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

TOKENS = {"nan": (7, math.nan), "spike": (8, 100.0)}
"""The repeated token and the factor on the loss, by kind."""

SAMPLES = {index: kind for kind, indices in json.loads(os.environ.get("POISON", "{}")).items() for index in indices}


def poison_samples(module: ModuleType) -> None:
    """Poisons samples, of one dataset or of a mixture."""
    kind = module.TrainingSamples
    batch = kind.batch

    def poisoned(self, first_index, count):
        tokens_BT = batch(self, first_index, count)
        for row, tokens_T in enumerate(tokens_BT, first_index):
            if row in SAMPLES:
                tokens_T[:] = TOKENS[SAMPLES[row]][0]
        return tokens_BT

    kind.batch = poisoned


def poison_losses(module: ModuleType) -> None:
    forward = module.LanguageModel.forward

    def poisoned(self, input_ids_BT, targets_BT=None):
        loss = forward(self, input_ids_BT, targets_BT)
        for token, factor in TOKENS.values():
            if self.training and (input_ids_BT == token).all(1).any():
                loss = loss * factor
        return loss

    module.LanguageModel.forward = poisoned


class Poisoner(importlib.abc.MetaPathFinder):
    """Changes modules right after their import."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            change(module)

        spec.loader.exec_module = executed
        return spec


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "stages.data.samples": poison_samples,
    "model.language_model": poison_losses,
}
sys.meta_path.insert(0, Poisoner(CHANGES))
