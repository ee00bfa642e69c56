"""What one stage does: data, engine, training, checkpoints, growing. Knows no commands or schedules."""
