"""Tests whether training gives the same bits twice: in one process, and in two that each choose kernels.

    python -m benchmarks.gpu.repeatability KERNELS [--trial]

is such a process: it prints a hash of the masters after a few steps, for two runs from the same seed.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.section import Section, choose_device
from benchmarks.gpu.settings import KERNELS, PAPER, TRIAL, Kernels, Settings
from benchmarks.gpu.training import PlainLoop, filled_model, random_batch
from model.tokenformer_config import tokenformer_config

STEPS = 3
RUNS = 2
PROCESSES = 2
"""Processes that choose their own kernels; a trial has one."""

ANEW = {"TRITON_CACHE_AUTOTUNING": "0", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
"""Makes a process choose kernels itself, like a run that resumes on another day."""


def measure(section: Section) -> None:
    """Measures one row per setting of kernels."""
    section.facts |= {"steps": STEPS, "layers": 2}
    for kernels in KERNELS[:1] if section.trial else KERNELS:
        if kernels not in section.without:
            section.case(partial(same_bits, section, kernels), kernels=kernels)


def same_bits(section: Section, kernels: Kernels) -> dict[str, Any]:
    """Compares two simultaneous processes with two runs each."""
    command = [sys.executable, "-m", "benchmarks.gpu.repeatability", kernels] + ["--trial"] * section.trial
    running = [
        subprocess.Popen(command, env=os.environ | ANEW, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(1 if section.trial else PROCESSES)
    ]
    hashes = []
    try:
        for process in running:
            out, told = process.communicate(timeout=max(1.0, section.left()))
            if process.returncode:
                raise RuntimeError((told.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
            hashes.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in running:
            process.kill()
    in_a_process = all(len(set(of_one)) == 1 for of_one in hashes)
    across = len({hash_of_run for of_one in hashes for hash_of_run in of_one}) == 1
    return {
        "hashes": hashes,
        "same_in_a_process": in_a_process,
        "same_across_processes": across,
        "says": f"the same bits in a process: {in_a_process}; in another: {across}",
    }


def hash_of_run(settings: Settings, kernels: Kernels, device: torch.device) -> str:
    """A hash of the masters after a few steps of a two-layer model of the ladder's second size, from seed 0."""
    attention_tokens, ffn_tokens = settings.sizes[settings.order[0]]
    shape = settings.shape | {"num_layers": 2}
    config = tokenformer_config(attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, **shape)
    loop = PlainLoop(filled_model(config, device), kernels)
    batch = random_batch(config.vocab_size, settings.rows // settings.context, settings.context, 1, device)
    for _ in range(STEPS):
        loop.step(batch)
    digest = hashlib.sha256()
    for master in loop.masters:
        digest.update(master.cpu().numpy().data)
    return digest.hexdigest()[:16]


def main() -> None:
    """Prints the hashes of this process as a JSON list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", choices=KERNELS)
    parser.add_argument("--trial", action="store_true")
    arguments = parser.parse_args()
    device = choose_device(arguments.trial)
    settings = TRIAL if arguments.trial else PAPER
    print(json.dumps([hash_of_run(settings, arguments.kernels, device) for _ in range(RUNS)]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
