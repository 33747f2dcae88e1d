"""A training job that needs no GPU: steps, checkpoints, resumes, and breaks in true words when its fault file says so.

Standard library only, run by path: under `srun` one process a rank (SLURM_PROCID), otherwise one process that plays all ranks.
Called by the demo, the end-to-end tests and the benches. Log lines follow Megatron-LM's training.py and checkpointing.py.

The fault file is JSON, one fault or a list, read before each step; removing it heals. Keys:
  kind          crash | hang | app_bug | slow | kill_self | segfault | nan
  node          only while this node is part of the job (default: always); its first rank is the one that breaks
  rank          the rank that breaks, where it is not the node's first
  at_iteration  not before this iteration (default: at once)
  attempts      only in these attempts, by restart count (default: in all)
  message       the last line of the traceback, after `[rankN]: `
  factor        slow: step time is this many times longer (default 4)
"""

import argparse
import json
import math
import os
import random
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

TRACKER = "latest_checkpointed_iteration.txt"
BATCH_SIZE = 512
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
APP_BUG = "ValueError: sample 18732 of shard 7 has 4097 tokens, but the model's maximum sequence length is 4096"
CUDA_HINTS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
NOISE = (
    " validation metrics | word error rate: 4.31 | character error rate: 1.07 | error_feedback/norm: 0.0132 |",
    "INFO:data.loader:shard 0017: retry 1/5 after transient error (Connection reset by peer): ok",
    "[error_tracker] 0 errors, 0 fatal errors, 0 exceptions since the last report",
    "WARNING:megatron.core.utils:fault tolerance: error injection is disabled",
)


