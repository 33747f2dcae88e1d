"""A day of watching healthy jobs of odd kinds: `python -m tests.bench.day [--jobs 500] [--hours 24]` prints what was called a fault.

The long form of `tests/watching/test_a_day.py`: the jobs are spread evenly over the kinds, and one more hangs after two hours.
Its exit code is 1 where a healthy job was called faulty, or the hung one was not.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

from tests.watching.day import Day
from tests.watching.healthy import KINDS, hangs_after_two_hours


async def run(directory: Path, jobs: int, hours: float) -> int:
    day = Day(directory, (*islice(cycle(KINDS.values()), jobs), hangs_after_two_hours))
    await day.begin()
    began = time.monotonic()
    for hour in range(int(hours)):
        await day.pass_time(timedelta(hours=1))
        faults = Counter(each.kind for each in day.jobs if each.result is not None)
        print(f"hour {hour + 1}, after {time.monotonic() - began:.0f} s: {dict(faults) or 'no fault called'}", flush=True)
    day.close()
    for each in day.jobs:
        if each.result is not None:
            print(f"{each.kind}: {each.result.summary}")
    faults = Counter(each.kind for each in day.jobs if each.result is not None)
    return 0 if faults == Counter({hangs_after_two_hours.__name__: 1}) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500, help="healthy jobs (default %(default)s)")
    parser.add_argument("--hours", type=float, default=24, help="simulated hours (default %(default)s)")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(asyncio.run(run(Path(directory), told.jobs, told.hours)))


if __name__ == "__main__":
    main()
