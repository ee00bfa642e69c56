"""A rank of tests/stages/engine/test_memory.py: measures the memory of every kind of engine.

    memory_worker.py OUTPUT

Writes {kind: {moment: bytes}} for each ZeRO stage, precision, offloading and activation checkpointing. The moments are:
after the engine's start, after the forward pass of a second micro-batch, and the peak of two steps and of an evaluation
as at the end of a stage. The size of a checkpoint is included, and a hash of the losses and of the trained weights with
their moments.
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
from pydantic import TypeAdapter
from torch.distributed import distributed_c10d

from model.config import ModelConfig
from model.initialization import build_model
from stages.engine.engine import build_engine
from stages.engine.engine_state import engine_states, start_moments
from stages.engine.rank_process import start_distributed
from tests.memory_tracking import MemoryTracking
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec

OPTIMIZER = small_spec(small_config()).optimizer
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


def measured(case: dict[str, Any], output: Path, overlap: Overlap) -> dict[str, int | str]:
    """Measures the bytes of this rank at each moment, and of a checkpoint of all ranks, written to `output`."""
    config = TypeAdapter(ModelConfig).validate_json(json.dumps(case["model"]))
    micro, length, world_size = case["micro_batch_size"], case["sequence_length"], dist.get_world_size()
    precision, optimizer = case.pop("precision"), case.get("optimizer", "adamw")
    clipping = 1.0 if optimizer == "adamw" else 0.0
    spec = small_spec(
        config,
        zero_stage=case["zero_stage"],
        offload=case["offload"],
        recompute_every=case["recompute_every"],
        micro_batch_size=micro,
        batch_size=2 * micro * world_size,
        sequence_length=length,
        optimizer=OPTIMIZER.model_copy(update={"name": optimizer, "gradient_clipping": clipping}),
    )
    random = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(0, config.vocab_size, (micro, length), generator=random)
    found: dict[str, int | str] = {}
    trained = sha256()
    with MemoryTracking([ids]) as memory:
        engine = build_engine(build_model(config, seed=0), spec, precision)
        start_moments(engine, {})
        found["engine"] = memory.live
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
            plain = build_model(config)
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
    output = Path(sys.argv[1])
    overlap = Overlap()
    start_distributed()
    report = {}
    for name, case in json.loads((output / "cases.json").read_text()).items():
        report[name] = measured(case, output / name, overlap)
        gc.collect()
        dist.barrier()
    if dist.get_rank() == 0:
        (output / "measured.json").write_text(json.dumps(report))
    dist.destroy_process_group()
    os._exit(0)  # as a worker does: native threads may abort the interpreter's shutdown


if __name__ == "__main__":
    main()
