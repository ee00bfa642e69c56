"""A rank of tests/stages/engine/test_memory.py: measures the memory of engines.

    memory_worker.py OUTPUT

Reads {case: spec} from OUTPUT/cases.json and writes to OUTPUT/measured.json, for each: the bytes after the forward pass
of a second micro-batch, the peak of two steps and of an evaluation as at the end of a stage, the size of a checkpoint,
and a hash of the losses and of the trained weights with their moments.
"""

import gc
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from model.initialization import build_model
from stages.engine.engine import build_engine
from stages.engine.engine_state import engine_states, start_moments
from stages.engine.rank_process import start_distributed
from stages.spec import TrainSpec
from tests.memory_tracking import MemoryTracking

COLLECTIVES = ("allgather", "all_gather_single", "allreduce", "broadcast", "reduce", "reduce_scatter_single")


class Overlap:
    """Keeps a collective's tensors, including gloo's own copies, alive until the next collective has started.

    Otherwise a gloo thread releases them some time after the rank continues; how long depends on the machine's load.
    With a single thread and this class, memory that can overlap always overlaps.
    """

    def __init__(self) -> None:
        self._last: deque[dist.Work] = deque(maxlen=1)
        setattr(distributed_c10d, "ProcessGroupGloo", _GlooOfOneThread)  # noqa: B010 - mypy takes it for a type
        for name in COLLECTIVES:
            setattr(dist.ProcessGroup, name, self._held(getattr(dist.ProcessGroup, name)))

    def _held(self, start: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
        def started(*arguments: Any, **options: Any) -> dist.Work:
            self._last.append(start(*arguments, **options))
            return self._last[0]

        return started

    def end(self) -> None:
        """Waits until the last collective's tensors are released, because gloo's thread runs another collective."""
        self._last.clear()
        dist.barrier()


class _GlooOfOneThread(dist.ProcessGroupGloo):
    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        options._timeout, options._threads = timeout, 1
        super().__init__(store, rank, size, options)


def measured(spec: TrainSpec, output: Path, overlap: Overlap) -> dict[str, int | str]:
    """What this rank measures, and the size of a checkpoint of all ranks, written to `output`."""
    random = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(0, spec.model.vocab_size, (spec.micro_batch_size, spec.sequence_length), generator=random)
    found: dict[str, int | str] = {}
    trained = sha256()
    assert spec.precision != "auto"
    with MemoryTracking([ids]) as memory:
        engine = build_engine(build_model(spec.model, seed=0), spec, spec.precision)
        start_moments(engine, {})
        for step in range(2):
            for micro_batch in range(2):
                overlap.end()
                loss = engine(ids, ids)
                if step == micro_batch == 1:
                    overlap.end()
                    gc.collect()
                    found["forward"] = memory.live
                engine.backward(loss)
                engine.step()
                trained.update(repr(loss.item()).encode())
                del loss
        overlap.end()
        with torch.no_grad():
            plain = build_model(spec.model)
            plain(ids, ids)
        found["peak"] = memory.peak
    for _, state in engine_states(engine):
        for tensor in state:
            trained.update(tensor.contiguous().numpy().tobytes())
    found["trained"] = trained.hexdigest()
    engine.save_checkpoint(str(output), tag="engine", save_latest=False)
    dist.barrier()
    found["checkpoint"] = sum(path.stat().st_size for path in output.rglob("*.pt"))
    engine.destroy()
    return found


def main() -> None:
    output, report = Path(sys.argv[1]), {}
    overlap = Overlap()
    start_distributed()
    for name, spec in json.loads((output / "cases.json").read_text()).items():
        report[name] = measured(TrainSpec.model_validate_json(spec), output / name, overlap)
        gc.collect()
        dist.barrier()
    if dist.get_rank() == 0:
        (output / "measured.json").write_text(json.dumps(report))
    dist.destroy_process_group()
    os._exit(0)  # as a worker does: native threads may abort the interpreter's shutdown


if __name__ == "__main__":
    main()
