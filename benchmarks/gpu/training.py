"""Measures training steps of whole models: tokens per second, share of the GPU's peak, and memory.

The loop is plain PyTorch: a bf16 model, float32 masters with fused AdamW, clipping, no DeepSpeed.
Shapes: B micro-batch, T sequence.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.device import peak_flops
from benchmarks.gpu.section import Section
from benchmarks.gpu.settings import Kernels, Settings
from benchmarks.gpu.timing import allocated, spread, step_seconds, wait
from model.flops import training_flops_per_token
from model.initialization import build_model, initial_rms
from model.language_model import LanguageModel
from model.shapes import ModelConfig, num_parameters
from model.tokenformer_config import TokenformerConfig, tokenformer_config

KERNELS_SHOWN = 12
"""Number of kernels of a profile to record, the slowest first."""

Batch = list[tuple[Tensor, Tensor]]
"""Micro-batches of inputs and targets, each (B, T) int64."""


def measure(section: Section) -> None:
    """Measures every size with one setting of kernels, then profiles two of them."""
    kernels = section.options["kernels"]
    settings = section.settings
    section.facts |= {"kernels": kernels, "context": settings.context, "micro_batches": settings.micro_batches}
    for size in settings.order:
        section.case(partial(one_size, section, size, kernels), what="steps", size=size)
    for size in settings.order[:2]:
        section.case(partial(one_profile, section, size, kernels), what="profile", size=size)


def one_size(section: Section, size: str, kernels: Kernels) -> dict[str, Any]:
    """Training speed of a Tokenformer of the paper's ladder."""
    config = tokenformer(section.settings, size)
    return training_speed(section, config, kernels, section.settings.context, section.settings.micro_batches)


def training_speed(
    section: Section, config: ModelConfig, kernels: Kernels, context: int, micro_batches: int
) -> dict[str, Any]:
    """Seconds per step, tokens per second, MFU by growctl's FLOP count (attention as full T x T), and bytes."""
    forget_compiled()
    device, settings = section.device, section.settings
    loop = PlainLoop(filled_model(config, device), kernels)
    batch = random_batch(config.vocab_size, settings.rows // context, context, micro_batches, device)
    first_loss = loop.step(batch).item()
    step_seconds(partial(loop.step, batch), device, settings.warm_up_steps - 1)
    lasting = allocated(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = spread(step_seconds(partial(loop.step, batch), device, settings.steps))
    tokens = micro_batches * batch[0][0].numel()
    rate, peak = tokens / seconds["median"], peak_flops(device)
    flops = training_flops_per_token(config, context).total
    mfu = rate * flops / peak if peak else None
    last_loss = loop.step(batch).item()
    return {
        "kernels": kernels,
        "parameters": num_parameters(config),
        "micro_batch_size": settings.rows // context,
        "tokens_per_step": tokens,
        "step_seconds": seconds,
        "tokens_per_second": rate,
        "flops_per_token": flops,
        "mfu": mfu,
        "lasting_bytes": lasting,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "losses": [first_loss, last_loss],
        "compiled_graphs": compiled_graphs() if kernels == "compiled" else None,
        "says": f"{rate:,.0f} tokens/s" + (f", MFU {mfu:.1%}" if mfu else ""),
    }


def one_profile(section: Section, size: str, kernels: Kernels) -> dict[str, Any]:
    """The device's time by kernel in one step."""
    forget_compiled()
    device, settings = section.device, section.settings
    config = tokenformer(settings, size)
    loop = PlainLoop(filled_model(config, device), kernels)
    batch = random_batch(config.vocab_size, settings.rows // settings.context, settings.context, 1, device)
    step_seconds(partial(loop.step, batch), device, settings.warm_up_steps)
    with torch.profiler.profile() as profile:
        loop.step(batch)
        wait(device)
    on_gpu = device.type == "cuda"
    micros = {
        average.key: (average.self_device_time_total if on_gpu else average.self_cpu_time_total, average.count)
        for average in profile.key_averages()
        if not on_gpu
        or (str(average.device_type).endswith("CUDA") and not getattr(average, "is_user_annotation", False))
    }
    total = sum(time for time, _ in micros.values())
    if not total:
        raise RuntimeError("the profiler saw no kernel")
    longest = sorted(micros.items(), key=lambda entry: -entry[1][0])[:KERNELS_SHOWN]
    return {
        "microseconds": total,
        "longest": [
            {"kernel": name[:120], "calls": count, "share": round(time / total, 4)} for name, (time, count) in longest
        ],
        "says": f"{longest[0][0][:60]} takes {longest[0][1][0] / total:.0%}",
    }


class PlainLoop:
    """Trains a bf16 model with AdamW on float32 masters: only what every trainer has to do."""

    def __init__(self, model: LanguageModel, kernels: Kernels) -> None:
        """Converts a float32 model to bf16 in place."""
        self.masters = [parameter.detach().clone() for parameter in model.parameters()]
        self.model = model.to(torch.bfloat16)
        self.model.use_kernels(kernels)
        self.parameters: list[Tensor] = list(self.model.parameters())
        decayed, others = ([m for m in self.masters if (m.ndim >= 2) is matrices] for matrices in (True, False))
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def step(self, batch: Batch) -> Tensor:
        """Makes one update over all micro-batches and returns the mean loss, on the device."""
        total = torch.zeros((), device=batch[0][0].device)
        for input_ids_BT, targets_BT in batch:
            loss = self.model(input_ids_BT, targets_BT) / len(batch)
            loss.backward()
            total += loss.detach()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
        return total


def tokenformer(settings: Settings, size: str) -> TokenformerConfig:
    """A size of the ladder."""
    attention_tokens, ffn_tokens = settings.sizes[size]
    return tokenformer_config(attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, **settings.shape)


def filled_model(config: ModelConfig, device: torch.device, seed: int = 0) -> LanguageModel:
    """A float32 model initialised like growctl's, but on the device: on the host, large models take long."""
    model = build_model(config, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            else:
                parameter.normal_(0.0, initial_rms(name, config), generator=generator)
    return model


def random_batch(vocab_size: int, size: int, context: int, micro_batches: int, device: torch.device) -> Batch:
    """A random batch, the same at every call."""
    generator = torch.Generator(device=device).manual_seed(1)
    shape = (max(1, size), context + 1)
    drawn = [torch.randint(vocab_size, shape, generator=generator, device=device) for _ in range(micro_batches)]
    return [(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()) for tokens_BT in drawn]


def forget_compiled() -> None:
    """Clears torch.compile's caches: after several sizes of one function it would silently stop compiling."""
    torch.compiler.reset()
    _compile_counters().clear()


def compiled_graphs() -> dict[str, Any]:
    """How many graphs torch.compile has made since `forget_compiled`, and the reasons for graph breaks."""
    counters = _compile_counters()
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


def _compile_counters() -> dict[str, Any]:
    from torch._dynamo.utils import counters  # on use: it takes longer to import than all else here

    return counters
