"""What a checkpoint knows about the text that it was trained on, beside its tokenizer. No torch here."""

from pydantic import NonNegativeInt, PositiveInt

from model.strict import Strict


class TextFacts(Strict):
    """What a model needs to read and write text, beside its tensors and its `tokenizer.json`."""

    context_length: PositiveInt | None = None
    """Tokens of a training sequence. The model has seen no position beyond it. None: not known."""

    end_of_text: str | None = None
    """The special token between documents."""

    end_of_text_id: NonNegativeInt | None = None

    tokenizer_vocab_size: PositiveInt | None = None
    """One more than the tokenizer's largest id. Embedding rows from there on are padding: no text has their ids."""

    source: str | None = None
    """The `data.source` of the training data. The manifest's `dataset_fingerprint` identifies its tokens."""
