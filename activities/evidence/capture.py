"""Captures what a fault left behind, before anything is changed: bounded, redacted, hashed. A requeue truncates stdout by default.

A few KB of each source go into the workflow's history, the rest into the evidence directory by reference. Called by the step
`classify`, in a thread; `attribute` reads what it kept. What cannot be read is noted, never raised.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from activities.configuration import EvidenceSection
from activities.evidence.files import MANIFEST, IncidentFolder, Stored
from activities.evidence.keeping import Keeping
from activities.evidence.logs import bounded_copy, places_of, redacted_window, windows_of
from activities.logs.follow import cursor_at
from activities.logs.paths import LogRoots, PathRefused
from activities.logs.prefixes import strip_ansi_bytes
from activities.records import Evidence, Excerpt, FileCursor, Job, JobKey, Node, NodeState, Signal, SignalSource, as_json
from activities.redaction import redact_bytes, redact_record

SCRIPT = "batch_script.sh"
"""Where the folder keeps the script as submitted, for the day on which only `sbatch` is left."""

REDACTED_SCRIPT = "batch_script.redacted.sh"
"""Its name where secrets were taken out: a script with holes must not be taken for the real one."""

# The share of the history's bytes a kind of excerpt may take; the first log gets what is left.
_SHARES: Mapping[str, float] = {"job": 0.06, "nodes": 0.08, "script": 0.10, "further log": 0.05}

_FOR_LABELS = 0.12
"""Kept back for titles, hashes, paths and notes, so that the whole record stays within the bound."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # C1, too: U+009B begins a terminal's command as ESC [ does


@dataclass(frozen=True)
class Material:
    """What there is to capture. Paths are opened only under the allowed roots."""

    job: Job
    nodes: Sequence[Node] = ()
    logs: Sequence[Path] = ()
    signals: Sequence[Signal] = ()
    """What the symptom rests on; the log lines among them are shown with their surroundings."""
    batch_script: str | None = None
    unreadable: Sequence[str] = ()
    """What the caller could not get, and why."""


class EvidenceStore:
    """Captures evidence into one directory. Safe to share between threads and to run again: the first capture of an incident counts."""

    def __init__(self, section: EvidenceSection, roots: LogRoots) -> None:
        self._section = section
        self._roots = roots
        self._directory = section.directory.expanduser()
        self._keeping = Keeping(self._directory, keep_for=section.keep_for, keep_bytes=section.keep_bytes)

    def capture(self, material: Material, *, key: JobKey, incident_id: str, captured_at: datetime) -> Evidence:
        """Reads, redacts, bounds, stores and hashes; blocks, so run it in a thread.

        Args:
            material: what there is to capture.
            key: whose fault it was. Job IDs are reused and incidents are numbered by job, so both name the folder.
            incident_id: which fault of that job.
            captured_at: the time, UTC.

        Returns:
            What goes into the history, at most `evidence.history_bytes` as JSON. Where this machine has captured the incident before,
            that capture: the log may have been truncated since.
        """
        folder = self._folder(key, incident_id)
        if (before := _captured_before(folder)) is not None:
            return before
        capture = _Capture(folder, self._roots, self._section, material)
        evidence = capture.run(captured_at)
        stored = capture.store(MANIFEST, [evidence.model_dump_json(indent=1).encode()])
        if not self._section.stored_bytes:
            return evidence
        self._keeping.expire(captured_at, sparing=folder.path)  # also where nothing could be stored: the disk may be full
        return evidence if stored is not None else evidence.model_copy(update={"unreadable": tuple(capture.unreadable)})

    def captured(self, *, key: JobKey, incident_id: str) -> Evidence | None:
        """What this machine captured of an incident; None where it captured nothing."""
        return _captured_before(self._folder(key, incident_id))

    def _folder(self, key: JobKey, incident_id: str) -> IncidentFolder:
        name = f"{key.workflow_id.replace('/', '-')}-{incident_id}"
        return IncidentFolder(self._directory, name, self._section.stored_bytes)


def _captured_before(folder: IncidentFolder) -> Evidence | None:
    try:
        raw = folder.read(MANIFEST)
        return Evidence.model_validate_json(raw) if raw is not None else None
    except (OSError, ValidationError):
        return None  # captured anew; what cannot be written is noted then


