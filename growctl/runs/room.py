"""Checks before a command writes a checkpoint that it fits on the disk and in memory.

Without the check, Linux kills a process that needs too much memory, after it has written for minutes.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from growctl.runs.memory import available_memory
from growctl.text.formatting import byte_count
from model.config import TokenformerConfig, parameter_shapes
from model.errors import UserError
from stages.checkpoint.disk_full import MARGIN_BYTES, conversion_bytes, free_bytes
from stages.checkpoint.manifest import Manifest

PARAMETER_BYTES = 4
"""Checkpoints hold float32."""

TENSORS_AT_ONCE = 6
"""Measured: an expansion takes 6 times the memory of its largest parameter. It draws one while two are being written,
each of which is there as a tensor and as the bytes of its file."""

COPIES_AT_ONCE = 8
"""The same for init `copy`, which also joins the old tokens and draws noise."""


@dataclass(frozen=True)
class Room:
    """The disk space and the memory that it takes to write `output`."""

    output: Path
    new_bytes: int = 0
    """New parameters, on disk."""
    copied_bytes: int = 0
    """The source's files, if they cannot become hard links."""
    conversion_bytes: int = 0
    """What converting the source, an engine checkpoint, takes for a while, before there are new parameters."""
    memory_bytes: int = 0

    @property
    def disk_bytes(self) -> int:
        """The most disk space that is taken at a time."""
        return max(self.conversion_bytes, self.copied_bytes + self.new_bytes)

    @property
    def for_new_bytes(self) -> int:
        """The free disk space that is left for new parameters; 0 if not even the source's files fit."""
        free = free_bytes(self.output) - MARGIN_BYTES
        return free - self.copied_bytes if free >= max(self.conversion_bytes, self.copied_bytes) else 0

    @property
    def is_on_disk(self) -> bool:
        """Whether there is enough disk space."""
        return free_bytes(self.output) - MARGIN_BYTES >= self.disk_bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether there is enough memory, as far as is known."""
        available = available_memory()
        return available is None or available >= self.memory_bytes

    def lack(self) -> str:
        """What it takes, what there is too little of, and what to do, as a clause."""
        takes, short, ways = f"about {byte_count(self.disk_bytes)} on disk", [], []
        available = available_memory()
        if self.memory_bytes and available is not None:
            takes += f" and {byte_count(self.memory_bytes)} of memory"
        if not self.is_on_disk:
            short.append(f"{byte_count(free_bytes(self.output))} are free in {self.output.parent}")
            ways.append("free some space or write to another disk with --output")
        if available is not None and not self.is_in_memory:
            short.append(f"{byte_count(available)} of memory are available")
            ways.append("free some memory")
        return f"takes {takes}, but only {' and '.join(short)}; {', and '.join(ways)}"


def check_expansion(
    source: Path,
    manifest: Manifest,
    output: Path,
    new: TokenformerConfig,
    *,
    copies: bool,
    add_tokens: int,
    add_layers: int = 0,
    in_proportion: bool,
) -> None:
    """Raises UserError if growing `source` to `new` takes more disk space or memory than there is.

    `copies`: new tokens copy old ones. `in_proportion`: without `add_layers`, the growth is proportional to
    `add_tokens`, so that the message can say how many fit.
    """
    before = parameter_shapes(manifest.model)
    sizes = [math.prod(shape) for name, shape in parameter_shapes(new).items() if name not in before]
    at_once = COPIES_AT_ONCE if copies else TENSORS_AT_ONCE
    room = Room(
        output,
        new_bytes=PARAMETER_BYTES * sum(sizes),
        copied_bytes=copied_bytes(source, manifest, output),
        conversion_bytes=conversion_bytes(manifest),
        memory_bytes=PARAMETER_BYTES * at_once * max(sizes, default=0),
    )
    if room.is_on_disk and room.is_in_memory:
        return
    fits = ""
    if in_proportion and not add_layers:
        memory = available_memory()
        shares = [room.for_new_bytes / room.new_bytes, 1 if memory is None else memory / room.memory_bytes]
        most = _two_digits(min(shares) * add_tokens)
        fits = f", or add fewer tokens: about {most} fit" if most else ""
    option = f"--add-layers {add_layers}" if add_layers else f"--add-tokens {add_tokens}"
    raise UserError(f"{option}: {room.lack()}{fits}")


def check_copies(source: Path, manifest: Manifest, output: Path) -> None:
    """Raises UserError if the files of `source` must be converted or copied to `output` and do not fit on its disk."""
    room = Room(output, 0, copied_bytes(source, manifest, output), conversion_bytes(manifest))
    if room.disk_bytes and not room.is_on_disk:
        raise UserError(f"--output {output}: {room.lack()}")


def copied_bytes(source: Path, manifest: Manifest, output: Path) -> int:
    """The size of the files of `source` that do not become hard links at `output`.

    They do not if it is on another file system, or if they must be converted first; their new size is about the same.
    """
    place = next(folder for folder in output.absolute().parents if folder.exists())
    same_disk = source.stat().st_dev == place.stat().st_dev
    return 0 if same_disk and manifest.kind == "parameters" else manifest.num_bytes


def _two_digits(value: float) -> int:
    """`value`, rounded down to two digits, because it is an estimate; 0 if it is negative."""
    whole = max(0, int(value))
    scale = 10 ** max(0, len(str(whole)) - 2)
    return whole // scale * scale