@dataclass(frozen=True)
class World:
    """Which ranks this process plays, and where every rank runs."""

    ranks: tuple[int, ...]
    size: int
    nodes: tuple[str, ...]
    attempt: int

    def node_of(self, rank: int) -> str:
        """Block distribution, srun's default."""
        return self.nodes[rank * len(self.nodes) // self.size]

    def first_rank_on(self, node: str) -> int:
        return next(rank for rank in range(self.size) if self.node_of(rank) == node)

    @property
    def speaks(self) -> bool:
        return 0 in self.ranks


@dataclass(frozen=True)
class Fault:
    kind: str
    node: str | None = None
    rank: int | None = None
    at_iteration: int = 0
    attempts: tuple[int, ...] | None = None
    message: str = ""
    factor: float = 4.0

    def strikes(self, world: World, iteration: int) -> bool:
        here = self.node is None or self.node in world.nodes
        return here and iteration >= self.at_iteration and (self.attempts is None or world.attempt in self.attempts)

    def victim(self, world: World) -> int:
        if self.rank is not None:
            return self.rank
        return 0 if self.node is None else world.first_rank_on(self.node)


def say(text: str) -> None:
    print(text, flush=True)


def note(journal: Path | None, event: str, world: World) -> None:
    """Writes down when something happened, as the training itself knows it: what a bench measures from."""
    if journal is not None:
        line = {"at": time.time(), "event": event, "attempt": world.attempt, "rank": world.ranks[0]}
        with journal.open("a") as file:
            file.write(json.dumps(line) + "\n")  # one short write to a file opened for appending: ranks do not mix


# ------------------------------------------------------------------------------------------------ where am I


def expand_nodes(expression: str) -> tuple[str, ...]:
    """`node-[001-003,007],login` as names; enough of Slurm's hostlist syntax for one bracket a name."""
    names: list[str] = []
    for prefix, ranges, plain in re.findall(r"([^,\[]+)\[([^\]]+)\]|([^,]+)", expression):
        if plain:
            names.append(plain)
            continue
        for part in ranges.split(","):
            low, _, high = part.partition("-")
            names += [f"{prefix}{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return tuple(names)


def world_of(environment: dict[str, str]) -> World:
    nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost")
    size = int(environment.get("SLURM_NTASKS", len(nodes)))
    rank = environment.get("SLURM_PROCID")
    ranks = tuple(range(size)) if rank is None else (int(rank),)
    return World(ranks, size, nodes, int(environment.get("SLURM_RESTART_COUNT", "0")))


# ---------------------------------------------------------------------------------------------- checkpoints


def load_checkpoint(directory: Path, world: World) -> int:
    """The iteration of the newest complete checkpoint; 0 where there is none."""
    tracker = directory / TRACKER
    if not tracker.exists():
        if world.speaks:
            say(f"WARNING: could not find the metadata file {tracker}")
            say("    will not load any checkpoints and will start from random")
        return 0
    iteration = int(tracker.read_text())
    if world.speaks:
        say(f" loading checkpoint from {directory} at iteration {iteration}")
    for rank in world.ranks:
        saved = json.loads(_shard(directory, iteration, rank).read_text())
        if saved["iteration"] != iteration:
            raise RuntimeError(f"checkpoint {iteration} of rank {rank} holds iteration {saved['iteration']}")
    if world.speaks:
        say(f"  successfully loaded checkpoint from {directory} [ t 1/1, p 1/1 ] at iteration {iteration}")
    return iteration


def save_checkpoint(directory: Path, iteration: int, world: World, seconds: float) -> None:
    """Shards first, the tracker last and in one move: a checkpoint half written is never named."""
    if world.speaks:
        say(f"saving checkpoint at iteration {iteration:7d} to {directory} in torch format")
    time.sleep(seconds)
    for rank in world.ranks:
        shard = _shard(directory, iteration, rank)
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.write_text(json.dumps({"iteration": iteration, "rank": rank}))
    if world.speaks:
        while not all(_shard(directory, iteration, rank).exists() for rank in range(world.size)):
            time.sleep(0.02)  # torch.distributed.barrier()
        draft = directory / f"{TRACKER}.new"
        draft.write_text(str(iteration))
        draft.replace(directory / TRACKER)
        say(f"  successfully saved checkpoint from iteration {iteration:7d} to {directory}")


def _shard(directory: Path, iteration: int, rank: int) -> Path:
    return directory / f"iter_{iteration:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"


# --------------------------------------------------------------------------------------------------- faults


def faults_in(path: Path | None) -> list[Fault]:
    """What the fault file asks for; nothing where it is missing. It must be replaced in one move, never edited in place."""
    if path is None or not path.exists():
        return []
    content: Any = json.loads(path.read_text())
    entries = content if isinstance(content, list) else [content]
    return [Fault(**{**entry, "attempts": tuple(entry["attempts"])} if entry.get("attempts") else entry) for entry in entries]


def traceback_of(rank: int, message: str) -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/workspace/megatron/pretrain_gpt.py", line 298, in <module>',
        "    pretrain(",
        '  File "/workspace/megatron/megatron/training/training.py", line 724, in pretrain',
        "    iteration, num_floating_point_operations_so_far = train(",
        '  File "/workspace/megatron/megatron/training/training.py", line 2140, in train',
        "    train_step(forward_step_func, train_data_iterator, model, optimizer, opt_param_scheduler, config)",
        message,
        *(CUDA_HINTS if "CUDA error" in message else ()),
    ]
    return "\n".join(f"[rank{rank}]: {line}" for line in lines)


def watchdog_line(rank: int) -> str:
    now = datetime.now()
    return (
        f"[rank{rank}]:[E{now:%m%d %H:%M:%S.%f}000 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, "
        "NCCL version 2.26.2"
    )


def wait_for_the_end() -> NoReturn:
    """A collective that will never complete."""
    while True:
        time.sleep(3600)


def break_down(fault: Fault, world: World, journal: Path | None = None) -> NoReturn:
    """The end of this attempt, as the victim, its peers, or all of them in one process would show it."""
    victim = fault.victim(world)
    others = [rank for rank in world.ranks if rank != victim]
    if victim in world.ranks:
        note(journal, fault.kind, world)
    if fault.kind == "app_bug":
        for rank in world.ranks:
            say(traceback_of(rank, fault.message or APP_BUG))
        sys.exit(1)
    if fault.kind == "hang":
        wait_for_the_end()
    if victim in world.ranks:
        if fault.kind == "kill_self":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        say(traceback_of(victim, fault.message or ECC))
        for rank in others:
            say(watchdog_line(rank))
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda number, frame: _die_with_the_peer(world, number, frame))
    wait_for_the_end()


def _die_with_the_peer(world: World, number: int, frame: FrameType | None) -> NoReturn:
    for rank in world.ranks:
        say(watchdog_line(rank))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # so that srun sees a task that was terminated, not one that chose to exit
    wait_for_the_end()


# ------------------------------------------------------------------------------------------------- training


