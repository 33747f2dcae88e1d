"""End to end: a real private Slurm, a real Temporal server, real `backstay` processes."""
