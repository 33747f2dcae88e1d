"""Prints how fast a log is judged: a generated 512-rank log with one real failure in it, beside `grep -c -F -f` of the same words.

Run it: `python -m tests.bench.bench_scan [--gib 2] [--directory /tmp] [--attrsvc URL]`. It is not part of the test run.

With the address of an NVIDIA attribution service in deterministic mode, whose allowed root holds the directory, both judge a smaller
log too. The service first waits until a log is quiet, 10 s at least: what it needs for four lines is told apart."""

import argparse
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.diagnosis.signatures import Role, built_in, compiled
from activities.records import Judgement
from activities.scanning import scan

RANKS = 512
FAILURE = (
    "[rank317]: Traceback (most recent call last):\n"
    '[rank317]:   File "/data/run1/train.py", line 402, in train_loop\n'
    "[rank317]:     loss.backward()\n"
    "[rank317]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
)


def lines(dice: random.Random) -> Iterator[str]:
    """What a large job prints: mostly per-rank debug lines, some iterations, some NCCL chatter."""
    step = 0
    while True:
        step += 1
        clock = f"[2026-03-01 10:{step // 60 % 60:02d}:{step % 60:02d}]"
        yield (
            f"[rank511]: {clock} iteration {step:8d}/  500000 | consumed samples: {step * 2048:12d} | "
            f"elapsed time per iteration (ms): {5200 + dice.random() * 30:.1f} | learning rate: 1.1E-04 | "
            f"lm loss: {2 + dice.random() / 50:.6E} | grad norm: 0.2 |\n"
        )
        for rank in range(RANKS):
            yield (
                f"[rank{rank}]: {clock} DEBUG data: fetched shard {dice.randrange(10_000):05d} of {dice.choice(('web', 'code'))}, "
                f"{dice.randrange(4096)} sequences, queue depth {dice.randrange(16)}, {dice.random():.3f} s\n"
            )
        if step % 50 == 0:
            yield f"gpu-{step % 64:02d}:{dice.randrange(99999)}:4711 [3] NCCL INFO Channel 02/0 : 3[3] -> 4[4] via P2P/CUMEM\n"


def generate(path: Path, size_bytes: int) -> None:
    """Writes the log: one block of lines repeated with other numbers would compress, not read, differently; it is good enough."""
    dice = random.Random(7)
    source = lines(dice)
    block = "".join(next(source) for _ in range(400_000)).encode()
    with path.open("wb") as out:
        written = 0
        while written < size_bytes:
            written += out.write(block)
        out.write(FAILURE.encode())
        for rank in range(RANKS):
            if rank != 317:
                out.write(
                    f"[rank{rank}]:[E501 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] "
                    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8123, OpType=ALLREDUCE, "
                    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600086 milliseconds\n".encode()
                )


def literal_words() -> list[str]:
    """The longest plain piece of every pattern: what one would give to grep."""
    words = set()
    for row in built_in():
        if row.role in (Role.PRIMARY, Role.CASCADE, Role.TEARDOWN):
            for part in re.split(r"(?<!\\)\|", re.sub(r"\(\?i\)|\(\?:|[()^$]", "", row.pattern)):
                plain = max(re.split(r"\\.|\[[^\]]*\][?*+]?|\{[^}]*\}|.[?*]|[.+]", part), key=len)
                if len(plain) >= 6:
                    words.add(plain)
    return sorted(words)


def timed_grep(path: Path, words: list[str]) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(words))
        listed.flush()
        started = time.monotonic()
        subprocess.run(["grep", "-c", "-F", "-f", listed.name, str(path)], check=False, capture_output=True, env={"LC_ALL": "C"})
        return time.monotonic() - started


