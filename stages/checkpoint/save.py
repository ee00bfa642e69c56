"""Saves a model that was made or trained outside growctl's runs as a checkpoint."""

from pathlib import Path

from model.config import num_parameters
from model.language_model import LanguageModel
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import link_or_copy
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import CheckpointError, Manifest, history_of, read_manifest
from stages.checkpoint.parameters import write_parameters
from stages.stage_dir import TOKENIZER_NAME


def save_model(model: LanguageModel, directory: str | Path, *, text_of: str | Path) -> Manifest:
    """Writes `model` as the finished checkpoint `directory`, without moments, and returns its manifest.

    The tokenizer and the facts about its text are those of the checkpoint `text_of`. growctl treats the result as
    imported: its history starts with its tensors, at unknown cost.

    Raises CheckpointError if `directory` exists, or if `text_of` is not a checkpoint or its tokenizer has ids that the
    model lacks. Partial output is deleted.
    """
    directory, text_of = Path(directory), Path(text_of)
    source = read_manifest(text_of)
    num_ids, rows = source.text.tokenizer_vocab_size or 0, model.config.vocab_size
    if num_ids > rows:
        raise CheckpointError(f"{text_of} has a tokenizer of {num_ids:,} token ids, but the model has only {rows:,}")
    with whole_directory(directory) as staging:
        files = write_parameters(staging, model.named_parameters())
        if TOKENIZER_NAME in source.files:
            link_or_copy(text_of / TOKENIZER_NAME, staging / TOKENIZER_NAME)
            files[TOKENIZER_NAME] = source.files[TOKENIZER_NAME]
        details = {"layout": "model in memory", "num_parameters": num_parameters(model.config)}
        manifest = Manifest(
            kind="parameters",
            model=model.config,
            step=0,
            group_steps={},
            samples_seen=0,
            seed=0,
            dataset_fingerprint=None,
            tokenizer_sha256=source.tokenizer_sha256,
            text=source.text,
            files=files,
            lineage=Lineage(operation="import", details=details),
        )
        lineage = manifest.lineage.model_copy(update={"history": history_of(manifest)})
        return finish_directory(directory, manifest.model_copy(update={"lineage": lineage}))
