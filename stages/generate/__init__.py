"""Generating text with a finished model: sampling, the token loop, streaming."""
