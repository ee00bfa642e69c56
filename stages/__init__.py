"""The work of one stage: data, engine, training, checkpoints, growing. Knows no commands or schedules."""
