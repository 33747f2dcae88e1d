"""Order, waits and state: one workflow per watched job, one per Slurm cluster."""
