"""A checkpoint's manifest: what the checkpoint holds and where it comes from, sealed. No torch here.

There are two kinds of checkpoint, with the same form of manifest. A `parameters` checkpoint has one safetensors file
per parameter; stages pass it on, and every tool reads it. An `engine` checkpoint has DeepSpeed's own sharded files, to
resume within a stage.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from model.errors import UserError
from model.precision import Precision
from model.shapes import ModelConfig, num_parameters
from model.strict import Strict
from stages.checkpoint.files import FileEntry, OnBytes, hash_file
from stages.checkpoint.lineage import History, ImportRecord, Lineage, TrainingCost, extended, hash_of
from stages.checkpoint.sealed import PlainPath, Sealed, check_files, read_sealed
from stages.spec import Offload
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME

FORMAT_VERSION = 3


class CheckpointError(UserError):
    """A checkpoint is missing, broken, or of the wrong kind. The message is one line for the user."""


class TextFacts(Strict):
    """What a model needs to read and write text, beside its tensors and its `tokenizer.json`."""

    context_length: PositiveInt | None = None
    """Tokens of a training sequence. The model has seen no position beyond it. None: not known."""

    begin_of_text: str | None = None
    """The special token before each text, if the model has one."""

    begin_of_text_id: NonNegativeInt | None = None

    end_of_text: str | None = None
    """The special token between documents."""

    end_of_text_id: NonNegativeInt | None = None

    tokenizer_vocab_size: PositiveInt | None = None
    """One more than the tokenizer's largest id. Embedding rows from there on are padding: no text has their ids."""

    source: str | None = None
    """The `data.source` of the training data. The manifest's `dataset_fingerprint` identifies its tokens."""


class Manifest(Sealed):
    """Everything about a checkpoint except its tensors."""

    format_version: int = FORMAT_VERSION
    kind: Literal["parameters", "engine"]
    model: ModelConfig
    """The model's configuration: sizes, and the tau and key ramp of every Pattention and generation."""

    step: NonNegativeInt
    """Optimizer steps done in the stage that wrote the checkpoint; 0 if it was just expanded or imported."""

    group_steps: dict[str, NonNegativeInt]
    """The optimizer's step for each parameter group (`generation-0-decay`, ...). Parameter groups missing here start
    at step 0 with moments of zero, whatever their files hold."""

    samples_seen: NonNegativeInt
    """Training sequences consumed since the start of the run: the position in the data."""

    seed: int
    dataset_fingerprint: str | None
    tokenizer_sha256: str | None
    """Hash of the tokenizer's file. A finished checkpoint holds the file itself, `tokenizer.json`."""

    text: TextFacts = TextFacts()
    """What else the model needs to read and write text."""

    classes: tuple[str, ...] = ()
    """Of a model of images: the names of its classes, in the order of its logits."""

    world_size: int | None = None
    """The number of ranks that wrote an engine checkpoint. Another number of ranks must convert it first."""

    zero_stage: int | None = None
    offload: Offload | None = None
    """Where the optimizer state was. An engine checkpoint can only be read with the same ZeRO stage and offload."""

    precision: Precision | None = None
    """The precision that the stage trains in. A checkpoint within a stage resumes in the same precision."""

    files: dict[PlainPath, FileEntry]
    """The checkpoint's files, by path within the directory."""

    lineage: Lineage

    @property
    def context_length(self) -> int | None:
        """Data tokens of a training sequence; None if not known."""
        return self.model.image.sequence_length if self.model.image else self.text.context_length

    def reject_options_of_text(self, options: Mapping[str, object]) -> None:
        """Raises UserError for the first option that has a value, if the model reads images."""
        if self.model.image and (given := [name for name, value in options.items() if value]):
            raise UserError(f"{given[0]} is for models of text; this is a model of images")

    @property
    def num_bytes(self) -> int:
        """The total size of the checkpoint's files."""
        return sum(entry.bytes for entry in self.files.values())


def history_of(manifest: Manifest) -> History:
    """The history of a checkpoint; if it is not known, one that starts with the tensors themselves, at unknown cost."""
    if manifest.lineage.history:
        return manifest.lineage.history
    tensors = {name: entry.sha256 for name, entry in manifest.files.items() if name != TOKENIZER_NAME}
    model = hash_of(manifest.model.model_dump(mode="json"))
    determined_by = {"tensors": hash_of(tensors), "model": model, "group_steps": manifest.group_steps}
    size, unknown = num_parameters(manifest.model), TrainingCost(complete=False)
    return extended((), "import", determined_by, num_parameters=size, cost=unknown)


def imported_manifest(
    model: ModelConfig, files: dict[str, FileEntry], text: TextFacts, imported: ImportRecord
) -> Manifest:
    """The manifest of a checkpoint without moments whose history starts with its tensors."""
    tokenizer = files.get(TOKENIZER_NAME)
    manifest = Manifest(
        kind="parameters",
        model=model,
        step=0,
        group_steps={},
        samples_seen=0,
        seed=0,
        dataset_fingerprint=None,
        tokenizer_sha256=tokenizer.sha256 if tokenizer else None,
        text=text,
        files=files,
        lineage=Lineage(operation="import", imported=imported),
    )
    lineage = manifest.lineage.model_copy(update={"history": history_of(manifest)})
    return manifest.model_copy(update={"lineage": lineage})


def parameter_file(name: str) -> str:
    """The file of parameter `name` in a `parameters` checkpoint, relative to its directory."""
    return f"parameters/{name}.safetensors"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of `directory`. Raises CheckpointError if there is none or it is damaged.

    Raises OSError if it cannot be read at the moment: an unavailable file server is not damage.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        what = "is not a checkpoint: it has no manifest.json" if directory.exists() else "does not exist"
        raise CheckpointError(f"{directory} {what}")
    return read_sealed(path, Manifest, FORMAT_VERSION, CheckpointError)


def read_file(directory: Path, manifest: Manifest, name: str) -> bytes:
    """The content of a file of a checkpoint. Raises CheckpointError if it is missing or damaged."""
    try:
        data = (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{directory} is broken: {name} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != manifest.files[name].sha256:
        raise CheckpointError(f"{directory} is broken: {name} does not have the hash in the manifest")
    return data


def manifest_hash(directory: Path) -> str:
    """sha256 of the manifest file, which identifies the checkpoint in the lineage of its children."""
    return hash_file(directory / MANIFEST_NAME)


def verify_checkpoint(directory: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> Manifest:
    """Checks that every file in the manifest exists with its size and, with `hashes`, its sha256. Returns the manifest.

    Raises CheckpointError that names the first file that is missing, differs, or is a link out of the directory.
    """
    manifest = read_manifest(directory)
    files = [(name, entry.bytes, entry.sha256) for name, entry in manifest.files.items()]
    check_files(directory, files, lambda what: CheckpointError(f"{directory} is broken: {what}"), hashes, on_bytes)
    return manifest
