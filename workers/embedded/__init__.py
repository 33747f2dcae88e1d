"""Services for a machine that has none: a Temporal server on a database file, a private Slurm of a few nodes."""
