"""Fused Triton kernels of a Pattention, imported on first use."""
