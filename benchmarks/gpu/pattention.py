"""Times every implementation of one bf16 Pattention against its lower bound, the six matrix products.

Shapes: M data tokens, D width, N parameter tokens.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.section import Section
from benchmarks.gpu.timing import in_a_line, interleaved, peak_bytes, raise_if_lost

Gradients = tuple[Tensor, ...]
"""The output and the gradients of input, keys and values."""

Form = Callable[["Inputs"], Gradients]

ALIGNED_ELEMENTS = 64
"""In `floor`, the rows of scores are padded to a multiple of this: other lengths are slower in cuBLAS."""

OUTPUTS = ("output", "input_gradient", "key_gradient", "value_gradient")


class Inputs(NamedTuple):
    """A Pattention's inputs, forward and backward."""

    x_MD: Tensor
    key_ND: Tensor
    value_ND: Tensor
    grad_MD: Tensor

    @property
    def tau(self) -> float:
        """The published tau, sqrt(N)."""
        return math.sqrt(len(self.key_ND))


def measure(section: Section) -> None:
    """Measures times and bytes at every size, then errors, which need more memory."""
    section.facts |= {"width": section.settings.width, "dtype": "bfloat16"}
    for what, work in (("times", times), ("errors", errors)):
        for num_tokens in section.settings.layer_tokens:
            section.case(partial(work, section, num_tokens), what=what, num_tokens=num_tokens)


def times(section: Section, num_tokens: int) -> dict[str, Any]:
    """The milliseconds and bytes of each form, and their ratios."""
    inputs, forms = inputs_and_forms(section, num_tokens)
    found = interleaved(
        {name: partial(form, inputs) for name, form in forms.items()}, section.device, section.settings.rounds
    )
    section.note_failures(found, num_tokens=num_tokens)
    working = [name for name in forms if "error" not in found[name]]
    for name in working:
        found[name]["peak_bytes"] = peak_bytes(partial(forms[name], inputs), section.device)
    for name in ("written_out", "ours"):
        if name in working:
            found[name]["saved_bytes"] = saved_bytes(forms[name], inputs)
    medians = {name: found[name]["milliseconds"]["median"] for name in working}
    return {
        "tokens": section.settings.rows,
        "forms": found,
        "over_floor": ratios(medians, "floor"),
        "written_out_over": {name: round(1 / ratio, 4) for name, ratio in ratios(medians, "written_out").items()},
        "floor_flops_per_second": 12 * inputs.x_MD.numel() * num_tokens / (1e-3 * medians["floor"]),
        "says": ", ".join(f"{name} {milliseconds:.3g}" for name, milliseconds in medians.items()) + " ms",
    }


def errors(section: Section, num_tokens: int) -> dict[str, Any]:
    """{form: {output: largest deviation from the float32 one, as a share of that one's largest number}}."""
    inputs, forms = inputs_and_forms(section, num_tokens)
    reference = written_out(Inputs(*(tensor.float() for tensor in inputs)))
    found: dict[str, dict[str, float] | str] = {}
    for name, form in forms.items():
        if name.startswith("floor"):
            continue
        try:
            found[name] = deviations(form(inputs), reference)
        except Exception as error:
            raise_if_lost(error)
            found[name] = in_a_line(error)
    worst = {name: max(of.values()) for name, of in found.items() if isinstance(of, dict)}
    return {"errors": found, "says": ", ".join(f"{name} {error:.2g}" for name, error in worst.items())}


def inputs_and_forms(section: Section, num_tokens: int) -> tuple[Inputs, dict[str, Form]]:
    """The forms to run; the least likely to work come last."""
    torch.compiler.reset()
    inputs = random_inputs(section.settings.rows, section.settings.width, num_tokens, section.device)
    mask_MN = inputs.x_MD.new_ones(len(inputs.x_MD), num_tokens)
    forms: dict[str, Form] = {"floor": products, "floor_unaligned": unaligned_products}
    forms |= {"written_out": partial(written_out, mask_MN=mask_MN)}
    forms |= {"ours": ours(inputs), "compiled": ours(inputs, compiled=True)}
    if "triton" not in section.without:
        forms["triton"] = triton
    return inputs, forms


def ratios(medians: dict[str, float], base: str) -> dict[str, float]:
    """The ratio of each other form to `base`."""
    return {name: round(value / medians[base], 4) for name, value in medians.items() if name != base}


