"""Slurm behind one protocol (`scheduler.py`): commands, parsing of every version's JSON, the shared poll, a simulation."""
