"""The spec of the small source (conftest.py), what its dataset holds, and the texts of any source."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from stages.corpus.corpus import content_hash, is_validation, open_corpus
from stages.data.dataset import DatasetManifest, read_dataset_manifest, verify_dataset
from stages.data.spec import SPLITS, DataSpec


def spec_of(folder: Path | str, **values: object) -> DataSpec:
    settings = {"source": str(folder), "vocab_size": 300, "validation_fraction": 0.2, "workers": 1} | values
    return DataSpec.model_validate(settings)


def texts(spec: DataSpec) -> list[str]:
    """The documents of a source, in order."""
    found = open_corpus(spec)
    return [document.text for document in found.documents(found.files, None)]


def is_held_out(text: str, fraction: float = 0.2) -> bool:
    """Whether a document with that text is in the validation split."""
    return is_validation(content_hash(text.encode()), fraction)


def decoded(dataset: Path, split: str) -> list[str]:
    """The documents decoded from a split's tokens. Each must begin with its one beginning of text, if there is one, and
    end in its one end of text."""
    manifest = read_dataset_manifest(dataset)
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer.json"))
    texts = []
    for shard in sorted((dataset / split).glob("*.ds")):
        tokens = np.fromfile(shard, f"<u{manifest.token_bytes}")
        ends = np.fromfile(f"{shard}.index", "<u8")
        assert ends[-1] == len(tokens)
        for start, end in zip([0, *ends], ends, strict=False):
            *ids, last = tokens[start:end].tolist()
            assert last == manifest.end_of_text_id
            assert manifest.end_of_text_id not in ids
            if manifest.begin_of_text_id is not None:
                assert ids.pop(0) == manifest.begin_of_text_id
                assert manifest.begin_of_text_id not in ids
            texts.append(tokenizer.decode(ids, skip_special_tokens=False))
    return texts


def assert_holds_the_source(dataset: Path) -> DatasetManifest:
    """Asserts that every document of the source is in the dataset: in order, in its split, and counted correctly."""
    manifest = verify_dataset(dataset)
    corpus = open_corpus(manifest.spec)
    for split in SPLITS:
        expected = [document.text for document in corpus.documents(corpus.files, split)]
        assert expected
        assert decoded(dataset, split) == expected
        described = manifest.splits[split]
        assert described.num_documents == len(expected)
        assert described.num_bytes == sum(len(text.encode()) for text in expected)
        assert described.num_tokens * manifest.token_bytes == sum(shard.bytes for shard in described.shards)
    return manifest
