"""Starting and stopping workers: on this machine, on the machines of a hostfile, in a SLURM job."""
