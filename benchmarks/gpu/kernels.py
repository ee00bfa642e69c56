"""Checks the Triton kernels of model/kernels/launch.py and times each against a copy of as many bytes.

Shapes: M data tokens, D width, N parameter tokens.
"""

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.pattention import Inputs, deviations, random_inputs, ratios, triton, written_out
from benchmarks.gpu.section import Section
from benchmarks.gpu.timing import Call, interleaved, wait
from model.kernels import launch as kernels


def measure(section: Section) -> None:
    """Measures the errors, then times."""
    section.facts |= {"width": section.settings.width, "dtype": "bfloat16", "tokens": section.settings.rows}
    for num_tokens in section.settings.layer_tokens:
        section.case(partial(errors, section, num_tokens), what="errors", num_tokens=num_tokens)
        section.case(partial(pieces, section, num_tokens), what="pieces", num_tokens=num_tokens)


def errors(section: Section, num_tokens: int) -> dict[str, Any]:
    """The largest deviations from float32, relative to its largest values; whether a second run repeats the bits."""
    inputs = random_inputs(section.settings.rows, section.settings.width, num_tokens, section.device)
    if not kernels.usable(inputs.x_MD):
        raise RuntimeError("model.kernels.launch.usable() says that the kernels do not take these tensors")
    reference = written_out(Inputs(*(tensor.float() for tensor in inputs)))
    found = triton(inputs)
    of = deviations(found, reference)
    same = all(torch.equal(one, other) for one, other in zip(found, triton(inputs), strict=True))
    wait(section.device)
    return {"errors": of, "same_bits_again": same, "says": f"{max(of.values()):.2g}"}


def pieces(section: Section, num_tokens: int) -> dict[str, Any]:
    """{piece: {"triton": times, "plain": times}}, {piece: triton over plain}."""
    inputs = random_inputs(section.settings.rows, section.settings.width, num_tokens, section.device)
    found = {
        name: interleaved({"triton": fused, "plain": plain}, section.device, section.settings.rounds)
        for name, (fused, plain) in calls(inputs).items()
    }
    for name, kinds in found.items():
        section.note_failures(kinds, piece=name, num_tokens=num_tokens)
    medians = {
        name: {kind: of["milliseconds"]["median"] for kind, of in kinds.items() if "error" not in of}
        for name, kinds in found.items()
    }
    over = {name: ratios(kinds, "plain")["triton"] for name, kinds in medians.items() if len(kinds) == 2}
    return {
        "pieces": found,
        "over_plain": over,
        "says": ", ".join(f"{name} {ratio:.2f}" for name, ratio in over.items()) + " times the plain one",
    }


def calls(inputs: Inputs) -> dict[str, tuple[Call, Call]]:
    """{piece: (the kernel, the bare copy)}."""
    x_MD, key_ND, value_ND, grad_out_MD = inputs
    tau, num_tokens = inputs.tau, len(key_ND)
    score_MN, grad_MN, left_MN, target_MN = (kernels.score_matrix(x_MD, num_tokens) for _ in range(4))
    torch.mm(x_MD, key_ND.mT, out=score_MN)
    torch.mm(grad_out_MD, value_ND.mT, out=grad_MN)
    left_MN.copy_(score_MN)
    norm_M = torch.linalg.vector_norm(score_MN, dim=-1, dtype=torch.float32)

    def copies(count: int) -> Call:
        return lambda: [target_MN.copy_(left_MN) for _ in range(count)]

    return {
        "elementwise forward, beside a copy": (lambda: kernels.gelu_of_normalised(score_MN, tau), copies(1)),
        "elementwise backward, beside two copies": (
            lambda: kernels.score_gradient_(grad_MN, score_MN, norm_M, tau),
            copies(2),
        ),
    }
