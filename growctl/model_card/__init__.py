"""The model card that an exported checkpoint gets: what growctl knows of the model and of its run."""
