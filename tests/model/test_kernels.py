"""The fused kernels match the reference, in Triton's interpreter and, if there is one, on a GPU.

Shapes: M data tokens, D width of the input, N parameter tokens, O width of the output. The interpreter's tiles are
16 to 32 wide.
"""

import importlib.util
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from torch import Tensor

from model.kernels import launch as kernels
from tests.model import kernel_probe
from tests.model.growths import formula

pytestmark = pytest.mark.trains

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
SIZES = (40, 45, 20, 35)
Results = tuple[Tensor, ...]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
Call = Callable[..., Results]

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@contextmanager
def process(**environment: str) -> Iterator[ProcessPoolExecutor]:
    """A fresh process: this one may have imported triton already, which fixes whether triton interprets."""
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        patch.delenv("TRITON_INTERPRET", raising=False)
        for name, value in ({"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | environment).items():
            patch.setenv(name, value)
        yield pool


@pytest.fixture(scope="module", params=DEVICES)
def call(request) -> Iterator[Callable[..., Any]]:
    """Calls a function of model/kernels/launch.py on each device there is; on the CPU, interpreted."""
    triton, numpy = Version(version("triton")), Version(version("numpy"))
    if request.param == "cpu" and triton < Version("3.7") and numpy >= Version("2.4"):
        pytest.skip("triton before 3.7 interprets no loops with numpy 2.4 or newer")
    with process(**({"TRITON_INTERPRET": "1"} if request.param == "cpu" else {})) as pool:
        yield lambda function, *arguments: pool.submit(kernel_probe.run, request.param, function, *arguments).result()


def inputs(sizes: tuple[int, int, int, int], dtype: torch.dtype = torch.float32, seed: int = 0) -> Inputs:
    """x, keys, values and the output's gradient, for (M, N, D, O)."""
    generator = torch.Generator().manual_seed(seed)
    m, n, d, o = sizes
    x, key, value, grad_out = (torch.randn(s, generator=generator).to(dtype) for s in ((m, d), (n, d), (n, o), (m, o)))
    return x, key, value, grad_out


def written_out(x: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, tau: float, dtype: torch.dtype) -> Results:
    """Output and gradients of x, keys and values by autograd, operation by operation in `dtype`."""
    x, key, value = (tensor.to(dtype).requires_grad_() for tensor in (x, key, value))
    out = formula(x, key, value, tau, "l2_norm_gelu")
    return out.detach(), *torch.autograd.grad(out, (x, key, value), grad_out.to(dtype))


def fused(call: Call, x: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, tau: float) -> Results:
    """The same by the kernels."""
    out, score, norm = call("forward", x, key, value, tau)
    return out, *call("backward", grad_out, x, key, value, score, norm, tau)


def errors(results: Results, reference: Results) -> Tensor:
    """How far each is from its reference, relative to that."""
    pairs = zip(results, reference, strict=True)
    return torch.stack([(a.double() - b).norm() / b.norm() for a, b in pairs])


@needs_triton
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [(SIZES, torch.float32), ((20, 140, 40, 18), torch.float32), (SIZES, torch.bfloat16), (SIZES, torch.float16)],
)
def test_output_and_gradients_are_the_written_out_forms_up_to_a_few_roundings_and_always_the_same(call, sizes, dtype):
    tensors = inputs(sizes, dtype)
    results, again = (fused(call, *tensors, 6.7) for _ in range(2))
    assert all(map(torch.equal, results, again))
    assert [result.dtype for result in results] == [dtype] * 4
    tolerance = 1e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert (errors(results, written_out(*tensors, 6.7, torch.float64)) < tolerance).all()


@needs_triton
@settings(max_examples=8)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 35), st.integers(1, 35)),
    tau=st.floats(0.1, 50),
    seed=st.integers(0, 1000),
)
def test_kernels_match_the_written_out_form_for_any_sizes_and_tau(call, sizes, tau, seed):
    x, key, value, grad_out = tensors = inputs(sizes, seed=seed)
    norm_M = (x @ key.mT).norm(dim=1)
    steepness = (tau * (grad_out @ value.mT).norm(dim=1) / norm_M).norm()
    # Sums may cancel (with one token, all of dA does), so the error is relative to the largest possible value.
    scales = tau * value.norm(), steepness * key.norm(), steepness * x.norm(), tau * grad_out.norm()
    condition = (x.norm(dim=1) * key.norm() / norm_M).max()
    results, reference = fused(call, *tensors, tau), written_out(*tensors, tau, torch.float64)
    for result, expected, scale in zip(results, reference, scales, strict=True):
        assert (result - expected).norm() < 1e-6 * condition * len(x) ** 0.5 * scale


