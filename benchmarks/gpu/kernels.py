"""Checks the Triton kernels of model/kernels/launch.py and times each against its matrix product in cuBLAS.

Kernels without a product are compared with a copy of as many bytes. Shapes: M data tokens, D width, N parameter tokens.
"""

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.pattention import Inputs, deviations, random_inputs, ratios, triton, written_out
from benchmarks.gpu.section import Section
from benchmarks.gpu.timing import Call, interleaved, wait
from model.kernels import launch as kernels


def measure(section: Section) -> None:
    """Measures the errors of both fusions, with one data token fewer so that the last tile is partial; then times."""
    section.facts |= {"width": section.settings.width, "dtype": "bfloat16", "tokens": section.settings.rows}
    for num_tokens in section.settings.layer_tokens:
        for fusion in ("elementwise", "full"):
            section.case(partial(errors, section, num_tokens, fusion), what=f"errors {fusion}", num_tokens=num_tokens)
        section.case(partial(pieces, section, num_tokens), what="pieces", num_tokens=num_tokens)


def errors(section: Section, num_tokens: int, fusion: str) -> dict[str, Any]:
    """The largest deviations from float32, relative to its largest values; whether a second run repeats the bits."""
    inputs = random_inputs(section.settings.rows - 1, section.settings.width, num_tokens, section.device)
    if not kernels.usable(inputs.x_MD):
        raise RuntimeError("model.kernels.launch.usable() says that the kernels do not take these tensors")
    reference = written_out(Inputs(*(tensor.float() for tensor in inputs)))
    form = triton(fusion)
    found = form(inputs)
    of = deviations(found, reference)
    same = all(torch.equal(one, other) for one, other in zip(found, form(inputs), strict=True))
    wait(section.device)
    return {"errors": of, "same_bits_again": same, "says": f"{max(of.values()):.2g}"}


def pieces(section: Section, num_tokens: int) -> dict[str, Any]:
    """{piece: {"triton": times, "plain": times}}, {piece: triton over plain}, and the chosen tiles."""
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
        "tiles": tiles(),
        "says": ", ".join(f"{name} {ratio:.2f}" for name, ratio in over.items()) + " times the plain one",
    }


def calls(inputs: Inputs) -> dict[str, tuple[Call, Call]]:
    """{piece: (the fused kernel, the bare product or copy)}."""
    x_MD, key_ND, value_ND, grad_out_MD = inputs
    tau, num_tokens = inputs.tau, len(key_ND)
    score_MN, grad_MN, left_MN, target_MN = (kernels.score_matrix(x_MD, num_tokens) for _ in range(4))
    torch.mm(x_MD, key_ND.mT, out=score_MN)
    torch.mm(grad_out_MD, value_ND.mT, out=grad_MN)
    left_MN.copy_(score_MN)
    norm_M = torch.linalg.vector_norm(score_MN, dim=-1, dtype=torch.float32)
    overlap_M = torch.randn_like(norm_M)

    def copies(count: int) -> Call:
        return lambda: [target_MN.copy_(left_MN) for _ in range(count)]

    return {
        "scores": (
            lambda: kernels.scores(x_MD, key_ND),
            lambda: torch.mm(x_MD, key_ND.mT, out=target_MN),
        ),
        "weighted values": (
            lambda: kernels.weighted_values(score_MN, norm_M, value_ND, tau),
            lambda: left_MN @ value_ND,
        ),
        "normalised gradient": (
            lambda: kernels.normalised_gradient(grad_out_MD, value_ND, score_MN, norm_M, tau),
            lambda: torch.mm(grad_out_MD, value_ND.mT, out=target_MN),
        ),
        "input gradient": (
            lambda: kernels.input_gradient(score_MN, norm_M, grad_MN, overlap_M, key_ND, tau),
            lambda: left_MN @ key_ND,
        ),
        "key gradient": (
            lambda: kernels.key_gradient(score_MN, norm_M, grad_MN, overlap_M, x_MD, tau),
            lambda: left_MN.mT @ x_MD,
        ),
        "value gradient": (
            lambda: kernels.value_gradient(score_MN, norm_M, grad_out_MD, tau),
            lambda: left_MN.mT @ grad_out_MD,
        ),
        "elementwise forward, beside a copy": (lambda: kernels.gelu_of_normalised(score_MN, tau), copies(1)),
        "elementwise backward, beside two copies": (
            lambda: kernels.score_gradient_(grad_MN, score_MN, norm_M, tau),
            copies(2),
        ),
    }


def tiles() -> dict[str, dict[str, str]]:
    """{kernel: {tuning key: fastest tile}}."""
    from model.kernels import products as kernel_products

    tuned = {name: kernel for name, kernel in vars(kernel_products).items() if hasattr(kernel, "configs")}
    return {
        name: {" ".join(map(str, key)): str(config) for key, config in kernel.cache.items()}
        for name, kernel in tuned.items()
    }
