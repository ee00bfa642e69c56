"""One rank of tests/stages/test_engine_state.py: a checkpoint into engines of every kind and out again.

    roundtrip_worker.py INITIAL OUTPUT

For each ZeRO stage and precision: the states and steps that come out of a freshly loaded engine
(`OUTPUT/<kind>-loaded`) and, after three optimizer steps on fixed data, the losses, and the states again
(`OUTPUT/<kind>-trained`).
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from model.initialization import build_model
from stages.checkpoint import fill_model
from stages.engine import build_engine, start_distributed
from stages.engine_state import engine_states, group_steps, load_states, save_parameters
from stages.manifest import read_manifest, staging_directory
from tests.stages.specs import small_spec

SEQUENCES, LENGTH, STEPS = 4, 10, 3


def main() -> None:
    initial, output = Path(sys.argv[1]), Path(sys.argv[2])
    device = start_distributed()
    manifest = read_manifest(initial)
    vocabulary = manifest.model.vocab_size
    tokens = torch.randint(0, vocabulary, (STEPS, SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(9))
    report = {}
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for zero_stage in (1, 2, 3):
        for precision in ("fp32", "bf16"):
            kind = f"zero{zero_stage}-{precision}"
            model = build_model(manifest.model, device=device)
            fill_model(model, initial, manifest)
            engine = build_engine(
                model, small_spec(manifest.model, initial=str(initial), zero_stage=zero_stage), precision
            )
            load_states(engine, initial, manifest)
            steps_loaded = group_steps(engine)
            save_parameters(output / f"{kind}-loaded", engine_states(engine))
            losses = []
            for step in range(STEPS):
                total = torch.zeros(1)
                for i in range(rank, SEQUENCES, world_size):
                    ids = tokens[step, i : i + 1]
                    loss = engine(ids, ids.roll(-1, 1))
                    engine.backward(loss)
                    engine.step()
                    total += loss.detach()
                dist.all_reduce(total)
                losses.append(total.item() / SEQUENCES)
            save_parameters(output / f"{kind}-trained", engine_states(engine))
            report[kind] = {
                "steps_loaded": steps_loaded,
                "steps_trained": group_steps(engine),
                "losses": losses,
                "decay": {g["name"]: g["weight_decay"] for g in engine.optimizer.param_groups},
            }
            dist.barrier()
    if rank == 0:
        (output / "report.json").write_text(json.dumps(report))
        for name in report:
            assert staging_directory(output / f"{name}-loaded").is_dir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
