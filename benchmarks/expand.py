"""Measures expanding a checkpoint against only drawing, hashing and writing the same new tensors.

    python -m benchmarks.expand --directory DIR > benchmarks/results/expand.json    # 14 GB of disk, some minutes
    python -m benchmarks.expand --size small                                         # a quick trial

Builds a checkpoint with Adam moments in DIR (by default the system's temporary folder): the paper's 757M model,
753.8M parameters. Grows it to 1.31B, in turns with `plain`, which draws, hashes, writes and syncs the same new tensors
one after another. Every measurement runs in a new process and starts after its imports, when the disk has no pending
writes. Everything is deleted at the end, unless --keep is given.
"""

import hashlib
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import in_fresh_process, options, print_results


class Size(NamedTuple):
    """A model, and the tokens that a growth adds to each of its layers."""

    shape: dict[str, Any]
    attention_tokens: int
    ffn_tokens: int


PAPER = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "vocab_size": 50304}
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 1, "vocab_size": 31}
SIZES = {
    "paper": Size(PAPER | {"attention_tokens": 4850, "ffn_tokens": 19400}, attention_tokens=3770, ffn_tokens=15080),
    "small": Size(SMALL | {"attention_tokens": 5, "ffn_tokens": 20}, attention_tokens=4, ffn_tokens=16),
}


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--size", choices=SIZES, default="paper", help="checkpoint and growth to measure")
    parser.add_argument("--directory", type=Path, help="where to write; created if missing")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints and the plain tensors")
    arguments = parser.parse_args()
    if arguments.directory:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="growctl-expand-", dir=arguments.directory))
    try:
        print_results(arguments.note, **measured(arguments.size, folder, arguments.repetitions))
    finally:
        if arguments.keep:
            print(f"kept {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)


def measured(size: str, folder: Path, repetitions: int) -> dict[str, Any]:
    """The benchmark's document. `expand` and `plain` alternate in who goes first."""
    parent, child, plain = folder / "parent", folder / "child", folder / "plain"
    say(f"building the parent in {parent}")
    in_fresh_process(build, size, parent)
    runs: dict[str, list[dict[str, float]]] = {"expand": [], "plain": []}
    for repetition in range(repetitions):
        for what in sorted(runs, reverse=bool(repetition % 2)):
            shutil.rmtree(child if what == "expand" else plain, ignore_errors=True)
            os.sync()
            load = os.getloadavg()[0]
            if what == "expand":
                run = in_fresh_process(expanded, size, parent, child)
            else:
                run = in_fresh_process(plainly_written, size, plain)
            runs[what].append(run | {"load_average_before": round(load, 2)})
            say(f"{what} {repetition + 1}/{repetitions}: {run['seconds']:.2f} s")
    expand_runs, plain_runs = runs.values()
    ratios = [e["seconds"] / p["seconds"] for e, p in zip(expand_runs, plain_runs, strict=True)]
    return {
        "size": size,
        "parent": SIZES[size].shape,
        "added": {"attention_tokens": SIZES[size].attention_tokens, "ffn_tokens": SIZES[size].ffn_tokens},
        "median_ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "expand_peak_mb": max(run["peak_mb"] for run in expand_runs),
        **files(parent, child),
        "bytes_of_plain": sum(path.stat().st_size for path in paths(plain)),
        "expand": expand_runs,
        "plain": plain_runs,
    }


def build(size: str, parent: Path) -> None:
    """Writes the checkpoint `parent`, with random values and moments."""
    import torch

    from model.growth import ParameterState
    from model.shapes import parameter_shapes
    from model.tokenformer_config import tokenformer_config
    from stages.checkpoint.directory import finish_directory, whole_directory
    from stages.checkpoint.lineage import Lineage
    from stages.checkpoint.manifest import Manifest
    from stages.checkpoint.parameters import write_parameter

    model = tokenformer_config(**SIZES[size].shape)
    steps = {"generation-0-decay": 1000, "generation-0-no-decay": 1000}
    files = {}
    with whole_directory(parent) as staging:
        for name, shape in parameter_shapes(model).items():
            values, first, second = (torch.randn(shape) for _ in range(3))
            file, files[file] = write_parameter(staging, name, ParameterState(values, first, second.square_()))
        manifest = Manifest(
            kind="parameters",
            model=model,
            step=1000,
            group_steps=steps,
            samples_seen=0,
            seed=0,
            dataset_fingerprint=None,
            tokenizer_sha256=None,
            files=files,
            lineage=Lineage(operation="train"),
        )
        finish_directory(parent, manifest)


def expanded(size: str, parent: Path, child: Path) -> dict[str, float]:
    """Grows `parent` into `child`."""
    from stages.grow.expand import expand

    added = SIZES[size]
    before, start = peak_mb(), time.perf_counter()
    expand(parent, child, attention_tokens=added.attention_tokens, ffn_tokens=added.ffn_tokens)
    return taken(before, start)


def plainly_written(size: str, output: Path) -> dict[str, float]:
    """Draws, hashes and writes the tensors that `expanded` adds, in the simplest way, each into a raw file."""
    from model.config_growth import grow_config
    from model.growth import added_parameters
    from model.initialization import initial_parameter
    from model.tokenformer_config import tokenformer_config

    added = SIZES[size]
    before, start = peak_mb(), time.perf_counter()
    old = tokenformer_config(**added.shape)
    new = grow_config(old, attention_tokens=added.attention_tokens, ffn_tokens=added.ffn_tokens)
    output.mkdir()
    for name in added_parameters(old, new):
        values = initial_parameter(name, new, seed=0).flatten().numpy().data
        hashlib.sha256(values).hexdigest()
        with (output / name).open("wb") as file:
            file.write(values)
            file.flush()
            os.fsync(file.fileno())
    return taken(before, start)


def taken(before: float, start: float) -> dict[str, float]:
    """A run's time and its peak memory, and the peak before it, caused by Python and the imports."""
    return {"seconds": round(time.perf_counter() - start, 3), "peak_mb": peak_mb(), "peak_before_mb": before}


def peak_mb() -> float:
    """This process's peak memory, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def files(parent: Path, child: Path) -> dict[str, Any]:
    """How many of the child's files are links to the parent's, and the bytes of the others."""
    old, new = ({str(path.relative_to(top)): path.stat() for path in paths(top)} for top in (parent, child))
    parameters = [name for name in old if name.startswith("parameters/")]
    linked = [name for name in parameters if name in new and new[name].st_ino == old[name].st_ino]
    written = sum(stat.st_size for name, stat in new.items() if name not in linked)
    total = sum(stat.st_size for stat in new.values())
    return {
        "files_linked": len(linked),
        "files_rewritten": len(parameters) - len(linked),
        "files_new": len([name for name in new if name.startswith("parameters/") and name not in old]),
        "bytes_written": written,
        "bytes_of_parent": sum(stat.st_size for stat in old.values()),
        "bytes_of_child": total,
        "share_written": round(written / total, 4),
    }


def paths(directory: Path) -> list[Path]:
    """All files below `directory`."""
    return [path for path in directory.rglob("*") if path.is_file()]


def say(text: str) -> None:
    """Prints a progress line to standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
