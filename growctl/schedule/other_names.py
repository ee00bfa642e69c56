"""What other programs call the keys of a schedule: nanoGPT, GPT-NeoX, Transformers, torchtitan, DeepSpeed.

A key that is unknown here is more likely one of these than a misspelling of whatever key looks like it.
"""

_BY_KEY = {
    "name": ("run_name", "experiment_name"),
    "seed": ("random_seed",),
    "data.source": (
        *("dataset", "dataset_name", "dataset_path", "data_path", "train_file", "train_files", "train_data"),
        *("data.path", "data.file", "data.files", "data.name", "data.dir"),
    ),
    "data.shuffle_seed": ("data.shuffle", "shuffle", "shuffle_documents"),
    "data.mixture": ("datasets", "data_mix", "mix", "data.sources", "data.datasets", "data.mix", "data.weights"),
    "data.mixture.N.weight": tuple(
        f"data.mixture.N.{name}" for name in ("proportion", "probability", "ratio", "share", "sampling_weight")
    ),
    "data.mixture.N.epochs_at_most": tuple(
        f"data.mixture.N.{name}" for name in ("epochs", "max_epochs", "max_repetition_ratio", "repeat")
    ),
    "data.text_key": ("text_column", "text_field", "text_column_name"),
    "data.tokenizer": ("tokenizer_name", "tokenizer_path", "tokenizer_file", "vocab_file"),
    "data.validation_fraction": ("val_fraction", "val_split", "validation_split", "test_size"),
    "model.num_layers": ("n_layer", "n_layers", "num_hidden_layers", "depth", "model.layers"),
    "model.hidden_size": ("d_model", "n_embd", "hidden_dim", "embed_dim", "embedding_size", "model_dim"),
    "model.num_heads": ("n_head", "n_heads", "num_attention_heads"),
    "model.ffn_size": ("intermediate_size", "ffn_hidden_size", "d_ff", "ffn_dim"),
    "model.rotary_base": ("rope_theta", "rotary_emb_base"),
    "model.rotary_fraction": ("rotary_pct", "partial_rotary_factor"),
    "stages.N.num_layers": ("stages.N.add_layers", "stages.N.new_layers", "stages.N.num_blocks"),
    "stages.N.train_tokens": ("tokens", "num_tokens", "max_tokens", "total_tokens", "num_train_tokens", "token_budget"),
    "stages.N.train_steps": (
        *("steps", "max_steps", "num_steps", "total_steps", "training_steps", "train_iters", "max_iters"),
        *("num_train_steps", "iterations"),
    ),
    "training.sequence_length": (
        *("seq_len", "seq_length", "sequence_len", "max_seq_len", "context_length", "context_len", "context_size"),
        *("context", "window", "max_length"),
        *("block_size", "max_position_embeddings", "n_positions", "n_ctx"),
    ),
    "stages.N.until": ("end", "stop_at", "stages.N.share", "stages.N.fraction"),
    "training.ladder_tokens": ("training.total_tokens", "training.train_tokens", "training.num_tokens"),
    "training.ladder_flops": ("flops", "total_flops", "compute_budget", "train_flops", "flop_budget"),
    "training.batch_size": ("batch", "global_batch_size", "train_batch_size"),
    "training.batch_tokens": ("tokens_per_step", "tokens_per_batch", "total_batch_size"),
    "training.precision": ("dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"),
    "training.log_every": ("log_interval", "logging_steps", "log_steps"),
    "learning_rate.peak": ("lr", "learning_rate", "max_lr", "peak_lr"),
    "learning_rate.final": ("min_lr", "final_lr"),
    "learning_rate.shape": ("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_decay_style", "lr_schedule"),
    "learning_rate.warmup_steps": ("warmup", "warmup_iters", "num_warmup_steps", "lr_warmup_steps"),
    "optimizer.name": ("optim", "optimizer_name", "optimizer_type", "optimizer.type"),
    "optimizer.momentum": ("muon_momentum", "muon_beta"),
    "optimizer.muon_lr_scale": ("muon_lr", "muon_learning_rate", "matrix_lr"),
    "optimizer.weight_decay": ("weight_decay", "wd"),
    "optimizer.betas": ("beta1", "beta2", "adam_beta1", "adam_beta2"),
    "optimizer.epsilon": ("eps", "adam_eps", "adam_epsilon"),
    "optimizer.gradient_clipping": ("grad_clip", "clip_grad", "max_grad_norm", "gradient_clip_val"),
    "evaluation.every": ("eval_interval", "eval_steps", "eval_every", "val_interval"),
    "checkpoint.every": ("save_interval", "save_steps", "save_every", "checkpoint_interval"),
    "checkpoint.keep": ("save_total_limit", "keep_last"),
    "launch.devices": ("gpus", "num_gpus", "n_gpus", "ngpus", "num_devices", "nproc_per_node"),
    "launch.nodes": ("num_nodes", "nnodes"),
    "launch.activation_checkpointing": (
        *("gradient_checkpointing", "activation_checkpoint", "checkpoint_activations", "recompute"),
        *("recompute_granularity", "remat"),
    ),
    "launch.zero_stage": ("zero", "zero_optimization"),
    "launch.micro_batch_size": (
        *("micro_batch", "gradient_accumulation_steps", "grad_accum_steps", "per_device_train_batch_size"),
        *("train_micro_batch_size_per_gpu",),
    ),
}
"""The names that others use, by our dotted key; N stands for the number of an entry. A name with a dot is one in that
block only."""

OPTIONS = dict.fromkeys(("output_dir", "out_dir", "save_dir", "checkpoint_dir"), "--runs-dir")
"""What others write into a schedule and growctl takes as an option."""

_EPOCHS = (
    "growctl counts tokens, not epochs: set stages.N.train_tokens; `growctl plan` then shows how often a run reads its "
    "text"
)
_PARAMETERS = (
    "the size of a stage follows from attention_tokens, ffn_tokens and num_layers, or for a transformer from "
    "num_layers and hidden_size; `growctl init --params 350M` chooses them"
)
_ELSEWHERE = dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_epochs"), _EPOCHS) | dict.fromkeys(
    (f"{block}.{name}" for block in ("stages.N", "model") for name in ("params", "parameters", "num_parameters")),
    _PARAMETERS,
)
"""What to do instead, for names of what growctl has no key for."""

_OF_STAGES_TOO = (
    *("model.num_layers", "model.hidden_size", "model.ffn_size"),
    *("training.sequence_length", "training.batch_size", "training.batch_tokens"),
)
"""Keys that a stage has under the same name."""

OUR_KEYS = {name: key for key, names in _BY_KEY.items() for name in names}


def our_key(here: str, key: str) -> str | None:
    """What growctl calls the unknown `key` of the block `here`, as a dotted path or an option; None if not known.

    A stage has some keys of its own that `model` or `training` has, too.
    """
    name = key.lower().replace("-", "_")
    known = OUR_KEYS.get(f"{here}.{name}") or OUR_KEYS.get(name) or OPTIONS.get(name)
    if known and here == "stages.N" and known in _OF_STAGES_TOO:
        return f"{here}.{known.partition('.')[2]}"
    return known


def no_key_but(here: str, key: str) -> str | None:
    """What to do instead of setting the unknown `key` of the block `here`, if growctl has no such key; else None."""
    name = key.lower().replace("-", "_")
    if f"{here}.{name}" in OUR_KEYS:
        return None
    return _ELSEWHERE.get(f"{here}.{name}") or _ELSEWHERE.get(name)
