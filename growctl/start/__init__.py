"""The checkpoint that a run starts from: finding it, and what growctl must know of it."""
