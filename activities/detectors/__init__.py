"""What counts as a fault: pure functions from what is seen of one attempt (`view.py`) to a symptom, or nothing.

Nothing here reads a clock, a file or Slurm; `verdict.py` asks every detector in the order of its table. Unknown is not gone:
a scheduler that does not answer, or a log that cannot be read, gives no verdict that rests on it. Called by `watching/`.
"""
