"""The verdict on one view of an attempt: every detector is asked, in the order of the table. A new detector is a function and a row.

Called by `activities/watching/attempt.py` at each look.
"""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from activities.configuration import WatchSection
from activities.detectors.endings import ended_badly, fatal_line, node_lost, requeued_after_a_fault
from activities.detectors.progress import bad_numbers, checkpoint_overdue, hang, slowed_down
from activities.detectors.view import AttemptView
from activities.records import Symptom, SymptomKind


class Judged(NamedTuple):
    """A verdict, or a suspicion that a second look must confirm, or neither."""

    verdict: Symptom | None
    suspicion: Symptom | None


Detector = Callable[[AttemptView, WatchSection], Symptom | None]

DETECTORS: tuple[Detector, ...] = (
    # How the job ended comes before what was read on the way; a lost node explains a silence that is otherwise a hang.
    ended_badly,
    requeued_after_a_fault,
    node_lost,
    fatal_line,
    bad_numbers,
    hang,
    checkpoint_overdue,
    slowed_down,
)
NEEDS_SECOND_LOOK = (SymptomKind.HANG,)


def judge(
    view: AttemptView,
    patience: WatchSection,
    *,
    known: tuple[SymptomKind, ...] = (),
    known_onset: datetime | None = None,
    detectors: tuple[Detector, ...] = DETECTORS,
) -> Judged:
    """The first detector that speaks, unless its symptom is already known.

    A kind that needs a second look comes back as a suspicion first, and as a verdict when it is found again, with the same
    onset, `second_look` later.
    """
    suspicion: Symptom | None = None
    for detector in detectors:
        symptom = detector(view, patience)
        if symptom is None or is_known(symptom, known, known_onset):
            continue
        if symptom.kind not in NEEDS_SECOND_LOOK:
            return Judged(symptom, None)
        earlier = view.suspicion
        if earlier is None or earlier.kind is not symptom.kind or earlier.onset != symptom.onset:
            suspicion = suspicion or symptom
        elif view.now - earlier.detected_at >= patience.second_look and view.has_looked_beside:
            return Judged(symptom, None)
        else:
            suspicion = suspicion or earlier
    return Judged(None, suspicion)


def is_known(symptom: Symptom, known: tuple[SymptomKind, ...], known_onset: datetime | None) -> bool:
    """True when it is a symptom reported before, with nothing in between: it began no later than that one.

    Progress moves the onset of every later symptom past the old one's, so that no separate record of progress is needed."""
    return symptom.kind in known and known_onset is not None and symptom.onset <= known_onset
