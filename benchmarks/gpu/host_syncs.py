"""Finds where a training step makes the host wait for the GPU, in the plain loop and in growctl's worker.

Two methods find the waits: torch's own warnings (`set_sync_debug_mode`), with the lines that cause them; and the
profiler's count of CUDA calls that wait, which also includes waits inside libraries.
"""

import hashlib
import re
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.section import Section
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.timing import in_a_line, raise_if_lost, wait
from benchmarks.gpu.training import PlainLoop, filled_model, random_batch, tokenformer
from benchmarks.gpu.zero import join_alone, train_spec
from stages.data.dataset import (
    MANIFEST_NAME,
    DatasetFile,
    DatasetManifest,
    DatasetSplit,
    dataset_fingerprint,
    dataset_manifest_bytes,
)
from stages.data.spec import SPLITS, DataSpec
from stages.train.worker import Worker

WARM_UP_STEPS = 3
STEPS = 3
REPOSITORY = Path(__file__).resolve().parent.parent.parent
WAITING = re.compile(r"cuda(Device|Stream|Event)Synchronize")


def measure(section: Section) -> None:
    """Measures both loops."""
    section.facts |= {"watched_steps": STEPS, "micro_batches": section.settings.micro_batches}
    section.case(partial(plain_loop, section), loop="plain")
    section.case(partial(worker, section), loop="worker")


def plain_loop(section: Section) -> dict[str, Any]:
    """The waits of the model itself, without growctl's trainer."""
    settings = section.settings
    config = tokenformer(settings, settings.order[0])
    loop = PlainLoop(filled_model(config, section.device), "eager")
    size = settings.rows // settings.context
    batch = random_batch(config.vocab_size, size, settings.context, settings.micro_batches, section.device)
    return syncs(lambda _: loop.step(batch), section.device)


def worker(section: Section) -> dict[str, Any]:
    """The waits of a run's training, including data, without logging, evaluation and checkpoints."""
    settings = section.settings
    config = tokenformer(settings, settings.order[0])
    join_alone()
    with tempfile.TemporaryDirectory(prefix="growctl-data-") as folder:
        random_dataset(Path(folder), settings)
        spec = train_spec(config, "eager", settings.rows // settings.context, settings.context, settings.micro_batches)
        spec = spec.model_copy(update={"dataset": folder, "directory": folder, "stage": "host-syncs"})
        trainer = Worker(spec, section.device)
        engine = trainer.start_engine()
        with closing(trainer.data.micro_batches(0)) as micro_batches:
            return syncs(lambda step: trainer.train_step(engine, step, micro_batches), section.device)


def syncs(step: Callable[[int], Any], device: torch.device) -> dict[str, Any]:
    """The waits in `STEPS` calls of `step`, which gets the step's number."""
    for number in range(WARM_UP_STEPS):
        step(number)
    wait(device)
    with watched(device) as places:
        for number in range(WARM_UP_STEPS, WARM_UP_STEPS + STEPS):
            step(number)
    calls = waiting_calls(step, device) if device.type == "cuda" else None
    total = sum(places.values())
    return {
        "warnings": total,
        "places": [{"place": place, "count": count} for place, count in places.most_common()],
        "waiting_calls": calls,
        "says": f"{total} warnings in {STEPS} steps; waiting CUDA calls: {calls}",
    }


def waiting_calls(step: Callable[[int], Any], device: torch.device) -> dict[str, int] | str:
    """{CUDA function that waits: calls in `STEPS` steps}, or the reason why the profiler failed."""
    try:
        with torch.profiler.profile() as profile:
            for number in range(WARM_UP_STEPS + STEPS, WARM_UP_STEPS + 2 * STEPS):
                step(number)
        counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("cu")}
    except RuntimeError as error:
        raise_if_lost(error)
        return in_a_line(error)
    if not counts:
        return "the profiler saw no CUDA call"
    # The count includes one wait of the profiler itself, at its end.
    return {name: count for name, count in counts.items() if WAITING.search(name)}


@contextmanager
def watched(device: torch.device) -> Iterator[Counter[str]]:
    """Counts torch's warnings about waits, by the line that causes them."""
    places: Counter[str] = Counter()

    def count(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            places[_place()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count  # catch_warnings restores it
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    """The innermost line of growctl that led here, and the innermost line of all if that is in a library."""
    frames = [frame for frame in traceback.extract_stack() if Path(frame.filename) != Path(__file__)]
    frames = [frame for frame in frames if not frame.filename.endswith(("warnings.py", "traceback.py"))]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(REPOSITORY) and "/." not in frame.filename]
    shown = [own[-1], frames[-1]] if own and own[-1] != frames[-1] else frames[-1:]
    return " > ".join(f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in shown)


def random_dataset(folder: Path, settings: Settings) -> None:
    """Writes a dataset like those of `growctl prepare`, with random tokens and an empty tokenizer."""
    generator = np.random.default_rng(0)
    tokenizer = b"{}"
    (folder / "tokenizer.json").write_bytes(tokenizer)
    num_tokens, vocab_size = 200 * (settings.context + 1), settings.shape["vocab_size"]
    splits = {}
    for split in SPLITS:
        (folder / split).mkdir()
        name = f"{split}/00000.ds"
        content = generator.integers(vocab_size, size=num_tokens, dtype=np.uint16).tobytes()
        (folder / name).write_bytes(content)
        file = DatasetFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        splits[split] = DatasetSplit(num_tokens=num_tokens, num_bytes=num_tokens, num_documents=1, files=(file,))
    digest = hashlib.sha256(tokenizer).hexdigest()
    manifest = DatasetManifest(
        spec=DataSpec(source="random tokens"),
        vocab_size=vocab_size,
        token_bytes=2,
        tokenizer_sha256=digest,
        end_of_text_id=0,
        splits=splits,
        fingerprint=dataset_fingerprint(digest, splits),
    )
    (folder / MANIFEST_NAME).write_bytes(dataset_manifest_bytes(manifest))
