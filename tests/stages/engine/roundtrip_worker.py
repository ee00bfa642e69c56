"""A rank of tests/stages/engine/test_engine_state.py: loads and saves checkpoints with every engine.

    roundtrip_worker.py INITIAL OUTPUT

For each kind of engine it writes the states and steps of a freshly loaded engine (`OUTPUT/<kind>-loaded`), and the
losses and states after three optimizer steps on fixed data (`OUTPUT/<kind>-trained`). It then saves each engine as
within a stage (`OUTPUT/<kind>-engine`) and resumes the offloaded ones and those with Muon from that
(`OUTPUT/<kind>-resumed`).

Muon loads the same files, as if their first moments were momentum. The report has the shape of every matrix that
Newton-Schulz orthogonalised on any rank.
"""

import json
import os
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.initialization import build_model
from stages.checkpoint.lineage import Lineage, TrainingRecord
from stages.checkpoint.manifest import read_manifest
from stages.checkpoint.parameters import fill_model
from stages.engine.engine import build_engine
from stages.engine.engine_state import (
    engine_states,
    group_steps,
    load_engine,
    load_states,
    save_engine,
    save_parameters,
)
from stages.engine.rank_process import start_distributed
from tests.stages.checkpoints import STEPS as STEPS_SAVED
from tests.stages.engine.kinds import PLAIN, engine_spec

SLOW_TO_IMPORT = {"mlflow", "torch._dynamo", "torch._inductor"}
"""What an engine that trains eagerly does without: MLflow, and torch's compiler."""
SEQUENCES, LENGTH, STEPS = 4, 10, 3
KINDS = (*PLAIN, *(f"zero{stage}-bf16-offloaded" for stage in (1, 2, 3)))
KINDS += ("zero1-bf16-muon", "zero2-fp32-muon", "zero3-fp32-muon")
ALONE = ("zero1-fp32", "zero1-bf16", "zero3-bf16", "zero1-bf16-muon", "zero2-fp32-muon")
"""What a single rank tries outside of a soak."""
MUON_STEPS = STEPS_SAVED | {"generation-0-muon": 11}


def kinds(ranks: int) -> list[str]:
    """The engines that so many ranks try."""
    return [kind for kind in KINDS if ranks > 1 or kind in ALONE or "GROWCTL_SOAK" in os.environ]


def batches(vocabulary: int) -> torch.Tensor:
    """The tokens of all steps."""
    return torch.randint(0, vocabulary, (STEPS, SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(9))


def record_newton_schulz() -> list[tuple[int, ...]]:
    """The list to which every call of Newton-Schulz, from now on, adds the shape of its matrix."""
    from deepspeed.runtime.zero.muon import original_muon

    shapes: list[tuple[int, ...]] = []
    orthogonalise = original_muon.zeropower_via_gram_newtonschulz

    def recorded(matrix: torch.Tensor, steps: int) -> torch.Tensor:
        shapes.append(tuple(matrix.shape))
        return orthogonalise(matrix, steps)

    original_muon.zeropower_via_gram_newtonschulz = recorded
    return shapes


def main() -> None:
    initial, output = Path(sys.argv[1]), Path(sys.argv[2])
    device = start_distributed()
    report: dict[str, dict[str, Any]] = {}
    rank, world_size = dist.get_rank(), dist.get_world_size()
    orthogonalised = record_newton_schulz()
    for kind in kinds(world_size):
        orthogonalised.clear()
        manifest, found = read_manifest(initial), report.setdefault(kind, {})
        as_muons = manifest.model_copy(update={"group_steps": MUON_STEPS})
        spec = engine_spec(kind, manifest.model, initial=str(initial))
        assert spec.precision != "auto"
        model = build_model(manifest.model, device=device)
        fill_model(model, initial, manifest)
        engine = build_engine(model, spec, spec.precision)
        if kind == "zero1-fp32":
            load_states(engine, initial, as_muons)
            moments = [moment for _, state in engine_states(engine) for moment in state[1:]]
            found["from_muon"] = [any(moment.any() for moment in moments), *group_steps(engine).values()]
        load_states(engine, initial, as_muons if spec.optimizer.name == "muon" else manifest)
        found["steps_loaded"] = group_steps(engine)
        save_parameters(output / f"{kind}-loaded", engine_states(engine))
        found["losses"] = []
        for tokens in batches(manifest.model.vocab_size):
            total = torch.zeros(1)
            for ids in tokens[rank::world_size].split(1):
                loss = engine(ids, ids.roll(-1, 1))
                engine.backward(loss)
                engine.step()
                total += loss.detach()
            dist.all_reduce(total)
            found["losses"].append(total.item() / SEQUENCES)
        save_parameters(output / f"{kind}-trained", engine_states(engine))
        everywhere: list[Any] = [None] * world_size
        dist.all_gather_object(everywhere, orthogonalised)
        found |= {
            "steps_trained": group_steps(engine),
            "decay": {g["name"]: g["weight_decay"] for g in engine.optimizer.param_groups},
            "orthogonalised": sorted(chain.from_iterable(everywhere)),
            "slow": sorted(SLOW_TO_IMPORT & sys.modules.keys()),
        }
        fields = {
            **manifest.model_dump(include={"model", "samples_seen", "seed", "dataset_fingerprint"}),
            **spec.model_dump(include={"zero_stage", "offload", "precision"}),
            "tokenizer_sha256": None,
            "step": STEPS,
            "group_steps": group_steps(engine),
            "lineage": Lineage(operation="train", training=TrainingRecord(losses=[(STEPS, found["losses"][-1])])),
        }
        save_engine(engine, output / f"{kind}-engine", fields)
        if kind not in PLAIN:
            resumed = build_engine(build_model(manifest.model, seed=1, device=device), spec, spec.precision)
            load_engine(resumed, output / f"{kind}-engine")
            save_parameters(output / f"{kind}-resumed", engine_states(resumed))
            found["steps_resumed"] = group_steps(resumed)
        dist.barrier()
    if rank == 0:
        (output / "report.json").write_text(json.dumps(report))
    dist.destroy_process_group()
    os._exit(0)  # as a worker does: native threads may abort the interpreter's shutdown


if __name__ == "__main__":
    main()
