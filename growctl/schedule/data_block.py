"""The `data` block of a schedule: the texts to train on, their tokenizer, and how documents become samples."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.json_schema import SkipJsonSchema

from growctl.schedule.fields import Block, Count, Duration, Size, Vocabulary
from model.strict import example
from stages.augmentation import Augmentation
from stages.corpus.location import in_one_spelling, one_spelling, texts_hash
from stages.data.spec import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_RETRY_SECONDS,
    DEFAULT_VOCAB_SIZE,
    DataSpec,
    SourceName,
    SourceSpec,
)
from stages.images.dataset import images_in_one_spelling
from stages.images.spec import ImageSpec
from stages.spec import Packing

MOST_SOURCES = 256
WhenExhausted = Literal["stop", "others"]
Weights = dict[SourceName, Annotated[float, Field(ge=0.0, le=1e9)]]


def _text_of_a_corpus(schema: dict[str, Any]) -> None:
    """A corpus stands for a name and a source in a file; growctl puts both in before it validates the entry."""
    schema["required"] = ["weight"]
    schema["anyOf"] = [{"required": ["corpus"]}, {"required": ["name", "source"]}]


class MixtureBlock(SourceSpec):
    """A source of a mixture: a text and its share of the training samples."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True, json_schema_extra=_text_of_a_corpus)

    name: Annotated[SourceName, example("books")]
    """Name of the source in `stages.N.mixture`, tables and reports; unique in the mixture. With `corpus`, this and
    `source` are optional."""
    weight: Annotated[float, Field(gt=0.0, le=1e9), example(0.3, "pure number")]
    """Weight of the source in the training samples and in every stage's validation loss, relative to the sum of all
    weights."""
    epochs_at_most: Annotated[float | None, Field(gt=0.0, le=1e6), example(4, "epochs")] = None
    """Maximum epochs of this source. `data.when_exhausted` decides what happens at the limit."""
    corpus: Annotated[str | None, Field(exclude=True), example("fineweb_edu")] = None
    """Name of a corpus (docs/your-data.md) or of your own file data/NAME.yaml. Either sets the keys that you leave out
    here, but not the tokenizer."""
    approximate_tokens: Annotated[Count | None, example("4.1M", "data tokens")] = None
    """Rough number of training tokens in the text. `plan` computes epochs from it until the dataset is prepared."""


class FollowedWeights(Block):
    """Weights from a step of a stage on. growctl writes them into a control, which follows its ladder's stages."""

    first_step: NonNegativeInt
    """Counted from the stage's first step."""
    weights: Weights


def shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """The share of each source, by its name. Decimal numbers keep their exact ratios; a weight of 0 is no source."""
    exact = {name: Fraction(str(weight)) for name, weight in weights.items() if weight}
    total = sum(exact.values(), Fraction(0))
    return {name: weight / total for name, weight in sorted(exact.items())}


class ImagesBlock(ImageSpec):
    """The images to train on, in place of a text."""

    augmentation: Augmentation = Augmentation()
    """What training does to an image before the model reads it; by default nothing."""

    def spec(self) -> ImageSpec:
        """What to prepare."""
        return ImageSpec(**self.model_dump(include=set(ImageSpec.model_fields)))


