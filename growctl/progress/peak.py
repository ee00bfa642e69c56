"""The peak speed of the devices that a run trains on, for its MFU."""

import re

from growctl.schema.launch_block import DEVICES, HardwareBlock
from model.precision import Precision


def peak_flops(hardware: HardwareBlock, device: str, precision: Precision) -> float | None:
    """Peak FLOPs per second of one device: the schedule's figure, else that of the GPU called `device`.

    None if neither is known: an MFU against a guessed peak would be wrong.
    """
    known = HardwareBlock.model_validate({"device": known_device(device)})
    return hardware.peak_flops(precision) or known.peak_flops(precision)


def known_device(name: str) -> str | None:
    """The entry of DEVICES whose every part is a word of the GPU's `name`; None if there is none.

    The table's figures are those of SXM modules, so PCIe and NVL cards count as unknown.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & {"pcie", "nvl"}:
        return None
    return next((device for device in DEVICES if set(device.split("-")) <= words), None)
