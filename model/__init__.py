"""PyTorch modules, growth as tensor functions, FLOP and parameter formulas: no files, YAML or DeepSpeed."""