class _Capture:
    """One capture in progress."""

    def __init__(self, folder: IncidentFolder, roots: LogRoots, section: EvidenceSection, material: Material) -> None:
        self.unreadable: list[str] = list(material.unreadable)
        self._folder = folder
        self._roots = roots
        self._material = material
        self._excerpts: list[Excerpt] = []
        self._logs_end: list[FileCursor] = []
        self._total = self._left = int(section.history_bytes * (1 - _FOR_LABELS))
        self._storing = section.stored_bytes > 0
        if self._storing:
            try:
                folder.make()
            except OSError as error:
                self._stop_storing(error)

    def run(self, captured_at: datetime) -> Evidence:
        material = self._material
        job = "".join(f"{key}: {value}\n" for key, value in as_json(material.job).items() if value not in (None, "", []))
        self._text(SignalSource.SCHEDULER, f"job {material.job.job_id} as Slurm tells it", job.encode(), self._share("job"), "job.txt")
        if material.nodes:
            self._text(SignalSource.NODE, "the job's nodes", _nodes_in_words(material).encode(), self._share("nodes"), "nodes.txt")
        if material.batch_script is not None:
            self._script(material.batch_script)
        for number, path in reversed([*enumerate(material.logs, start=1)]):
            self._log(path, number, room=self._left if number == 1 else self._share("further log"))
        evidence = Evidence(
            captured_at=captured_at,
            excerpts=tuple(self._excerpts),
            unreadable=tuple(self.unreadable),
            logs_end=tuple(self._logs_end),
        )
        return redact_record(evidence)  # titles, paths and notes, too

    def store(self, name: str, pieces: Iterable[bytes]) -> Stored | None:
        """The file, or None where it was not stored; the reason is noted once."""
        if not self._storing:
            return None
        try:
            return self._folder.store(name, pieces)
        except OSError as error:
            self._stop_storing(error)
            return None

    def _stop_storing(self, error: OSError) -> None:
        self._storing = False
        self.unreadable.append(
            f"evidence directory {self._folder.path.parent} cannot be written ({error.strerror}); only excerpts were kept"
        )

    def _share(self, kind: str) -> int:
        return min(self._left, int(self._total * _SHARES[kind]))

    # ------------------------------------------------------------------------------------------ sources

    def _text(self, source: SignalSource, title: str, data: bytes, room: int, name: str) -> None:
        """One short source: stored whole, its beginning shown."""
        data = strip_ansi_bytes(redact_bytes(data).data)
        stored = self.store(name, [data[: self._folder.bytes_left]])
        self._show(source, title, data, source_bytes=len(data), room=room, stored=stored, keep_end=False)

    def _script(self, script: str) -> None:
        secrets = redact_bytes(script.encode()).secrets
        if secrets:
            self.unreadable.append(f"batch script: {secrets} secrets were taken out of {REDACTED_SCRIPT}; fill them in before `sbatch`")
        name = REDACTED_SCRIPT if secrets else SCRIPT
        self._text(SignalSource.SCHEDULER, "batch script", script.encode(), self._share("script"), name)

    def _log(self, path: Path, number: int, room: int) -> None:
        """One log: a redacted copy in the directory, its telling places shown."""
        texts = [signal.text for signal in self._material.signals if signal.source is SignalSource.LOG]
        try:
            with self._roots.open(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                self._logs_end.append(cursor_at(path, stream, size))
                limit = self._folder.bytes_left * 9 // 10 // number  # logs are read last to first; the first gets what is left
                stored = self.store(f"log-{number}.txt", bounded_copy(stream, size, limit))
                places = places_of(stream, size, texts)
                for window in windows_of(size, places, room):
                    data = strip_ansi_bytes(redacted_window(stream, window, size))
                    title = path.name if window.what == "whole" else f"{path.name}, {window.what}"
                    share = room if window.what == "whole" else min(self._left, window.end - window.start)
                    self._show(SignalSource.LOG, title, data, source_bytes=size, room=share, stored=stored, keep_end=window.start > 0)
        except PathRefused as refusal:
            self.unreadable.append(f"log: {refusal}")
        except OSError as error:
            self.unreadable.append(f"log {path}: cannot be read: {error.strerror or error}")

    def _show(
        self, source: SignalSource, title: str, data: bytes, *, source_bytes: int, room: int, stored: Stored | None, keep_end: bool
    ) -> None:
        lines = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        text = _fitted(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", lines), room, keep_end)
        self._left = max(0, self._left - _weight(text))
        self._excerpts.append(
            Excerpt(
                source=source,
                title=title,
                text=text,
                sha256=stored.sha256 if stored else hashlib.sha256(text.encode()).hexdigest(),
                stored_at=str(stored.path) if stored else None,
                truncated_bytes=max(0, source_bytes - len(text.encode())),
            )
        )


def _weight(text: str) -> int:
    """Bytes of the text in a history, where line ends and quotes take two."""
    return len(json.dumps(text, ensure_ascii=False).encode())


def _fitted(text: str, room: int, keep_end: bool) -> str:
    """As much of the text as weighs at most `room`, cut at a line end where one is near."""
    while text and (weight := _weight(text)) > room:
        keep = min(len(text) - 1, len(text) * room // weight)
        if keep_end:
            text = text[len(text) - keep :]
            text = text[text.find("\n", 0, len(text) // 4) + 1 :]
        else:
            text = text[:keep]
            cut = text.rfind("\n", len(text) * 3 // 4)
            text = text[: cut + 1] if cut > 0 else text
    return text


def _nodes_in_words(material: Material) -> str:
    """The job's nodes: every one that is not as it should be in a line of its own, the others counted."""
    nodes = [node for node in material.nodes if not material.job.nodes or node.name in material.job.nodes]
    odd = [node for node in nodes if node.flags or node.reason or node.state not in (NodeState.ALLOCATED, NodeState.MIXED, NodeState.IDLE)]
    lines = [f"{node.name}: {'+'.join((node.state, *node.flags))} {node.reason}".rstrip() for node in odd]
    rest = len(nodes) - len(odd)
    return "\n".join([*lines, *([f"{rest} other nodes: nothing unusual"] if rest else [])]) + "\n"