def random_inputs(num_rows: int, width: int, num_tokens: int, device: torch.device, seed: int = 0) -> Inputs:
    """Inputs as at a run's start: a normalised input, freshly drawn keys and values; and an output gradient."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def drawn(rows: int, std: float) -> Tensor:
        return torch.randn(rows, width, generator=generator, device=device).mul_(std).to(torch.bfloat16)

    x_MD, grad_MD = drawn(num_rows, 1.0), drawn(num_rows, 1.0)
    return Inputs(x_MD, drawn(num_tokens, 0.02), drawn(num_tokens, 2 / 12 / math.sqrt(width)), grad_MD)


def written_out(inputs: Inputs, mask_MN: Tensor | None = None) -> Gradients:
    """The published formula operation by operation; like the official code, it can multiply by a mask of ones."""
    x_MD, key_ND, value_ND = (tensor.detach().requires_grad_() for tensor in inputs[:3])
    score_MN = x_MD @ key_ND.mT
    if mask_MN is not None:
        score_MN = score_MN * mask_MN
    score_MN = score_MN / torch.norm(score_MN, p=2, dim=-1, keepdim=True) * inputs.tau
    out_MD = F.gelu(score_MN) @ value_ND
    return out_MD.detach(), *torch.autograd.grad(out_MD, (x_MD, key_ND, value_ND), inputs.grad_MD)


def ours(inputs: Inputs, compiled: bool = False) -> Form:
    """growctl's layer with plain PyTorch operations, or compiled by torch.compile."""
    from model.pattention import Pattention
    from model.tokenformer_config import Generation, PattentionConfig

    num_tokens, width = inputs.key_ND.shape
    config = PattentionConfig(generations=(Generation(num_tokens=num_tokens),), tau=inputs.tau)
    layer = Pattention(config, (width, width), "l2_norm_gelu").to(inputs.x_MD.device, inputs.x_MD.dtype)
    key_ND, value_ND = layer.key_tokens["0"], layer.value_tokens["0"]
    with torch.no_grad():
        key_ND.copy_(inputs.key_ND)
        value_ND.copy_(inputs.value_ND)
    forward = torch.compile(layer, dynamic=False) if compiled else layer

    def form(inputs: Inputs) -> Gradients:
        x_MD = inputs.x_MD.detach().requires_grad_()
        out_MD = forward(x_MD[None])[0]
        return out_MD.detach(), *torch.autograd.grad(out_MD, (x_MD, key_ND, value_ND), inputs.grad_MD)

    return form


def triton(inputs: Inputs) -> Gradients:
    """The kernels of model/kernels/launch.py, called directly."""
    from model.kernels import launch as kernels

    out_MD, score_MN, norm_M = kernels.forward(*inputs[:3], inputs.tau)
    return out_MD, *kernels.backward(inputs.grad_MD, *inputs[:3], score_MN, norm_M, inputs.tau)


def products(inputs: Inputs) -> Gradients:
    """The two products forward and four backward and nothing else: no form can be faster, except by chance."""
    x_MD, key_ND, value_ND, grad_MD = inputs
    num_tokens = len(key_ND)
    score_MN, slope_MN = (scores_like(x_MD, num_tokens) for _ in range(2))
    torch.mm(x_MD, key_ND.mT, out=score_MN)
    out_MD = score_MN @ value_ND
    torch.mm(grad_MD, value_ND.mT, out=slope_MN)
    return out_MD, slope_MN @ key_ND, slope_MN.mT @ x_MD, score_MN.mT @ grad_MD


def unaligned_products(inputs: Inputs) -> Gradients:
    """The same without padding: rows of scores have the length of the number of parameter tokens."""
    x_MD, key_ND, value_ND, grad_MD = inputs
    score_MN, slope_MN = x_MD @ key_ND.mT, grad_MD @ value_ND.mT
    return score_MN @ value_ND, slope_MN @ key_ND, slope_MN.mT @ x_MD, score_MN.mT @ grad_MD


def scores_like(x_MD: Tensor, num_tokens: int) -> Tensor:
    """An empty matrix for (M, N) scores, with rows of aligned length."""
    length = math.ceil(num_tokens / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
    return x_MD.new_empty(len(x_MD), length)[:, :num_tokens]


def deviations(found: Gradients, reference: Gradients) -> dict[str, float]:
    """The largest relative deviation of each output; NaN if it contains one."""
    return {
        name: float(f"{((one.float() - other).abs().max() / other.abs().max()).item():.3g}")
        for name, one, other in zip(OUTPUTS, found, reference, strict=True)
    }


def saved_bytes(form: Form, inputs: Inputs) -> int:
    """Bytes kept for the backward pass besides input, keys and values."""
    given = {tensor.numel() for tensor in inputs}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.device == inputs.x_MD.device and tensor.numel() not in given and tensor.numel() > 1:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        form(inputs)
    return sum(saved.values())
