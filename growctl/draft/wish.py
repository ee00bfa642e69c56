"""What the user of `growctl init` asks for, and its limits."""

from dataclasses import dataclass

from growctl.schedule.errors import shown
from growctl.schedule.fields import parse_count
from growctl.schedule.launch_block import DEVICES
from growctl.text.formatting import short_count
from growctl.text.suggestion import did_you_mean
from model.errors import UserError

FEWEST_PARAMETERS = 150_000
"""The quickstart's first size has 115k; the last size must be a real growth above it."""

MOST_PARAMETERS = 24_000_000_000
"""The largest published shape with sixteen times its width in tokens (growctl/draft/sizes.py)."""

MOST_TOKENS = 10**14
MOST_GPUS = 1024


@dataclass(frozen=True)
class Wish:
    """The options of `growctl init`; None means the rules decide."""

    params: int
    """Parameters of the last size."""

    base: int | None = None
    """Parameters of the first size."""

    tokens: int | None = None
    """Data tokens of the whole ladder."""

    data: str | None = None
    """A shipped data choice, a path, a URL, or a data set on the Hugging Face hub."""

    gpus: int | None = None
    """GPUs of the machine that will train."""

    device: str | None = None
    """The model of those GPUs."""

    grow_depth: bool = False
    """Whether layers grow as well as parameter tokens."""


def make_wish(
    params: str,
    *,
    base: str | None = None,
    tokens: str | None = None,
    data: str | None = None,
    gpus: int | None = None,
    device: str | None = None,
    grow_depth: bool = False,
) -> Wish:
    """The wish in the words of the command line. Raises UserError for the first value that is unusable by itself."""
    name = device and device.strip().lower()
    if name is not None and name not in DEVICES:
        known = f"known are {', '.join(DEVICES)}{did_you_mean(name, list(DEVICES))}"
        raise UserError(f"--device {shown(device)}: unknown; {known}")
    return Wish(
        params=_count("--params", params, FEWEST_PARAMETERS, MOST_PARAMETERS),
        base=None if base is None else _count("--base", base, 1, MOST_PARAMETERS),
        tokens=None if tokens is None else _count("--tokens", tokens, 1, MOST_TOKENS),
        data=data,
        gpus=None if gpus is None else _count("--gpus", gpus, 1, MOST_GPUS),
        device=name,
        grow_depth=grow_depth,
    )


def _count(option: str, text: str | int, least: int, most: int) -> int:
    try:
        count = parse_count(int(text) if isinstance(text, str) and text.strip().isdecimal() else text)
    except ValueError as error:
        raise UserError(f"{option} {shown(text)}: {error}") from None
    if not least <= count <= most:
        limits = " to ".join(f"{limit:,}" if limit < 10_000 else short_count(limit) for limit in (least, most))
        raise UserError(f"{option} {shown(text)}: must be {limits}")
    return count
