"""Runs as SLURM jobs: submitting them, and the runner inside one."""
