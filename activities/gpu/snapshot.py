"""What readings of GPUs say, taken together: broken, waiting for a reset, throttled, slower than its peers, not alone. Pure.

The diagnosis engine calls it on captured metrics. One row decides one reading (readings.yaml); what needs more than one is here.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, Final

from activities.gpu.findings import GpuFinding, Role, meaning_of
from activities.gpu.readings import Reading, as_number, flatten, readings_table
from activities.gpu.xid import XidMessage, judge_xid
from activities.records import Action, Domain

__all__ = ["GpuFinding", "judge_snapshot"]

_OUTLIER: Final = 0.75  # NVRx's straggler detection: relative score of a rank under this is a straggler
_PEERS: Final = 3  # fewer readings give no median worth trusting
_IDLE_CLOCK_MHZ: Final = 600.0  # an idle GPU's clock says nothing about its health
_IDLE_PERCENT: Final = 10.0
_MEMORY_LEFT_MIB: Final = 1024.0  # a driver's own reserve is under this
_HOT_CELSIUS: Final = 83.0  # typical slowdown begins between 83 and 90 °C


def judge_snapshot(data: Mapping[str, Any]) -> tuple[GpuFinding, ...]:
    """What is bad in these readings, worst first. Good, unknown and unreadable values give nothing.

    Args:
        data: readings by node and GPU, with names of NVML, DCGM, nvidia-smi or the case files; see readings.py for the shapes.
    """
    readings = flatten(data)
    found = [finding for reading in readings for finding in _alone(reading)]
    found += _together(readings)
    return tuple(sorted(_merged(found), key=lambda finding: (finding.role is not Role.PRIMARY, -finding.confidence)))


# ------------------------------------------------------------------------------------------- one reading alone


@cache
def _rows() -> dict[str, dict[str, Any]]:
    return {row["reading"]: row for row in readings_table()["readings"]}


def _finding(reading: Reading, row: Mapping[str, Any], value: object = None) -> GpuFinding:
    return GpuFinding(
        node=reading.node,
        gpu=reading.gpu,
        reading=reading.name,
        value=str(reading.value if value is None else value)[:200],
        **meaning_of(row),
    )


def _alone(reading: Reading) -> Iterator[GpuFinding]:
    text = str(reading.value).strip().lower()
    match reading.name:
        case "recovery_action":
            yield from _recovery(reading, text.removesuffix(".0"))
        case "throttle_reasons":
            yield from _throttled(reading, text)
        case "xid":
            yield from _last_xid(reading)
        case "error" | "unknown":
            for row in readings_table()["lost_words"]:
                if re.search(row["words"], text):
                    yield _finding(reading, row)
                    return
        case "memory_at_start":
            used = as_number(reading.value)
            if (
                used is not None and (used / 2**20 if used > 2**26 else used) >= _MEMORY_LEFT_MIB
            ):  # bytes where no MiB count could be so large
                yield _finding(reading, _rows()[reading.name])
        case _:
            row = _rows()[reading.name]
            bad = (
                (as_number(reading.value) or 0.0) > 0.0
                if row["test"] == "positive"
                else row["test"] == "text" and re.search(row["words"], text)
            )
            if bad:
                yield _finding(reading, row)


def _recovery(reading: Reading, text: str) -> Iterator[GpuFinding]:
    for row in readings_table()["recovery_actions"]:
        if re.search(row["words"], text):
            if not row.get("benign"):
                yield _finding(reading, row)
            return
    yield GpuFinding(
        node=reading.node,
        gpu=reading.gpu,
        reading=reading.name,
        value=text[:200],
        confidence=0.3,
        why="the driver asks for an action we do not know; a person has to look",
    )


def _throttled(reading: Reading, text: str) -> Iterator[GpuFinding]:
    """Bits where it is a mask, else words. The SW power cap is normal at full load and says nothing."""
    mask = as_number(reading.value)
    if mask is not None and mask >= 0 and not re.search(r"[a-z]{3}", text):
        for bit, name in readings_table()["throttle_bits"].items():
            if int(mask) & int(bit):
                yield _finding(reading, _rows()[name], hex(int(mask)))
        return
    # `HW Thermal Slowdown: Active, SW Power Cap: Not Active`: each name with the word behind it; a name alone is active.
    for name, words in (
        ("hw_thermal", r"hw[ _]?therm\w*(?:[ _]?slowdown)?"),
        ("hw_power_brake", r"(?:hw[ _]?)?power[ _]?brake(?:[ _]?slowdown)?"),
        ("hw_slowdown", r"hw[ _]?slowdown"),
        ("sw_thermal", r"sw[ _]?therm\w*(?:[ _]?slowdown)?"),
    ):
        stated = re.search(rf"{words}\s*[:=]?\s*(not active|inactive|no\b|false|0\b)?", text)
        if stated is not None and stated[1] is None:
            yield _finding(reading, _rows()[name])


def _last_xid(reading: Reading) -> Iterator[GpuFinding]:
    """DCGM's last Xid is a gauge that never resets and that a later 45 overwrites (dcgm-exporter#500, DCGM#235): a hint, no proof."""
    number = as_number(reading.value)
    if number is None or not 0 < number < 10_000:
        return
    verdict = judge_xid(XidMessage(code=int(number)))
    if verdict.role is not Role.PRIMARY:
        return
    yield GpuFinding(
        node=reading.node,
        gpu=reading.gpu,
        reading=reading.name,
        value=str(int(number)),
        cause=verdict.cause,
        domain=verdict.domain,
        role=Role.NOTICE,
        confidence=round(min(0.5, verdict.confidence * 0.5), 3),
        action=Action.NONE,
        why=f"the last Xid this GPU reported, at an unknown time: {verdict.why}",
    )


