"""What one more piece of log, or one more checkpoint, changes of what is known of an attempt."""

from functools import partial

import pytest

from activities.checkpoints import CheckpointMark
from activities.configuration import WatchSection
from activities.logs.progress import ProgressReader
from activities.records import Cursor
from activities.watching.folding import with_checkpoint, with_piece
from activities.watching.pieces import PieceReader
from tests.builders import ECC_LINE, NOON, after
from tests.watching.world import FewSignatures, step

RESUMED = "successfully loaded checkpoint from /c [ t 0 ] at iteration 5"
ASKED_FOR = "slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 ***"


def known_after(*pieces: tuple[str, ...], is_live: bool = True) -> Cursor:
    """What is known after pieces of log that came a minute apart."""
    reader = PieceReader(partial(ProgressReader, None), FewSignatures())
    known = Cursor()
    for minute, lines in enumerate(pieces):
        data = "".join(f"{line}\n" for line in lines).encode()
        at = after(60.0 * minute)
        known = with_piece(known, reader.read(data, at, at, with_fatal=True, is_live=is_live), WatchSection(), started_at=NOON)
    return known


def a_checkpoint(iteration: int, at: float) -> CheckpointMark:
    return CheckpointMark(iteration=iteration, written_at=after(at), path=f"/c/iter_{iteration:07d}")


FATAL_THEN: tuple[tuple[str, tuple[tuple[str, ...], ...], bool], ...] = (
    ("silence", ((ECC_LINE,),), True),
    ("one more step, of a rank that had finished it", ((ECC_LINE,), (step(2),)), True),
    ("two more steps", ((ECC_LINE,), (step(2),), (step(3),)), False),
    ("what other ranks held back", ((ECC_LINE,), (step(0), step(1))), True),
    (
        "held back by one rank after the other",
        ((step(9), ECC_LINE), (step(7), step(8), step(9)), (step(6), step(7), step(8), step(9))),
        True,
    ),
    ("one step, printed by two ranks", ((ECC_LINE,), (step(2),), (step(2),)), True),
    ("held back, then steps that go on", ((step(9), ECC_LINE), (step(7), step(8), step(9)), (step(10), step(11))), False),
    ("a counter that begins anew", ((step(99), ECC_LINE), (step(1),), (step(2),)), False),
    ("one that begins anew, in bursts", ((step(99), ECC_LINE), (step(1), step(2), step(3)), (step(4), step(5))), False),
    ("a burst of all that a rank ever did", ((step(99), ECC_LINE), tuple(map(step, range(100))), tuple(map(step, range(99)))), True),
    ("a resume inside the job", ((ECC_LINE,), (RESUMED,)), False),
    ("nothing new, but Slurm had been asked to end the job", ((ASKED_FOR,), (ECC_LINE,)), False),
    ("nothing new, but steps after Slurm's word", ((ASKED_FOR,), (step(2),), (ECC_LINE,)), True),
)


@pytest.mark.parametrize(("then", "pieces", "stands"), FATAL_THEN)
def test_a_fatal_line_stands_until_steps_refute_it(then: str, pieces: tuple[tuple[str, ...], ...], stands: bool) -> None:
    assert (known_after((step(1),), *pieces).fatal is not None) is stands, then


def test_the_longest_gap_between_lines_is_not_taken_from_our_own_absence() -> None:
    pieces = ((step(1),), (step(2),), ("nothing",), ("nothing",), (step(3),))
    assert known_after(*pieces).line_gap_seconds == 180
    assert known_after(*pieces, is_live=False).line_gap_seconds is None
    assert known_after((step(1), step(2)), is_live=False).line_gap_seconds == 1, "the pace that the lines tell is known all the same"


def test_a_finite_loss_ends_the_row_of_bad_ones() -> None:
    bad = [step(number).replace("2.5E+00", "nan") for number in range(1, 4)]
    known = known_after((bad[0], bad[1]), (bad[2],))
    assert (known.bad_loss_iterations, known.bad_loss_since) == ((1, 2, 3), NOON)
    known = known_after((bad[0], bad[1]), (step(3),))
    assert (known.bad_loss_iterations, known.bad_loss_since) == ((), None)


def test_bad_losses_of_lines_that_name_no_iteration_count_too() -> None:
    def said(loss: str) -> str:
        return f"{{'loss': {loss}, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.01}}"

    bar = "  1%|          | 10/1000 [00:10<16:30,  1.00s/it]"
    assert known_after((bar, said("nan")), (said("nan"), said("inf"))).bad_loss_iterations == (10, 11, 12)
    assert known_after((bar, said("nan"), said("nan")), (said("2.5"),)).bad_loss_iterations == ()


def test_checkpoints_seen_on_disk_tell_the_usual_interval() -> None:
    known = Cursor()
    for number in range(3):
        at = 600.0 * number
        known = with_checkpoint(known, a_checkpoint(100 * number, at), at=after(at + 5), started_at=NOON)
    assert known.progress.checkpoint_iteration == 200
    assert known.progress.checkpoint_interval_seconds == 600


def test_an_older_attempts_checkpoint_counts_but_tells_no_interval() -> None:
    known = with_checkpoint(Cursor(), a_checkpoint(100, -600), at=NOON, started_at=NOON)
    assert known.progress.checkpoint_iteration == 100
    assert known.checkpoint_times == ()


def test_a_checkpoint_that_is_not_newer_changes_nothing() -> None:
    known = with_checkpoint(Cursor(), a_checkpoint(100, 5), at=after(10), started_at=NOON)
    assert with_checkpoint(known, a_checkpoint(100, 20), at=after(30), started_at=NOON) == known
