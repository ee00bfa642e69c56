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
from stages.spec import LearningRate, Optimizer, TrainSpec

SEQUENCES, LENGTH, STEPS = 4, 10, 3


def spec_for(manifest, initial: Path, zero_stage: int) -> TrainSpec:
    rate = LearningRate(
        shape="wsd", peak=1e-2, final=0.0, warmup_steps=0, decay_steps=0, total_steps=STEPS, first_step=0
    )
    return TrainSpec(
        stage="s", attempt=1, directory="", dataset="", model=manifest.model, initial=str(initial),
        resume=None, seed=0, samples_seen=0, num_steps=STEPS, batch_size=SEQUENCES,
        micro_batch_size=1, sequence_length=LENGTH, learning_rate=rate,
        optimizer=Optimizer(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clipping=1.0),
        ramp_steps=0, zero_stage=zero_stage, precision="fp32", log_every=1, evaluate_every=1, checkpoint_every=1,
        keep_checkpoints=1, evaluation_sequences=None, launched_at=0.0,
    )  # fmt: skip


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
            engine = build_engine(model, spec_for(manifest, initial, zero_stage), precision)
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
