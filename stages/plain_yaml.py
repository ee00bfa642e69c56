"""Reads YAML files into plain data. Imports no torch."""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from model.errors import UserError

_MALFORMED = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises for text that is no YAML, and for values that do not fit their tags."""


def read_yaml(path: Path) -> Any:
    """The plain data of a YAML file, as OmegaConf reads it, with interpolations unresolved.

    Raises UserError, which says where, if the file is no YAML; OSError if it cannot be read.
    """
    try:
        return deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{where}{error.problem}") from None
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text") from None
    except _MALFORMED as error:
        raise UserError(f"is no YAML: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """The plain data of a YAML text. `growctl status` reads the schedules of all runs again and again."""
    return yaml.load(text, Loader=get_yaml_loader())  # libyaml's is faster, but crashes Python on deeply nested text
