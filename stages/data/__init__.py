"""Datasets: text from a source, tokenized into shards, read back as batches."""
