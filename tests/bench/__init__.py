"""Benches: they print figures and are no tests; each is run by hand from a checkout, as `python -m tests.bench.NAME`.

recovery    20 crashes on a private real Slurm with a real Temporal: from the fault's line to each milestone, beside plain requeue
history     events that a healthy job adds to its Temporal history while it is watched
watching    CPU, memory and Slurm queries of one worker that watches 1,000 jobs
watches     the same without Temporal, for work on the watch itself
bench_scan  how fast logs are scanned for failure signatures and judged

They need root and Slurm's packages (`recovery`) and a `temporal` program (`recovery`, `history`, `watching`); each prints the
machine and its load beside its figures, and `--help` tells its options. What they print is compared with the goals by eye: a
machine that does other work makes every delay longer, so CPU time rather than elapsed time is given where that is the question.

Printed on 2 virtual cores (x86_64, Python 3.11, Slurm 22.05.8, Temporal server 1.32.0, embedded), shipped configuration:

- recovery: 20 crashes, median (95th percentile) from the fault's line: recommendation 1.9 s (2.3), Slurm action 2.1 s (2.5), new
  attempt running 4.1 s (5.0), recovered 8.1 s (10.1); plain requeue on the same cluster meanwhile: running after 121.7 s (121.7).
- history: 0 events in what amounts to 30 minutes of a healthy job, a hand-over to another worker included.
- watching: 1,000 jobs, a line every 5 to 10 s each: 16 to 22 % of one core, 270 to 340 MB, one squeue every 5 s for all; the
  Temporal server beside it 18 to 24 %. The upper figures are with Slurm's own JSON to be parsed.
- bench_scan: 2 GiB of 512 ranks, while other programs kept both cores busy: the signatures alone 2.8 s, the verdict 2.9 to 5.1 s, the
  program from its start 5.1 to 7.2 s (5.3 to 5.6 s of processor, imports included); `grep -c -F -f` of the same words 17 to 26 s.

The speed of such a machine varies by half with what its neighbours do; figures of two runs differ as much.
"""
