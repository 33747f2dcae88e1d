"""Benches: they print figures and are no tests; each is run by hand from a checkout, as `python -m tests.bench.NAME`.

recovery    20 crashes on a private real Slurm with a real Temporal: from the fault's line to each milestone, beside plain requeue
history     events that a healthy job adds to its Temporal history while it is watched
watching    CPU, memory and Slurm queries of one worker that watches 1,000 jobs
watches     the same without Temporal, for work on the watch itself
bench_scan  how fast logs are scanned for failure signatures

They need root and Slurm's packages (`recovery`) and a `temporal` program (`recovery`, `history`, `watching`); each prints the
machine and its load beside its figures, and `--help` tells its options. What they print is compared with the goals by eye: a
machine that does other work makes every delay longer, so CPU time rather than elapsed time is given where that is the question.
"""