class DataBlock(DataSpec):
    """The text to train on and its tokenizer."""

    model_config = ConfigDict(allow_inf_nan=False)

    source: str | None = Field(  # type: ignore[assignment]  # None only beside `mixture`: `specs` are always whole
        None,
        min_length=1,
        examples=SourceSpec.model_fields["source"].examples,
        description=f"{SourceSpec.model_fields['source'].description} Set this, `mixture` or `images`.",
    )
    vocab_size: Annotated[Vocabulary | None, example(32_768, "entries")] = None
    """Entries of the byte-level BPE that growctl trains; 8192 by default. Not together with `tokenizer`."""

    cache_bytes: Annotated[Size, example("200GB", "bytes")] = DEFAULT_CACHE_BYTES
    """For a prepared dataset at a URL: the most that this machine caches on disk. Shards opened least recently are
    deleted first."""

    retry_seconds: Annotated[Duration, example("15m", "seconds")] = DEFAULT_RETRY_SECONDS
    """For a prepared dataset at a URL: how long growctl retries after a network fault before training stops with an
    error. It does not retry if access is denied."""

    approximate_tokens: Annotated[Count | None, example("4.1M", "data tokens")] = None
    """Rough number of training tokens in the text. `plan` computes epochs from it until the dataset is prepared."""

    document_mask: Annotated[bool, example(True)] = False
    """Whether a token attends only to its own document, with positions counted from the document's start. By default it
    attends to everything before it in its sequence, as in the Tokenformer paper."""

    packing: Annotated[Packing, example("best_fit")] = "concatenate"
    """How documents become training sequences. concatenate: all documents form one stream, which is cut every
    `sequence_length` tokens. best_fit: documents are placed so that few are cut and nothing is padded."""

    attended_tokens: Annotated[
        SkipJsonSchema[dict[str, PositiveFloat] | None], Field(exclude_if=lambda tokens: tokens is None)
    ] = None
    """With `document_mask`: the tokens that a token attends to, on average, by context. growctl writes it; leave it
    out."""

    tokenizer_vocab_size: Annotated[
        SkipJsonSchema[PositiveInt | None], Field(exclude_if=lambda entries: entries is None)
    ] = None
    """Entries of the tokenizer of a source that is a prepared dataset. growctl writes it; leave it out."""

    mixture: Annotated[list[MixtureBlock], Field(max_length=MOST_SOURCES)] = []
    """Several texts to train on, in place of `source`, each with a weight. They share one `tokenizer`; by default,
    growctl trains it on equal parts of all of them."""

    images: Annotated[ImagesBlock | None, Field(exclude_if=lambda images: images is None)] = None
    """Images to train on, in place of a text. The other keys of `data` are for texts; leave them out."""

    when_exhausted: Annotated[WhenExhausted, example("others")] = "stop"
    """What happens when a run needs more of a source than its `epochs_at_most` allows. stop: the run does not start.
    others: the other sources take over, in proportion to their weights."""

    def attended_at(self, context: int) -> float:
        """The tokens that a token attends to at that context, on average; all of them if nothing else is known."""
        return (self.attended_tokens or {}).get(str(context), context)

    @property
    def specs(self) -> list[DataSpec]:
        """The texts to prepare: this one, or every source of the mixture; none for images."""
        if self.images:
            return []
        if not self.mixture:
            return [self]
        shared = self.model_dump(include=DataSpec.model_fields.keys() - SourceSpec.model_fields.keys())
        texts = [SourceSpec(**each.model_dump(include=set(SourceSpec.model_fields))) for each in self.mixture]
        if self.tokenizer is None and len(texts) > 1:
            shared["shared_tokenizer"] = texts_hash(texts)
        return [DataSpec(**shared, **text.model_dump()) for text in texts]

    @property
    def base_weights(self) -> dict[str, float]:
        """The weight of each source of the mixture, by its name."""
        return {source.name: source.weight for source in self.mixture}

    def in_one_spelling(self) -> Self:
        """The same block with the spelling of local paths that all names of the same files share."""
        if self.images:
            return self.model_copy(update={"images": images_in_one_spelling(self.images)})
        if not self.mixture:
            return in_one_spelling(self)
        mixture = [each.model_copy(update={"source": one_spelling(each.source)}) for each in self.mixture]
        tokenizer = in_one_spelling(self.specs[0]).tokenizer
        return self.model_copy(update={"mixture": mixture, "tokenizer": tokenizer})

    @property
    def num_tokens(self) -> int | None:
        """Entries of the tokenizer, or classes of images; None if `tokenizer` names one for a text: the schedule does
        not give its size."""
        if self.images:
            return self.images.num_classes
        return self.tokenizer_vocab_size or (None if self.tokenizer else self.vocab_size or DEFAULT_VOCAB_SIZE)
