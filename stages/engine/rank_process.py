"""The life of a rank: joins the process group, works, and leaves without crashing its interpreter."""

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
    """Calls `work` with the spec file from the command line and this rank's device, then ends the process.

    The exit code is 0, or 1 with the traceback in the log; for a UserError or a Failure the log also gets the message,
    in one line for the user. A rank that fails exits at once, because other ranks may be waiting for it in a
    collective: the launcher ends those on its own machine, and the lifeline ends those on other machines. A rank that
    succeeds skips the interpreter's shutdown, in which native threads sometimes abort the process.
    """
    end_with_runner()
    try:
        work(Path(sys.argv[-1]), start_distributed())
        dist.destroy_process_group()
    except Exception as error:
        with suppress(OSError):  # the log's disk may be full: that may be what went wrong
            traceback.print_exc()
            if isinstance(error, UserError | Failure):
                sys.stderr.write(f"growctl: {error}\n")  # in one write, because other ranks write too
        cut_lifeline()
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
