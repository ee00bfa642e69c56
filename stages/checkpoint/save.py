"""Saves a model that was made or trained outside growctl's runs as a checkpoint."""

from pathlib import Path

from torch import nn

from model.config import num_parameters
from model.language_model import LanguageModel, bare_model
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.disk_full import clean_when_full, require_space
from stages.checkpoint.files import link_or_copy
from stages.checkpoint.lineage import ImportRecord, Lineage
from stages.checkpoint.manifest import CheckpointError, Manifest, history_of, read_manifest
from stages.checkpoint.parameters import write_parameters
from stages.checkpoint.pretrained import load_tokenizer
from stages.counted import counted, plural
from stages.stage_dir import TOKENIZER_NAME


def save_model(model: nn.Module, directory: str | Path, *, text_of: str | Path) -> Manifest:
    """Writes `model` as the finished checkpoint `directory`, without moments, and returns its manifest.

    The tokenizer and the facts about its text are those of the checkpoint `text_of`. growctl treats the result as
    imported: its history starts with its tensors, at unknown cost. Checkpoints hold float32: float64 values are
    rounded. `model` may be wrapped, by `torch.compile` for example.

    Raises UserError if `model` is not a growctl model (`model.language_model.bare_model`), CheckpointError if it has
    values that are NaN or infinite in float32, if `directory` exists, or if `text_of` is not a checkpoint, its
    tokenizer is missing or damaged, or has ids that the model lacks, and DiskFull. Partial output is deleted.
    """
    directory, text_of = Path(directory), Path(text_of)
    source, model = read_manifest(text_of), bare_model(model)
    num_ids, rows = source.text.tokenizer_vocab_size or 0, model.config.vocab_size
    if num_ids > rows:
        raise CheckpointError(f"{text_of} has a tokenizer of {num_ids:,} token ids, but the model has only {rows:,}")
    if TOKENIZER_NAME in source.files:
        load_tokenizer(text_of, source)  # raises if it is damaged
    _check_values(model)
    num_bytes = 4 * num_parameters(model.config)
    with whole_directory(directory) as staging, clean_when_full(directory, num_bytes, again=""):
        require_space(directory, num_bytes, again="")
        files = write_parameters(staging, model.named_parameters())
        if TOKENIZER_NAME in source.files:
            link_or_copy(text_of / TOKENIZER_NAME, staging / TOKENIZER_NAME)
            files[TOKENIZER_NAME] = source.files[TOKENIZER_NAME]
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
            lineage=Lineage(operation="import", imported=ImportRecord(layout="model in memory")),
        )
        lineage = manifest.lineage.model_copy(update={"history": history_of(manifest)})
        return finish_directory(directory, manifest.model_copy(update={"lineage": lineage}))


def _check_values(model: LanguageModel) -> None:
    """Raises CheckpointError if a parameter has no values, or values that are not finite in float32."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise CheckpointError(f"the parameter {name} has no values: it is on the meta device")
        value = parameter.detach().float()
        if num_wrong := value.numel() - int(value.isfinite().sum()):
            values, are = counted(num_wrong, "value"), plural(num_wrong, "is", "are")
            raise CheckpointError(f"the parameter {name} has {values} that {are} NaN, or infinite in float32")
