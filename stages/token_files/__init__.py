"""Files of tokens that other programs write: Megatron and GPT-NeoX (`.bin`, `.idx`), datatrove (`.ds`)."""
