"""What training uses besides time: the energy and the memory of each rank's device and machine."""
