"""Healthy jobs of odd kinds, as they write: each a generator that is told the seconds since its start and writes what is due.

Used by `day.py`. A new kind is a function and a row of `KINDS`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

HOUR = 3600.0
BUFFER = 8192

Life = Callable[["Job"], Iterator[None]]


class Job:
    """One job's files. `second` is the time since its start; what it writes bears the simulated cluster's time."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory / f"job-{number}"
        self.directory.mkdir()
        self.log = self.directory / "slurm.out"
        self.checkpoints = self.directory / "checkpoints"
        self.number = number
        self.second = 0.0
        self.now = datetime.min
        self._output: BinaryIO = self.log.open("ab", buffering=0)  # slurmstepd opens it once, whatever becomes of the name
        self._kept = b""

    def close(self) -> None:
        self._output.close()

    def say(self, *lines: str, buffered: bool = False) -> None:
        """To its log; `buffered`: once a buffer is full."""
        self._kept += "".join(f"{line}\n" for line in lines).encode()
        if buffered and len(self._kept) < BUFFER:
            return
        self._output.write(self._kept)
        self._kept = b""
        os.utime(self._output.fileno(), (self.now.timestamp(),) * 2)

    def write(self, path: Path, text: str = "weights") -> None:
        """To another file of its own."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (self.now.timestamp(),) * 2)

    def rename_log(self) -> None:
        """As logrotate's `create`: the job writes on into the renamed one."""
        self.log.rename(self.log.with_suffix(".out.1"))
        self.log.touch()

    def forget_renamed(self) -> None:
        """As logrotate's `compress`."""
        self.log.with_suffix(".out.1").unlink()

    def replace_log(self) -> None:
        self.log.unlink()
        self.log.touch()

    def empty_log(self) -> None:
        """As logrotate's `copytruncate`."""
        os.truncate(self.log, 0)

    def save(self, iteration: int) -> None:
        self.write(self.checkpoints / f"iter_{iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt")
        self.write(self.checkpoints / "latest_checkpointed_iteration.txt", str(iteration))


def step(number: int, seconds: float) -> str:
    return f" iteration {number:8d}/ 1000000 | elapsed time per iteration (ms): {seconds * 1000:.1f} | lm loss: 2.5E+00 | grad norm: 1.0 |"


def until(job: Job, second: float) -> Iterator[None]:
    while job.second < second:
        yield


def stepping(job: Job, until_second: float, first: int = 1, *, seconds: float = 50.0, buffered: bool = False) -> Iterator[None]:
    """Steps from now on; how many there were is what `first` of the next stretch should be."""
    began, done = job.second, 0
    while job.second < until_second:
        due = int((job.second - began) / seconds)
        job.say(*(step(first + number, seconds) for number in range(done, due)), buffered=buffered)
        done = due
        yield


def says_nothing(job: Job) -> Iterator[None]:
    yield


def prints_a_traceback_it_survives(job: Job) -> Iterator[None]:
    yield from until(job, 300)
    job.say("Traceback (most recent call last):", '  File "a.py", line 3, in <module>')
    job.say("RuntimeError: flash attention is not there; going on")


def logs_to_files_of_its_own(job: Job) -> Iterator[None]:
    job.say("loading modules")
    while True:
        job.write(job.directory / "out" / "rank_0.log", f"epoch {job.second}\n")
        yield from until(job, job.second + 60)


def begins_in_its_log_and_goes_on_in_its_own(job: Job) -> Iterator[None]:
    yield from stepping(job, 200)
    yield from logs_to_files_of_its_own(job)


def writes_checkpoints_only(job: Job) -> Iterator[None]:
    for number in range(1, 1000):
        job.save(number)
        yield from until(job, job.second + 2700)


def log_is_renamed(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 6):
        yield from stepping(job, (hour + 5) * HOUR, 1000 * hour + 1)
        job.rename_log()
        yield from stepping(job, (hour + 6) * HOUR, 1000 * hour + 901)


def log_is_renamed_and_compressed(job: Job) -> Iterator[None]:
    yield from stepping(job, 5 * HOUR)
    job.rename_log()
    yield from stepping(job, 6 * HOUR, 901)
    job.forget_renamed()
    yield from stepping(job, 1000 * HOUR, 2001)


