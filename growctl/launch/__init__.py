"""Starting and stopping workers here, on the machines of a hostfile and in SLURM jobs; executors of `prepare`."""
