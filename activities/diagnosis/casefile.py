"""Case files (YAML: `signals` and what was expected) and loose mappings to `Signals`. Tolerant of keys, strict about being a case.

`backstay diagnose CASE.yaml` and the tests' harness read cases through here. Format: tests/cases/README.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from activities.diagnosis.signals import LogSource, Signals
from activities.outside_text import TextRefused, whole_number, yaml_value


class CaseUnreadable(ValueError):
    """Not a case file; the message says what is missing. `is_beyond_bounds`: it is YAML, and too deep or too large to be read."""

    def __init__(self, why: str, *, is_beyond_bounds: bool = False) -> None:
        super().__init__(why)
        self.is_beyond_bounds = is_beyond_bounds


def read_case(path: Path) -> tuple[Signals, Mapping[str, Any]]:
    """The signals of a case file, and the whole document.

    Raises:
        CaseUnreadable: it cannot be read as YAML or has no `signals`.
    """
    return parse_case(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse_case(text: str, name: str) -> tuple[Signals, Mapping[str, Any]]:
    """The same from text."""
    try:
        document = yaml_value(text)
    except TextRefused as refusal:
        place = f"{name}:{refusal.line}" if refusal.line else name
        raise CaseUnreadable(f"{place}: {refusal}", is_beyond_bounds=not refusal.is_syntax) from None
    if not isinstance(document, Mapping) or not isinstance(document.get("signals"), Mapping):
        raise CaseUnreadable(f"{name}: a case file has a mapping `signals` (log, scheduler, kernel_log, gpu_metrics)")
    return signals_of(document["signals"]), document


def signals_of(loose: Mapping[str, Any]) -> Signals:
    """Signals from a loosely keyed mapping: `log`, `scheduler`, `kernel_log`, `gpu_metrics` and their usual other names."""
    logs = _first(loose, "log", "logs", "job_log", "stdout")
    kernel = _first(loose, "kernel_log", "kernel_logs", "dmesg", "kernel")
    gpu = _first(loose, "gpu_metrics", "gpu", "gpus", "gpu_snapshots", "nvml", "dcgm")
    scheduler = _first(loose, "scheduler", "slurm", "job")
    return Signals(
        logs=tuple(_logs(logs)),
        scheduler=_named(scheduler) if isinstance(scheduler, Mapping) else {"state": str(scheduler)} if scheduler else {},
        kernel_logs=_kernel(kernel),
        gpu_snapshots=_named(gpu) if isinstance(gpu, Mapping) else {"readings": gpu} if gpu else {},
        rank_to_node=_ranks(_first(loose, "rank_to_node", "ranks")),
    )


def _named(loose: Mapping[Any, Any]) -> dict[str, Any]:
    """In YAML a key may be a number, a date or nothing at all."""
    return {str(key): value for key, value in loose.items()}


def _first(loose: Mapping[str, Any], *names: str) -> Any:
    return next((loose[name] for name in names if loose.get(name) is not None), None)


def _logs(value: Any) -> list[LogSource]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [LogSource(name=str(name), data=_text(text).encode()) for name, text in value.items()]
    return [LogSource(data=_text(value).encode())]


def _kernel(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(node): _text(text) for node, text in value.items()}
    return {"": _text(value)}


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(str(item) for item in value)
    return str(value)


def _ranks(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping):
        return {}
    return {number: str(node) for rank, node in value.items() if (number := whole_number(str(rank))) is not None}
