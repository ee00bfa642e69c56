"""A rank's life: it joins its process group, does its work, and leaves without taking its interpreter down."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from model.errors import Failure, UserError
from stages.engine.engine import start_distributed
from stages.process.lifeline import cut_lifeline, end_with_runner


def run_rank(work: Callable[[Path, torch.device], None]) -> NoReturn:
    """Does `work` with the spec file that the command line names, on this rank's device; then ends the process.

    Exit code 0, or 1 with the traceback in the log, and where it is a UserError or a Failure also its message in one
    line for the user. A rank that fails ends at once, without a word to the others, who may be waiting for it in a
    collective; the launcher ends those of its machine, their lifeline those of others. One that is done does not take
    its interpreter down: native threads that still want it then abort the process now and again, after the work was
    done.
    """
    end_with_runner()
    try:
        work(Path(sys.argv[-1]), start_distributed())
        dist.destroy_process_group()
    except Exception as error:
        with suppress(OSError):  # the log's disk may be full: that may be what went wrong
            traceback.print_exc()
            if isinstance(error, UserError | Failure):
                sys.stderr.write(f"growctl: {error}\n")  # in one piece, for other ranks write too
        cut_lifeline()
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