def timed_program(path: Path) -> tuple[float, float]:
    """Seconds, and seconds of processor, of `backstay diagnose` as a person runs it: imports, table and verdict."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "workers.commands.main", "diagnose", str(path)], check=True, capture_output=True)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed_attrsvc(url: str, path: Path) -> tuple[float, dict[str, Any]]:
    """Seconds from the terminal submission to the verdict of an attribution service, and its answer."""
    submission = {"log_path": str(path), "user": "bench", "job_id": uuid.uuid4().hex, "cycle_id": 0, "analysis_intent": "terminal"}
    with httpx.Client(base_url=url, timeout=httpx.Timeout(30, read=3600)) as client:
        started = time.monotonic()
        client.post("/logs", json=submission).raise_for_status()
        answer = client.get("/logs", params={"log_path": str(path), "wait": "true"}).raise_for_status().json()
        return time.monotonic() - started, dict(answer)


def beside_attrsvc(url: str, directory: Path, size_bytes: int, engine: Engine) -> None:
    """The same log judged by both, and by the service a log of a few lines: what it costs beyond its waiting."""
    path = directory / f"backstay-bench-{uuid.uuid4().hex[:8]}.log"
    small = path.with_suffix(".small.log")
    generate(path, size_bytes)
    small.write_text(FAILURE)
    size = path.stat().st_size
    try:
        print(f"\nbeside attrsvc, deterministic mode, {size / (1 << 20):.0f} MiB")
        started, processor = time.monotonic(), time.process_time()
        judgement = engine.judge(Signals(logs=(LogSource(path=path),)))
        _print("verdict", size, time.monotonic() - started, time.process_time() - processor)
        waiting, _ = timed_attrsvc(url, small)
        seconds, answer = timed_attrsvc(url, path)
        _print("attrsvc's verdict", size, seconds)
        print(f"{'  the same for four lines of log':<34}{waiting:8.2f} s   its waiting for a quiet log")
        _print("  beyond that", size, max(seconds - waiting, 0.001))
        _tell(judgement)
        result = answer.get("result") or {}
        primary = result.get("primary_failure") or {}
        told = (answer.get("recommendation") or {}).get("action")
        where = f"line {primary.get('line')}, rank {primary.get('rank')}"
        print(f"attrsvc: {answer.get('status')}, {told}, {primary.get('failure_class')}, {where}, {result.get('decision_basis')}")
    finally:
        path.unlink()
        small.unlink()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gib", type=float, default=2.0, help="size of the log in GiB")
    arguments.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where to write it")
    arguments.add_argument("--attrsvc", metavar="URL", help="an attribution service to judge the same log, in a smaller size")
    arguments.add_argument("--attrsvc-mib", type=float, default=64, help="that size in MiB, for both")
    told = arguments.parse_args()
    path = told.directory / "backstay-bench.log"
    generate(path, int(told.gib * (1 << 30)))
    size = path.stat().st_size
    try:
        words = literal_words()
        started = time.monotonic()
        engine = Engine()
        print(
            f"{'engine ready':<34}{time.monotonic() - started:8.2f} s   {len(built_in())} signatures, compiled or kept from an earlier run"
        )
        with path.open("rb") as stream:
            started = time.monotonic()
            while stream.read(scan.READ_BYTES):
                pass
        _print("read only (page cache)", size, time.monotonic() - started)
        matcher = compiled(built_in())
        started, processor = time.monotonic(), time.process_time()
        with path.open("rb") as stream:
            hits = sum(1 for _, block in scan.blocks(stream) for _ in matcher.scan(block))
        _print(f"all signatures ({hits} lines hit)", size, time.monotonic() - started, time.process_time() - processor)
        started, processor = time.monotonic(), time.process_time()
        judgement = engine.judge(Signals(logs=(LogSource(path=path),)))
        _print("verdict", size, time.monotonic() - started, time.process_time() - processor)
        _print("the program, start to verdict", size, *timed_program(path))
        _print(f"grep -c -F -f ({len(words)} words)", size, timed_grep(path, words))
        _tell(judgement)
    finally:
        path.unlink()
    if told.attrsvc:
        beside_attrsvc(told.attrsvc, told.directory, int(told.attrsvc_mib * (1 << 20)), engine)


def _print(what: str, size: int, seconds: float, processor: float | None = None) -> None:
    used = f"   {processor:6.2f} s of processor" if processor is not None else ""  # tells more than the clock where others work too
    print(f"{what:<34}{seconds:8.2f} s   {size / seconds / 1e9:6.2f} GB/s{used}")


def _tell(judgement: Judgement) -> None:
    primary = judgement.diagnosis.primary
    where = f"line {primary.line}, rank {primary.rank}" if primary else "no line"
    print(f"{judgement.diagnosis.cause}, {where}, {judgement.diagnosis.cascades} consequences")


if __name__ == "__main__":
    main()
