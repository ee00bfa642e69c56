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
    """The answers to all questions of `growctl init`; None means the rules decide."""

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
    return Wish(
        params=parse_params(params),
        base=None if base is None else parse_base(base),
        tokens=None if tokens is None else parse_tokens(tokens),
        data=data,
        gpus=None if gpus is None else parse_gpus(gpus),
        device=None if device is None else parse_device(device),
        grow_depth=grow_depth,
    )


def parse_params(text: str) -> int:
    """The number of parameters. Raises UserError."""
    return _count("--params", text, FEWEST_PARAMETERS, MOST_PARAMETERS)


def parse_base(text: str) -> int:
    """The number of parameters of the first stage. Raises UserError."""
    return _count("--base", text, 1, MOST_PARAMETERS)


def parse_tokens(text: str) -> int:
    """The number of data tokens. Raises UserError."""
    return _count("--tokens", text, 1, MOST_TOKENS)


def parse_gpus(value: str | int) -> int:
    """The number of GPUs. Raises UserError."""
    return _count("--gpus", value, 1, MOST_GPUS)


def parse_device(text: str) -> str:
    """The name of a known device. Raises UserError."""
    name = text.strip().lower()
    if name not in DEVICES:
        hint = did_you_mean(name, list(DEVICES))
        raise UserError(f"--device {shown(text)}: unknown; known are {', '.join(DEVICES)}{hint}")
    return name


def _count(option: str, text: str | int, least: int, most: int) -> int:
    try:
        count = parse_count(text if isinstance(text, int) else int(text) if text.strip().isdecimal() else text)
    except ValueError as error:
        raise UserError(f"{option} {shown(text)}: {error}") from None
    if not least <= count <= most:
        raise UserError(f"{option} {shown(text)}: must be {_limit(least)} to {_limit(most)}")
    return count


def _limit(count: int) -> str:
    return f"{count:,}" if count < 10_000 else short_count(count)
