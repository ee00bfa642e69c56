"""The models that a checkpoint is compared with: new, untrained models of its size. Imports no torch."""

from model.config import (
    BlockConfig,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    published_tau,
)


def same_size(config: TokenformerConfig, function: ScoreFunction) -> TokenformerConfig:
    """A Tokenformer with as many parameter tokens in every layer, all of one generation, under `function`.

    tau is the published one for that score function. A grown model's own taus and ramps belong to its weights.
    """

    def fresh(pattention: PattentionConfig) -> PattentionConfig:
        generations = (Generation(num_tokens=pattention.num_tokens),)
        return PattentionConfig(generations=generations, tau=published_tau(function, pattention.num_tokens))

    blocks = tuple(
        BlockConfig(**{name: fresh(pattention) for name, pattention in block.pattentions().items()})
        for block in config.blocks
    )
    return config.model_copy(update={"score_function": function, "blocks": blocks})
