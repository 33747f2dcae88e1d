"""The batch script of the demo's training job, as text. Called by the demo, the end-to-end tests and the benches."""

import shlex
from collections.abc import Sequence
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")
"""The training program: standard library only, run by path."""


def batch_script(
    train_arguments: Sequence[str],
    *,
    nodes: int = 2,
    tasks_per_node: int = 2,
    name: str = "train",
    output: str | Path | None = None,
    comment: str = "",
    partition: str | None = None,
    requeue: bool = True,
    append: bool = False,
    label: bool = False,
    python: str = "python3",
    directives: Sequence[str] = (),
) -> str:
    """An sbatch script that runs `train.py` with one process per task.

    Args:
        train_arguments: options of `train.py`, such as `["--checkpoints", "/shared/run1"]`.
        output: the log, with Slurm's % patterns; default: Slurm's own.
        comment: opt-in, such as `backstay:mode=auto,checkpoints=/shared/run1`.
        label: `srun --label`: every line begins with its rank.
        directives: further `#SBATCH` options, such as `--exclude=node-004`."""
    options = [
        f"--job-name={name}",
        f"--nodes={nodes}",
        f"--ntasks-per-node={tasks_per_node}",
        "--requeue" if requeue else "--no-requeue",
        f"--open-mode={'append' if append else 'truncate'}",
        *([f"--output={output}"] if output is not None else []),
        *([f"--partition={partition}"] if partition is not None else []),
        *([f"--comment={_quoted(comment)}"] if comment else []),
        *directives,
    ]
    srun = ["srun", "--kill-on-bad-exit=1", *(["--label"] if label else []), python, "-u", str(TRAIN), *train_arguments]
    # exec: the job's exit code is srun's own, and a signal to the batch step reaches it.
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", f"exec {shlex.join(srun)}", ""])


def _quoted(comment: str) -> str:
    """sbatch eats double quotes in its directives and keeps them within single ones."""
    if "'" in comment:
        raise ValueError(f"sbatch cannot keep a single quote in a comment: {comment}")
    return f"'{comment}'"
