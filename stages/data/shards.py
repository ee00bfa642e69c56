"""The shards of a dataset: datatrove tokenises the documents of each, in this process or in several.

DocumentTokenizer from datatrove runs directly, without LocalPipelineExecutor: that logs to stderr from every process it
starts and replaces the log handlers of its caller.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from stages.checkpoint.files import hash_file, sync_path
from stages.data.bad_records import SkippedRecords
from stages.data.corpus import Advance, Corpus, DataError, SplitName, joined_hash
from stages.data.dataset import DatasetFile, DatasetSplit, range_hashes_of
from stages.data.progress import Progress
from stages.data.source_files import SourceFile
from stages.stage_dir import TOKENIZER_NAME

TOKENIZE_BATCH = 256
"""Documents that all cores together encode at a time."""


class ShardTask(NamedTuple):
    """One shard of one split, which any process can write."""

    split: SplitName
    number: int
    files: tuple[SourceFile, ...]
    corpus: Corpus
    directory: Path
    token_bytes: int


class Shard(NamedTuple):
    """One written shard of one split."""

    content: DatasetSplit
    skipped: SkippedRecords
    """The bad records in its files, of both splits."""


def write_shards(tasks: list[ShardTask], progress: Progress) -> Iterator[Shard]:
    """Writes every shard, in this process or in `workers` others, and yields their descriptions in order."""
    corpus = tasks[0].corpus
    advance = progress.meter(f"tokenising {tasks[0].split}", corpus.num_bytes)
    in_memory = "memory" in corpus.fs.protocol  # other processes cannot see it
    workers = 1 if in_memory else min(corpus.spec.workers, len(tasks))
    if workers == 1:
        yield from (_write_shard(task, advance) for task in tasks)
        return
    processes = get_context("spawn")
    held, lifeline = processes.Pipe(duplex=False)
    threads = max(1, (os.cpu_count() or 1) // workers)
    log_path = progress.log_path or Path(os.devnull)
    pool = ProcessPoolExecutor(workers, processes, _start_worker, (held, log_path, threads))
    with held, pool, lifeline:  # closed in reverse order: the lifeline first, before the pool waits for its workers
        try:
            for task, shard in zip(tasks, pool.map(_write_shard, tasks), strict=True):
                advance(sum(file.num_bytes for file in task.files))
                yield shard
        except BrokenProcessPool as error:
            raise DataError(
                f"data.workers: one of {workers} processes died, perhaps out of memory; try fewer"
            ) from error


def _start_worker(lifeline: Connection, log_path: Path, threads: int) -> None:
    """Sets up a worker process: limits its threads, sends its output to the log, and ends it when its parent ends."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def end_with_parent() -> None:
        lifeline.poll(None)  # nothing is ever sent, so this returns when the parent closes its end or dies
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _write_shard(task: ShardTask, advance: Advance = lambda num_bytes: None) -> Shard:
    """Tokenises the documents of one split in one shard's files, and syncs the written files to disk."""
    directory = task.directory / task.split
    num_bytes, text_hash = 0, joined_hash(())
    skipped = task.corpus.skipped()
    with _quiet_datatrove() as (DocumentTokenizer, DatatroveDocument):
        step = DocumentTokenizer(
            str(directory),
            str(task.directory / TOKENIZER_NAME),
            eos_token=task.corpus.spec.end_of_text,
            batch_size=TOKENIZE_BATCH,
            shuffle_documents=False,  # training reads windows in random order, evaluation spreads its windows
            save_final_metadata=False,
        )
        step.tokenizer.encode_special_tokens = True  # an end of text spelled out in a document is ordinary text
        step.token_size = task.token_bytes  # datatrove uses the number of entries, but ids may be larger

        def documents() -> Iterator[Any]:
            nonlocal num_bytes, text_hash
            for document in task.corpus.documents(task.files, task.split, advance, skipped):
                text_hash = joined_hash((text_hash, document.content))
                num_bytes += len(document.text.encode())
                yield DatatroveDocument(text=document.text, id=document.id)

        step.run(documents(), rank=task.number)
    files = []
    for ending in ("ds", "ds.index"):
        path = directory / f"{task.number:05d}.{ending}"
        os.rename(directory / f"{task.number:05d}_unshuffled.{ending}", path)
        if path.stat().st_size == 0:  # no document of this split
            path.unlink()
            continue
        sync_path(path)
        name = path.relative_to(task.directory).as_posix()
        files.append(DatasetFile(name=name, bytes=path.stat().st_size, sha256=hash_file(path)))
    if files:
        files.append(range_hashes_of(task.directory, files[0].name))
    split = DatasetSplit(
        num_tokens=files[0].bytes // task.token_bytes if files else 0,
        num_bytes=num_bytes,
        num_documents=files[1].bytes // 8 if files else 0,
        text_hash=text_hash.hex(),
        files=tuple(files),
    )
    return Shard(split, skipped.records)


@contextmanager
def _quiet_datatrove() -> Iterator[tuple[Any, Any]]:
    """datatrove's tokeniser and document class, without its logging: its import would replace loguru's handlers."""
    from loguru import logger

    vars(logger).update(add=lambda *_, **__: 0, remove=lambda *_: None)
    try:
        from datatrove.data import Document
        from datatrove.pipeline.tokens import DocumentTokenizer
    finally:
        del vars(logger)["add"], vars(logger)["remove"]
    logger.disable("datatrove")
    try:
        yield DocumentTokenizer, Document
    finally:
        logger.enable("datatrove")
