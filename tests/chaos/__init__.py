"""Our own processes die at random moments of a recovery, on real Slurm and real Temporal: still one act a fault."""
