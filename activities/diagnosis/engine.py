"""The diagnosis engine: `Signals` in, `Judgement` out; and the quick look at a live log for lines that mean the end.

It reads logs and dumps once (reader.py, flight_recorder.py) and gathers what is known (case.py); choosing.py takes the first
cause (causality.py), concluding.py sees it in its context (refine.py) and names suspects (suspects.py). The step
`classify`, `diagnose` and the tests call it. Pure but for reading what it is given; one engine serves all watches."""

from collections.abc import Sequence
from pathlib import Path

from activities.diagnosis import flight_recorder
from activities.diagnosis.case import Case
from activities.diagnosis.causes import UNKNOWN
from activities.diagnosis.choosing import judgement_of
from activities.diagnosis.concluding import besides, of_strangers
from activities.diagnosis.observing import SchedulerWords
from activities.diagnosis.reader import Reader
from activities.diagnosis.scheduler_facts import facts_of
from activities.diagnosis.signals import FatalLine, Signals
from activities.diagnosis.signatures import Role, load
from activities.diagnosis.speakers import about
from activities.logs.prefixes import parse_prefix
from activities.records import Judgement
from activities.redaction import redact_start

FATAL_LINES_AT_ONCE = 64


class Engine:
    """Compiled once and shared; `judge` and `fatal_lines` may be called from several threads."""

    def __init__(self, signature_files: Sequence[Path] = ()) -> None:
        """
        Args:
            signature_files: the operator's own signature files, merged over the built-in table.
        Raises:
            SignaturesRefused: one of them cannot be used; the message names its place.
        """
        rows = load(signature_files)
        self.rows = {row.id: row for row in rows}
        self._reader = Reader(rows)
        self._words = SchedulerWords(rows)

    # ---------------------------------------------------------------------------------------------------- a live log

    def fatal_lines(self, data: bytes) -> tuple[FatalLine, ...]:
        """Lines of a piece of log that say a job is dying: primaries, and cascades flagged as such. At most 64.

        Unspecific exceptions are among them; a caller gives the job its settle time before believing them.
        """
        found: list[FatalLine] = []
        for hit in self._reader.events.scan(data):
            rows = [row for name in hit.ids if (row := self._reader.signatures.get(name)) is not None]
            if any(row.role is Role.BENIGN for row in rows):
                continue
            rows = [row for row in rows if row.role in (Role.PRIMARY, Role.CASCADE)]
            row = max(rows, key=lambda item: (item.role is Role.PRIMARY and item.id != "python_exception", item.weight), default=None)
            if row is None:
                continue
            line = about(parse_prefix(data[hit.start : hit.end].decode(errors="replace")))
            found.append(
                FatalLine(
                    signature=row.id,
                    cause=row.cause or UNKNOWN,
                    text=redact_start(line.text.strip(), 600),
                    is_primary=row.role is Role.PRIMARY,
                    at=line.at,
                    rank=line.rank,
                    node=line.node,
                )
            )
            if len(found) >= FATAL_LINES_AT_ONCE:
                break
        return tuple(found)

    # ----------------------------------------------------------------------------------------------------- judging

    def judge(self, signals: Signals) -> Judgement:
        """What happened, why, and who is suspected; `unknown` and an abstention where the signals do not say."""
        facts = facts_of(signals)
        near = (signals.job.started_at if signals.job else None) or (signals.symptom.onset if signals.symptom else facts.started_at)
        reading = self._reader.read(signals.logs, near=near, nodes=facts.nodes, task_count=facts.task_count)
        dumps, refused = flight_recorder.read_all(signals.flight_recorder, signals.dump_opener)
        case = Case(signals, facts, reading, dumps, rows=self.rows, words=self._words)
        judgement = judgement_of(case)
        return judgement.model_copy(update={"notes": (*refused, *besides(case, judgement), *of_strangers(case))})