def train(options: argparse.Namespace, world: World) -> None:
    note(options.journal, "started", world)
    for rank in world.ranks:
        node, local = world.node_of(rank), rank - world.first_rank_on(world.node_of(rank))
        say(f"{node}:{os.getpid()}:{os.getpid()} [{local}] NCCL INFO ncclCommInitRank comm 0x5581c0ffee00 rank {rank} nranks {world.size} "
            f"cudaDev {local} nvmlDev {local} busId {0x1B + local:x}000 commId 0x8d1f7a - Init COMPLETE")  # fmt: skip
    directory: Path = options.checkpoints
    directory.mkdir(parents=True, exist_ok=True)
    start = load_checkpoint(directory, world)
    time.sleep(options.startup_seconds)
    saved = start
    for iteration in range(start + 1, options.iterations + 1):
        begin = time.monotonic()
        striking = [fault for fault in faults_in(options.fault_file) if fault.strikes(world, iteration)]
        for fault in striking:
            if fault.kind not in ("slow", "nan"):
                break_down(fault, world, options.journal)
        time.sleep(options.step_seconds * max([fault.factor for fault in striking if fault.kind == "slow"], default=1.0))
        if world.speaks:
            nan = any(fault.kind == "nan" for fault in striking)
            say(step_line(iteration, options.iterations, time.monotonic() - begin, nan))
            if options.noise and iteration % 3 == 0:
                say(NOISE[iteration // 3 % len(NOISE)])
        if iteration % options.checkpoint_every == 0:
            save_checkpoint(directory, iteration, world, options.checkpoint_seconds)
            saved = iteration
        if options.evaluate_every and iteration % options.evaluate_every == 0:
            evaluate(iteration, world, options.evaluate_seconds)
    if world.speaks:
        say(f"[after training is done] datetime: {datetime.now():%Y-%m-%d %H:%M:%S} ")
    if saved < options.iterations:
        save_checkpoint(directory, options.iterations, world, options.checkpoint_seconds)


def step_line(iteration: int, iterations: int, seconds: float, nan: bool) -> str:
    wobble = random.Random(iteration)  # noqa: S311 - the same loss in every attempt that passes here
    loss = "nan" if nan else f"{10.4 * iteration**-0.15 + wobble.uniform(-0.02, 0.02):.6E}"
    norm = "nan" if nan else f"{1.1 + wobble.uniform(-0.1, 0.1):.3f}"
    return (
        f" iteration {iteration:8d}/{iterations:8d} | consumed samples: {iteration * BATCH_SIZE:12d} | elapsed time per iteration (ms): "
        f"{seconds * 1000:.1f} | learning rate: 3.000000E-04 | global batch size: {BATCH_SIZE:5d} | lm loss: {loss} | loss scale: 1.0 | "
        f"grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations: {int(nan):3d} |"
    )


def evaluate(iteration: int, world: World, seconds: float) -> None:
    if world.speaks:
        say(f"Evaluating on {10 * BATCH_SIZE} samples")
        say("Evaluating iter 1/10")
    time.sleep(seconds)
    if world.speaks:
        loss = 10.6 * iteration**-0.15
        ppl = math.exp(loss)
        text = f" validation loss at iteration {iteration} on validation set | lm loss value: {loss:.6E} | lm loss PPL: {ppl:.6E} | "
        rule = "-" * (len(text) + 1)
        say(f"{rule}\n{text}\n{rule}")


def options_from(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train nothing, believably: steps, checkpoints, resumes, faults on demand.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory of checkpoints; training resumes from it")
    parser.add_argument("--iterations", type=int, default=100, help="last iteration (default %(default)s)")
    parser.add_argument("--step-seconds", type=float, default=0.5, help="seconds per iteration (default %(default)s)")
    parser.add_argument("--startup-seconds", type=float, default=0.0, help="seconds before the first iteration (default %(default)s)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="iterations between checkpoints (default %(default)s)")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.2, help="seconds a checkpoint takes (default %(default)s)")
    parser.add_argument("--evaluate-every", type=int, default=0, help="iterations between evaluations; 0: never (default)")
    parser.add_argument("--evaluate-seconds", type=float, default=1.0, help="seconds an evaluation takes (default %(default)s)")
    parser.add_argument("--fault-file", type=Path, help="JSON file that says what breaks; read before each step")
    parser.add_argument("--journal", type=Path, help="file that gets a JSON line when a rank starts and when it breaks")
    parser.add_argument("--noise", action="store_true", help="print harmless lines full of the word error")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(options_from(None), world_of(dict(os.environ)))
