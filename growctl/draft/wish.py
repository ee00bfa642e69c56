"""What the user of `growctl init` asks for, and its limits."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveInt

from growctl.schedule.fields import Count, parse_count
from growctl.schedule.launch_block import Device
from model.strict import Strict


class Wish(Strict):
    """The options of `growctl init`; None means the rules decide."""

    params: Annotated[int, BeforeValidator(parse_count), Field(ge=150_000, le=24_000_000_000)]
    """Parameters of the last size: from a real growth above the quickstart's first size, 115k, to the largest published
    shape with sixteen times its width in tokens (growctl/draft/sizes.py)."""

    base: Count | None = None
    """Parameters of the first size."""

    tokens: Count | None = None
    """Data tokens of the whole ladder."""

    data: str | None = None
    """A shipped data choice, a path, a URL, or a data set on the Hugging Face hub."""

    gpus: Annotated[PositiveInt | None, Field(le=1024)] = None
    """GPUs of the machine that will train."""

    device: Device | None = None
    """The model of those GPUs."""

    grow_depth: bool = False
    """Whether layers grow as well as parameter tokens."""
