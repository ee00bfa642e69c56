"""The number formats of training and comparing, and the kinds of device.

Imports no torch.
"""

from typing import Literal

Precision = Literal["bf16", "fp32"]
"""What a model trains in: bf16 with float32 master weights, or float32."""

RequestedPrecision = Literal["auto", Precision]
"""What a schedule asks for. auto: bf16 where the device is fast at it (stages/engine/devices.py)."""

BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4}
"""The width of one element."""

ComparisonDtype = Literal["float64", "float32"]
"""What `growctl verify` runs two models in."""

DeviceType = Literal["cuda", "cpu"]
"""What ranks train on, as torch calls it: AMD's GPUs are `cuda` too."""
