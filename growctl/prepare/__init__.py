"""Where `growctl prepare` works: on this machine, as SLURM jobs, or on a Ray cluster."""