@needs_triton
def test_a_row_of_zero_scores_gives_zeros_and_contributes_no_gradient(call):
    x, key, value, grad_out = inputs(SIZES)
    x[7] = 0
    out, grad_x, *gradients = fused(call, x, key, value, grad_out, 6.7)
    assert not torch.cat((out[7], grad_x[7])).any()
    others = torch.arange(40) != 7
    reference = written_out(x[others], key, value, grad_out[others], 6.7, torch.float64)
    assert (errors((out[others], grad_x[others], *gradients), reference) < 1e-6).all()


@needs_triton
def test_the_backward_pass_accepts_zero_padded_and_contiguous_scores(call):
    x, key, value, grad_out = inputs((40, 20, 20, 35))
    reference = written_out(x, key, value, grad_out, 6.7, torch.float64)[1:]
    _, score, norm = call("forward", x, key, value, 6.7)
    assert score.stride() == (64, 1)
    assert not score.as_strided((40, 44), (64, 1), 20).any()
    torch.testing.assert_close(norm, (x @ key.mT).norm(dim=1))
    for saved in (score, score.contiguous()):
        assert (errors(call("backward", grad_out, x, key, value, saved, norm, 6.7), reference) < 1e-6).all()


@needs_triton
def test_kernels_compile_for_hopper_and_new_taus_or_rows_do_not_recompile(tmp_path):
    pytest.importorskip("triton.backends.nvidia", reason="triton has no compiler for NVIDIA GPUs here")
    calls = [(512, 2140, 768, 512, 46.0), (300, 2140, 768, 512, 46.5)]
    with process(TRITON_CACHE_DIR=str(tmp_path)) as pool:
        compiled = pool.submit(kernel_probe.compile_for_hopper, calls).result()
    assert compiled == {"gelu_rows": 1, "score_gradient_rows": 1}


X, KEY, VALUE, GRAD_OUT = inputs((6, 5, 4, 3))
SCORE, NORM = X @ KEY.mT, torch.ones(6)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("forward", (X, KEY, VALUE[:4], 1.0), r"value_NO: \(4, 3\) does not match N = 5"),
        ("forward", (X, KEY.double(), VALUE, 1.0), "key_ND: torch.float64 on cpu does not match torch.float32 on cpu"),
        ("forward", (X.double(), KEY.double(), VALUE.double(), 1.0), "x_MD: torch.float64 on cpu does not match"),
        ("forward", (X.mT.contiguous().mT, KEY, VALUE, 1.0), r"x_MD: \(6, 4\) is not a contiguous"),
        ("forward", (X[:0], KEY, VALUE, 1.0), r"x_MD: \(0, 4\) is not a contiguous, non-empty matrix"),
        ("backward", (GRAD_OUT, X, KEY, VALUE, SCORE[:, :4], NORM, 1.0), r"score_MN: torch.float32 \(6, 4\) is not"),
        ("backward", (GRAD_OUT, X, KEY, VALUE, SCORE.mT.contiguous().mT, NORM, 1.0), r"score_MN: strides \(1, 6\)"),
    ],
)
def test_arguments_that_do_not_match_are_rejected(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(kernels, function)(*arguments)


def test_without_triton_the_module_loads_but_is_not_usable():
    program = "import sys; sys.modules['triton'] = None; import torch; from model.kernels import launch; "
    command = [sys.executable, "-c", f"{program} print(launch.usable(torch.ones(1, 1)))"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


@needs_triton
def test_the_kernels_are_usable_if_triton_interprets_and_import_triton_only_then(call):
    with process() as pool:
        for dtype in (torch.float32, torch.float64):
            assert not pool.submit(kernels.usable, torch.ones(1, 1, dtype=dtype)).result()
        assert not pool.submit(kernel_probe.has_triton).result()
    assert call("usable", torch.ones(1, 1, dtype=torch.bfloat16)) is True
    assert call("usable", torch.ones(1, 1, dtype=torch.float64)) is False


@needs_triton
def test_models_have_the_same_loss_and_gradients_with_triton_kernels():
    if importlib.util.find_spec("liger_kernel") is None:
        pytest.skip("liger-kernel is not installed")
    with process(TRITON_INTERPRET="1") as pool:
        found = pool.submit(kernel_probe.train_models).result()
    for name, ((loss, gradients, calls), (triton_loss, triton_gradients, triton_calls)) in found.items():
        assert not calls
        assert triton_calls == (["backward"] * 5 + ["forward"] * 5 if name == "l2_norm_gelu" else [])
        torch.testing.assert_close(triton_loss, loss, rtol=1e-5, atol=0)
        torch.testing.assert_close(triton_gradients, gradients, rtol=1e-4, atol=1e-6)
