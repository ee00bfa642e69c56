"""Counts the bytes of text that tokens stand for, without decoding them where the tokenizer allows it."""

import json

import numpy as np
from tokenizers import Tokenizer

from stages.token_files.files import TokenFiles
from stages.token_files.mapped import Int64Array


def bytes_by_token(tokenizer: Tokenizer, vocab_size: int) -> Int64Array | None:
    """The UTF-8 bytes that each id decodes to: (vocab_size,), special tokens 0. None unless it is a byte-level
    tokenizer, whose tokens have the same bytes everywhere."""
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    if "ByteLevel" not in [decoder.get("type"), *(step.get("type") for step in decoder.get("decoders", []))]:
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for piece, number in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(piece)  # each character stands for one byte
    for number, added in tokenizer.get_added_tokens_decoder().items():
        lengths[number] = 0 if added.special else len(added.content.encode())
    return lengths


def decoded_bytes(tokenizer: Tokenizer, files: TokenFiles, first: int, stop: int) -> int:
    """The UTF-8 bytes of documents `first` to `stop`, decoded one by one."""
    documents = (files.document(number).tolist() for number in range(first, stop))
    return sum(len(tokenizer.decode(tokens).encode()) for tokens in documents)
