"""Evaluation of a finished checkpoint: loss on text, benchmark tasks, long contexts."""
