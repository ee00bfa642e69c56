"""A program that loads an export as its users do and writes the logits of some token ids.

It runs in a process of its own: Transformers copies an export's code into a folder that it chooses when it is imported.
"""

import sys

import safetensors.torch
import torch


def main(directory: str, ids_file: str, logits_file: str) -> None:
    """Writes the float32 logits for the `input_ids` in `ids_file` to `logits_file`, both safetensors."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True, dtype=torch.float32)
    with torch.no_grad():
        logits = model(safetensors.torch.load_file(ids_file)["input_ids"]).logits
    safetensors.torch.save_file({"logits": logits.contiguous()}, logits_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
