"""Maps a file into memory without keeping it open, so that thousands of maps need no file descriptors.

Python's mmap, and with it numpy's memmap, keeps a descriptor for each map; many systems allow a process 1,024 of them.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_ssize_t,
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def mapped_bytes(path: Path) -> npt.NDArray[Any]:
    """The bytes of a file, read from disk on use: read-only uint8, of the size it has now. It must not shrink.

    Raises OSError if it cannot be mapped.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return np.empty(0, np.uint8)
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    array = np.frombuffer(memoryview(memory), np.uint8)
    array.flags.writeable = False
    return array
