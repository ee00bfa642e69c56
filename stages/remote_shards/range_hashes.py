"""The hashes of a shard's ranges, in a file beside it, so that each range can be checked on its own."""

import hashlib
from pathlib import Path

from stages.checkpoint.files import FileEntry, write_file

RANGE_BYTES = 1 << 20
"""Bytes of a range; the last of a shard may be shorter. Whoever needs one token fetches its range."""

HASH_BYTES = hashlib.sha256().digest_size
RANGES_ENDING = ".ranges"
"""`train/00000.ds.ranges` holds the sha256 of each range of `train/00000.ds`, one after another."""


def write_range_hashes(shard: Path, range_bytes: int = RANGE_BYTES) -> FileEntry:
    """Writes the hashes of a shard's ranges beside it, and returns their file's size and hash."""
    hashes = bytearray()
    with shard.open("rb", buffering=0) as file:
        while content := file.read(range_bytes):
            hashes += hashlib.sha256(content).digest()
    return write_file(shard.with_name(shard.name + RANGES_ENDING), bytes(hashes))
