"""`growctl inspect`: measures models on text, and shows gradients, activations, scores and the use of tokens."""
