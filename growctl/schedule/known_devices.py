"""The GPUs whose peak speed is known: the one table for plans, MFU and benchmarks.

The figures are those of SXM modules, or of the only form there is, without sparsity: half of what data sheets give with
it. A device that is missing here has no MFU, because one against a guessed peak would be wrong.
"""

import re
from typing import Literal, NamedTuple, get_args

from model.precision import Precision

Device = Literal["a100-40gb", "a100-80gb", "h100", "h200", "b200", "l40s", "rtx-4090"]


class KnownDevice(NamedTuple):
    """A GPU's figures."""

    bf16_flops: float
    """Peak dense FLOPs per second in bf16."""
    fp32_flops: float
    """Peak FLOPs per second in fp32 without TF32: training multiplies in true float32, also in its Triton kernels."""
    memory_bytes: int
    source: str
    """Where its vendor publishes them."""

    def peak_flops(self, precision: Precision) -> float:
        """Peak FLOPs per second of one device in `precision`."""
        return self.bf16_flops if precision == "bf16" else self.fp32_flops


_A100 = "https://www.nvidia.com/en-us/data-center/a100/"

DEVICES: dict[str, KnownDevice] = {
    "a100-40gb": KnownDevice(312e12, 19.5e12, 40 * 10**9, _A100),
    "a100-80gb": KnownDevice(312e12, 19.5e12, 80 * 10**9, _A100),
    "h100": KnownDevice(989e12, 67e12, 80 * 10**9, "https://www.nvidia.com/en-us/data-center/h100/"),
    "h200": KnownDevice(989e12, 67e12, 141 * 10**9, "https://www.nvidia.com/en-us/data-center/h200/"),
    "b200": KnownDevice(2250e12, 75e12, 180 * 10**9, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
    "l40s": KnownDevice(362e12, 91.6e12, 48 * 10**9, "https://www.nvidia.com/en-us/data-center/l40s/"),
    "rtx-4090": KnownDevice(
        165e12,
        82.6e12,
        24 * 10**9,
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
}

assert DEVICES.keys() == set(get_args(Device))


def known_device(name: str) -> KnownDevice | None:
    """The device of the table whose every part is a word of the GPU's `name`; None if there is none.

    PCIe and NVL cards are slower than SXM modules, and a MIG slice is a part of one, so they count as unknown.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & {"pcie", "nvl", "mig"}:
        return None
    return next((known for device, known in DEVICES.items() if set(device.split("-")) <= words), None)


def peak_flops(given: float | None, device: str, precision: Precision) -> float | None:
    """Peak FLOPs per second of one device: the schedule's `given` figure, else that of the GPU called `device`.

    None if neither is known. The device that the schedule names is not asked: it is what `plan` assumes, and training
    may run on another.
    """
    known = known_device(device)
    return given or (known and known.peak_flops(precision))
