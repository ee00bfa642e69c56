"""What lies on disk: runs as their ledgers record them, status, checkpoints shown and verified, cleaning."""
