"""Readings of GPUs in whatever shape they come, flattened to (node, GPU, our name for the reading, value). Pure.

snapshot.py judges them. Shapes: nested mappings by node and GPU, lists by GPU, DCGM field names, NVML names, `nvidia-smi -q` text
and dcgm-exporter's exposition text. A name no row of readings.yaml knows is left out, never guessed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

TABLE: Final = Path(__file__).with_name("readings.yaml")
_DEEPEST: Final = 12
_MOST: Final = 200_000  # readings; a node has some hundreds
_LONGEST_TEXT: Final = 4 * 1024 * 1024


class Reading(NamedTuple):
    node: str | None
    gpu: str | None
    name: str
    value: bool | float | str
    series: tuple[float, ...] = ()


@cache
def readings_table() -> dict[str, Any]:
    """readings.yaml, read once."""
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(TABLE)
    return loaded


@cache
def _names() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(row["keys"]), row["reading"]) for row in readings_table()["readings"])


@cache
def canonical(path: str) -> str | None:
    """Our name for a reading, from its own name with those of the sections above it; None where no row knows it."""
    name = re.sub(r"[^a-z0-9]+", "_", path.lower()).strip("_")
    name = re.sub(r"^(?:dcgm_fi_(?:dev|prof)_|dcgm_exp_|nvml_?(?:device_?get)?_?|nvidia_smi_)", "", name)
    return next((reading for pattern, reading in _names() if pattern.search(name)), None)


_NUMBER: Final = re.compile(r"^\s*([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.:-]*[:-]\w)", re.I)
_YES: Final = frozenset({"yes", "true", "active", "enabled", "pending"})
_NO: Final = frozenset({"no", "false", "not active", "none", "inactive", "disabled", "off"})
_NOTHING: Final = frozenset({"", "n/a", "[n/a]", "unknown", "not supported", "[not supported]", "null", "nan", "unknown error"})


def as_number(value: object) -> float | None:
    """A number with or without unit (`85 C`, `0 on all`, `16x`); a yes is 1, a no is 0; None where it is neither."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        # NaN compares with nothing and an integer may be too large for a float: neither is a reading.
        return float(value) if -1e300 < value < 1e300 else None
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if text in _NO:
        return 0.0
    if text in _YES:
        return 1.0
    if text.startswith("0x"):
        try:
            return float(int(text[:18], 16))
        except ValueError:
            return None
    found = _NUMBER.match(text[:64])
    return float(found[1]) if found else None


# ------------------------------------------------------------------------------------------------------ walking

_GPU_KEY: Final = re.compile(
    r"^(?:gpu[ _:-]?\d{1,3}|\d{1,3}|GPU-[0-9a-f-]{8,}|(?:GPU )?(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?|cuda:\d+)$", re.I
)
_CONTAINERS: Final = frozenset(
    {"gpus", "gpu", "nodes", "node", "devices", "readings", "metrics", "gpu_metrics", "hosts", "per_gpu", "per_node"}
)
_NODE_KEYS: Final = frozenset({"node", "host", "hostname", "nodename", "node_name"})
_GPU_NAME_KEYS: Final = frozenset({"gpu", "index", "gpu_index", "gpu_id", "uuid", "gpu_uuid", "pci", "pci_bus_id", "device", "local_rank"})
_GPUS_OF_A_NODE: Final = frozenset({1, 2, 4, 6, 8, 16})


def flatten(data: Mapping[str, Any]) -> tuple[Reading, ...]:
    """Every reading of `data` whose name is known, in order."""
    found: list[Reading] = []
    for reading in _walk(data, None, None, "", 0):
        found.append(reading)
        if len(found) >= _MOST:
            break
    return tuple(found)


def _walk(data: object, node: str | None, gpu: str | None, path: str, depth: int) -> Iterator[Reading]:
    if depth > _DEEPEST:
        return
    if isinstance(data, Mapping):
        yield from _walk_mapping(data, node, gpu, path, depth)
    elif isinstance(data, list | tuple):
        yield from _walk_list(data, node, gpu, path, depth)
    elif isinstance(data, str) and ("\n" in data or data.startswith(("DCGM_", "GPU 0"))):
        yield from _of_text(data[:_LONGEST_TEXT], node, gpu)
    elif (name := canonical(path[-300:])) is not None:
        if isinstance(data, bool) or (isinstance(data, str) and data.strip().lower() not in _NOTHING):
            yield Reading(node, gpu, name, data)
        elif not isinstance(data, str) and (number := as_number(data)) is not None:
            yield Reading(node, gpu, name, number)


