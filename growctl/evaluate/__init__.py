"""`eval`, `generate` and `inspect` as commands see them, and the model card of an export."""
