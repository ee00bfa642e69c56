"""Text from a source, tokenised into datasets."""