def _walk_mapping(data: Mapping[Any, Any], node: str | None, gpu: str | None, path: str, depth: int) -> Iterator[Reading]:
    for key, value in data.items():
        lowered = str(key).lower()
        if isinstance(value, str | int) and not isinstance(value, bool):
            # A name the caller's nesting gave stands: an NVML reading also tells its UUID.
            if lowered in _NODE_KEYS and isinstance(value, str):
                node = node or value
            elif lowered in _GPU_NAME_KEYS:
                gpu = gpu or str(value)
    for key, value in data.items():
        text = str(key)
        nested = isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value))
        joined = f"{path}_{text}" if path else text
        if not nested:
            yield from _walk(value, node, gpu, joined, depth + 1)
        elif isinstance(value, list | tuple) and re.search(r"(?i)process(?:es)?$", text):
            if foreign := _of_others(value):
                yield Reading(node, gpu, "foreign_processes", float(foreign))
        elif text.lower() in _CONTAINERS:
            yield from _walk(value, node, gpu, path, depth + 1)
        elif gpu is None and _GPU_KEY.match(text) and not (node is None and _holds_gpus(value)):
            yield from _walk(value, node, text, path, depth + 1)
        elif node is None and canonical(text) is None:
            yield from _walk(value, text, gpu, path, depth + 1)
        else:
            yield from _walk(value, node, gpu, joined, depth + 1)


_OWNED_BY: Final = re.compile(r"^(?:slurm_)?job(?:_?id)?$|^owner$|^belongs_to$|^in_(?:this_)?job$", re.I)
_NOT_OURS: Final = re.compile(r"(?i)^(?:none|no|false|null|unknown|not in .*|(?:an)?other\b.*|foreign\b.*)$")


def _of_others(processes: Sequence[Any]) -> int:
    """How many of the processes listed one by one are told to be of no job, of another one, or of a second one."""
    owners = [
        str(value)
        for process in processes
        if isinstance(process, Mapping)
        for value in [next((value for key, value in process.items() if _OWNED_BY.match(str(key))), None)]
        if value is not None
    ]
    ours = {owner for owner in owners if not _NOT_OURS.match(owner)}
    return sum(1 for owner in owners if _NOT_OURS.match(owner)) + max(0, len(ours) - 1)


def _holds_gpus(value: object) -> bool:
    """True for a mapping of GPUs: what it belongs to is a node, though it may be called gpu-02."""
    return isinstance(value, Mapping) and any(isinstance(inner, Mapping) and _GPU_KEY.match(str(key)) for key, inner in value.items())


def _walk_list(data: Sequence[Any], node: str | None, gpu: str | None, path: str, depth: int) -> Iterator[Reading]:
    """A list of mappings is a list of GPUs or nodes; as many numbers as a node has GPUs are one for each; others are a course in time."""
    if any(isinstance(item, Mapping) for item in data):
        for item in data:
            yield from _walk(item, node, gpu, path, depth + 1)
        return
    name = canonical(path[-300:])
    if name is None:
        return
    if name in ("throttle_reasons", "error", "gpus_missing"):
        for item in data:
            yield from _walk(item, node, gpu, path, depth + 1)
        return
    numbers = [as_number(item) for item in data]
    if gpu is None and len(data) in _GPUS_OF_A_NODE and (node is not None or len(data) > 2):
        for index, number in enumerate(numbers):
            if number is not None:
                yield Reading(node, str(index), name, number)
        return
    series = tuple(number for number in numbers if number is not None)
    if series:
        yield Reading(node, gpu, name, series[-1], series)


# -------------------------------------------------------------------------------------------------------- texts

_EXPOSITION: Final = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_GPU_HEAD: Final = re.compile(r"^GPU (?P<gpu>[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\s*$", re.I)


def _of_text(text: str, node: str | None, gpu: str | None) -> Iterator[Reading]:
    """`nvidia-smi -q` (sections by indentation) and dcgm-exporter's lines (label Hostname or hostname by version, dcgm-exporter#655)."""
    sections: list[tuple[int, str]] = []
    for line in text.splitlines():
        if found := _EXPOSITION.match(line):
            labels = {key.lower(): value for key, value in _LABEL.findall(found["labels"])}
            name, number = canonical(found["name"]), as_number(found["value"])
            if name is not None and number is not None:
                yield Reading(labels.get("hostname", node), labels.get("uuid") or labels.get("gpu") or gpu, name, number)
            continue
        if found := _GPU_HEAD.match(line.strip()):
            gpu, sections = found["gpu"].lower(), []
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = (part.strip() for part in line.partition(" : ")) if " : " in line else (line.strip().rstrip(":"), "", "")
        if not key:
            continue
        sections = [(level, name) for level, name in sections if level < indent]
        if not colon:
            sections.append((indent, key[:100]))
            continue
        path = "_".join([name for _, name in sections] + [key[:100]])
        name = canonical(path[-300:])
        if name is not None and value.strip().lower() not in _NOTHING:
            yield Reading(node, gpu, name, value.strip()[:200])