def log_is_replaced(job: Job) -> Iterator[None]:
    yield from stepping(job, 4 * HOUR)
    job.replace_log()
    yield from stepping(job, 1000 * HOUR, 1001)


def log_is_deleted(job: Job) -> Iterator[None]:
    yield from stepping(job, 4 * HOUR)
    job.log.unlink()
    yield from stepping(job, 1000 * HOUR, 1001)


def log_is_emptied(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 6):
        yield from stepping(job, (hour + 6) * HOUR, 1000 * hour + 1)
        job.empty_log()


def output_is_buffered(job: Job) -> Iterator[None]:
    yield from stepping(job, 1000 * HOUR, buffered=True)


def output_of_slow_steps_is_buffered(job: Job) -> Iterator[None]:
    yield from stepping(job, 1000 * HOUR, seconds=90, buffered=True)


def steps_without_times_are_buffered(job: Job) -> Iterator[None]:
    for number in range(1, 100_000):
        job.say(f"step {number:6d} loss: 2.500 | learning rate 0.0001", buffered=True)
        yield from until(job, job.second + 50)


def evaluates_for_long(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 2):
        yield from stepping(job, (hour + 1) * HOUR, 1000 * hour + 1)
        job.say("Evaluating on 1024 samples")
        yield from until(job, (hour + 1) * HOUR + 3400)
        job.say(f"validation loss at iteration {1000 * hour + 120} | lm loss value: 2.4E+00 |")


def evaluates_in_its_own_words(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 4):
        yield from stepping(job, (hour + 2) * HOUR, 1000 * hour + 1)
        while job.second < (hour + 4) * HOUR:
            job.say(f"scored question {job.second:.0f}, 71 % right so far")
            yield from until(job, job.second + 120)


def saves_for_long(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 2):
        yield from stepping(job, (hour + 1) * HOUR, 1000 * hour + 1)
        job.say(f"saving checkpoint at iteration {1000 * hour + 120:7d} to /c in torch_dist format")
        yield from until(job, (hour + 1) * HOUR + 1600)
        job.save(1000 * hour + 120)
        job.say(f"  successfully saved checkpoint from iteration {1000 * hour + 120:7d} to /c")


def saves_for_long_without_a_word(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 2):
        yield from stepping(job, (hour + 1) * HOUR, 1000 * hour + 1)
        for shard in range(10):
            job.write(job.checkpoints / f"iter_{hour:07d}.tmp" / f"shard-{shard}.distcp")
            yield from until(job, job.second + 240)


def waits_at_its_start_for_data(job: Job) -> Iterator[None]:
    job.say("waiting at the barrier until the data are staged")
    yield from until(job, 7 * HOUR)
    yield from stepping(job, 1000 * HOUR)


def waits_at_a_barrier_for_data(job: Job) -> Iterator[None]:
    for hour in range(0, 1000, 5):
        yield from stepping(job, (hour + 2) * HOUR, 1000 * hour + 1)
        while job.second < (hour + 5) * HOUR:
            job.say("rank 0 waits at the barrier for shard 7")
            yield from until(job, job.second + 200)


def steps(job: Job) -> Iterator[None]:
    yield from stepping(job, 1000 * HOUR)


def hangs_after_two_hours(job: Job) -> Iterator[None]:
    """The one that is not healthy."""
    yield from stepping(job, 2 * HOUR)


KINDS: Mapping[str, Life] = {
    life.__name__: life
    for life in (
        steps, says_nothing, prints_a_traceback_it_survives, logs_to_files_of_its_own, begins_in_its_log_and_goes_on_in_its_own,
        writes_checkpoints_only, log_is_renamed, log_is_renamed_and_compressed, log_is_replaced, log_is_deleted, log_is_emptied,
        output_is_buffered, output_of_slow_steps_is_buffered, steps_without_times_are_buffered, evaluates_for_long,
        evaluates_in_its_own_words, saves_for_long, saves_for_long_without_a_word, waits_at_its_start_for_data,
        waits_at_a_barrier_for_data,
    )
}  # fmt: skip

NAMES_ITS_CHECKPOINTS = frozenset(life.__name__ for life in (writes_checkpoints_only, saves_for_long, saves_for_long_without_a_word))
