"""Exports of checkpoints to Hugging Face Transformers."""