# ---------------------------------------------------------------------------------------- readings compared


def _together(readings: Sequence[Reading]) -> list[GpuFinding]:
    by_name: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        by_name[reading.name].append(reading)
    idle = {(r.node, r.gpu) for r in by_name["utilisation"] if (used := as_number(r.value)) is not None and used <= _IDLE_PERCENT}
    clocks = [r for r in by_name["sm_clock"] if not r.series and (r.node, r.gpu) not in idle]
    return [
        *_outliers(clocks, slower_is_lower=True, least=_IDLE_CLOCK_MHZ),
        *_outliers([r for r in by_name["step_seconds"] if not r.series], slower_is_lower=False, least=0.0),
        *_scores(by_name["relative_score"]),
        *_falling(by_name),
        *_narrow(by_name),
        *_links(by_name),
        *_missing(by_name),
    ]


def _slow(reading: Reading, relative: float, because: str) -> GpuFinding:
    return GpuFinding(
        node=reading.node,
        gpu=reading.gpu,
        reading=reading.name,
        value=str(reading.value),
        cause="slow_gpu_straggler",
        domain=Domain.HARDWARE,
        role=Role.PRIMARY,
        confidence=0.75 if relative < 0.6 else 0.65,
        isolate=True,
        action=Action.RESTART_EXCLUDING,
        why=because,
    )


def _outliers(readings: Sequence[Reading], *, slower_is_lower: bool, least: float) -> Iterator[GpuFinding]:
    numbers = [(reading, number) for reading in readings if (number := as_number(reading.value)) is not None and number > 0.0]
    if len(numbers) < _PEERS:
        return
    usual = median(number for _, number in numbers)
    if usual <= least:
        return
    slow = [(r, score) for r, number in numbers if (score := number / usual if slower_is_lower else usual / number) < _OUTLIER]
    # Where a third or more are slow, the few fast ones are no norm and no single device is to blame.
    if len(slow) * 3 <= len(numbers):
        for reading, score in slow:
            yield _slow(reading, score, f"{reading.name} {reading.value} is {score:.2f} of its peers' median {usual:g} (limit {_OUTLIER})")


def _scores(readings: Sequence[Reading]) -> Iterator[GpuFinding]:
    for reading in readings:
        score = as_number(reading.value)
        if score is not None and 0.0 < score < _OUTLIER:
            yield _slow(reading, score, f"relative score {score:g} is under {_OUTLIER}")


