"""What a schedule means: its stages, releases and controls, whether they fit together, and what they cost."""