def _falling(by_name: Mapping[str, Sequence[Reading]]) -> Iterator[GpuFinding]:
    """A clock that fell over time while the GPU got hot."""
    hottest = {(r.node, r.gpu): max(r.series or (as_number(r.value) or 0.0,)) for r in by_name.get("temperature", ())}
    for reading in by_name.get("sm_clock", ()):
        if len(reading.series) < _PEERS or max(reading.series) <= _IDLE_CLOCK_MHZ or reading.series[-1] / max(reading.series) >= _OUTLIER:
            continue
        hot = hottest.get((reading.node, reading.gpu), 0.0)
        if hot < _HOT_CELSIUS:
            continue
        yield GpuFinding(
            node=reading.node,
            gpu=reading.gpu,
            reading=reading.name,
            value=", ".join(f"{number:g}" for number in reading.series[-8:]),
            cause="thermal_throttling",
            domain=Domain.HARDWARE,
            confidence=0.7,
            isolate=True,
            action=Action.HOLD,
            why=f"the clock fell to {reading.series[-1] / max(reading.series):.2f} of its highest at {hot:g} °C",
        )


def _narrow(by_name: Mapping[str, Sequence[Reading]]) -> Iterator[GpuFinding]:
    """A PCIe link narrower than the device can. (The generation drops at idle to save power, so it is not compared.)"""
    widest = {(r.node, r.gpu): as_number(r.value) for r in by_name.get("pcie_width_max", ())}
    for reading in by_name.get("pcie_width", ()):
        now, most = as_number(reading.value), widest.get((reading.node, reading.gpu))
        if now is not None and most is not None and 0.0 < now < most:
            yield GpuFinding(
                node=reading.node,
                gpu=reading.gpu,
                reading=reading.name,
                value=str(reading.value),
                cause="slow_gpu_straggler",
                domain=Domain.HARDWARE,
                role=Role.NOTICE,
                confidence=0.5,
                action=Action.NONE,
                why=f"the PCIe link runs with {now:g} of {most:g} lanes",
            )


def _links(by_name: Mapping[str, Sequence[Reading]]) -> Iterator[GpuFinding]:
    expected = {(r.node, r.gpu): as_number(r.value) for r in by_name.get("nvlink_links_expected", ())}
    for reading in by_name.get("nvlink_links_up", ()):
        up, wanted = as_number(reading.value), expected.get((reading.node, reading.gpu))
        if up is not None and wanted is not None and up < wanted:
            yield _finding(reading, _rows()["nvlink_down"], f"{up:g} of {wanted:g} links up")


def _missing(by_name: Mapping[str, Sequence[Reading]]) -> Iterator[GpuFinding]:
    """Fewer GPUs than expected, by the node's own word or, failing that, by what most other nodes have."""
    present = [(r, number) for r in by_name.get("gpus_present", ()) if (number := as_number(r.value)) is not None]
    expected = {r.node: as_number(r.value) for r in by_name.get("gpus_expected", ())}
    usual = median(number for _, number in present) if len(present) >= _PEERS else None
    for reading, number in present:
        wanted = expected.get(reading.node, expected.get(None)) or usual
        if wanted is not None and number < wanted:
            yield _finding(reading, _rows()["gpus_missing"], f"{number:g} of {wanted:g}")


def _merged(found: Sequence[GpuFinding]) -> Iterator[GpuFinding]:
    """One finding for each cause on each GPU; a memory error whose row remap is pending is the contained kind."""
    failed = {(f.node, f.gpu) for f in found if f.reading == "remap_failure"}
    pending = {(f.node, f.gpu) for f in found if f.reading == "remap_pending"} - failed
    best: dict[tuple[str | None, str | None, str], GpuFinding] = {}
    for finding in found:
        kept = finding
        if finding.reading == "ecc_uncorrected" and (finding.node, finding.gpu) in pending:
            kept = finding.model_copy(
                update={
                    "cause": "ecc_contained_row_remap_pending",
                    "confidence": 0.85,
                    "why": "uncorrectable memory error whose row remap waits for a reset of the GPU",
                }
            )
        key = (kept.node, kept.gpu, kept.cause)
        if key not in best or kept.confidence > best[key].confidence:
            best[key] = kept
    yield from best.values()
