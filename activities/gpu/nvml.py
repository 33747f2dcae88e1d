"""The real GPUs of this node, read through NVIDIA's binding in a process of its own with a deadline.

Any NVML call can hang for ever on a sick GPU, in the kernel, where no signal ends it. So a child does the calls and prints what it has
after every GPU; the parent waits until the deadline, keeps what arrived and leaves the child behind. What `read_gpus` returns is what
snapshot.py judges. Nobody calls it yet: it is for an agent on the nodes.
"""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

BINDING: Final = "pynvml"

# NVML field identifiers (nvml.h) that have no function of their own; field 230 since driver R570.
_RECOVERY_ACTION: Final = 230
_RECOVERY_WORDS: Final = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex", "bus_reset", "system_reboot")


def read_gpus(deadline: timedelta = timedelta(seconds=10), binding: str = BINDING) -> Mapping[str, Any]:
    """All GPUs of this node.

    Args:
        deadline: longest wait for the whole reading.
        binding: module with NVML's functions; tests give a stand-in with the same names.

    Returns:
        `{"driver": ..., "gpu_count": n, "gpus": {pci address: readings}}`. What could not be read is left out of a GPU's readings and
        named in its `unread`. A GPU that did not answer has `error`. `{"unknown": reason}` where nothing can be told.
    """
    # -P: what lies in the working directory is not imported.
    command = [sys.executable, "-P", "-m", "activities.gpu.nvml", "--binding", binding]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = child.communicate(timeout=deadline.total_seconds())
        ended = True
    except subprocess.TimeoutExpired as expired:
        child.kill()
        # A child stuck in the driver does not die; waiting for it would hang us as well. What it wrote so far came with the exception.
        out, err, ended = expired.stdout or b"", expired.stderr or b"", False
        _close(child)
    return _assembled(out, err, ended=ended, seconds=deadline.total_seconds())


def _close(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return  # in the driver's hands; the kernel ends it when the call returns


def _assembled(out: bytes, err: bytes, *, ended: bool, seconds: float) -> Mapping[str, Any]:
    """The child's lines put together. A GPU announced but not told about is the one whose call hung."""
    result: dict[str, Any] = {}
    gpus: dict[str, Any] = {}
    asked: str | None = None
    for line in out.splitlines():
        try:
            fact = json.loads(line)
        except ValueError:  # the line the kill cut short
            continue
        match fact:
            case {"unknown": str(reason)}:
                return {"unknown": reason}
            case {"asking": str(gpu)}:
                asked = gpu
            case {"gpu": str(gpu), "readings": dict(readings)}:
                gpus[gpu] = readings
                asked = None
            case {"driver": driver, "gpu_count": count}:
                result = {"driver": driver, "gpu_count": count}
            case _:
                continue
    if asked is not None:
        gpus[asked] = {
            "error": f"NVML did not answer for this GPU within {seconds:g} s"
            if not ended
            else "NVML's process ended while it read this GPU"
        }
    if not result:
        why = (
            f"NVML did not answer within {seconds:g} s"
            if not ended
            else f"NVML's process said nothing: {err.decode('utf-8', 'replace').strip()[-300:]}"
        )
        return {"unknown": why}
    return {**result, "gpus": gpus}


# ------------------------------------------------------------------------------------------------------- the child


def _say(fact: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _field(nvml: Any, handle: Any, field: int) -> int:
    """One NVML field. Each value carries a return code of its own; a call that succeeds says nothing about it."""
    value = nvml.nvmlDeviceGetFieldValues(handle, [field])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _recovery(nvml: Any, handle: Any) -> str:
    number = _field(nvml, handle, _RECOVERY_ACTION)
    return _RECOVERY_WORDS[number] if 0 <= number < len(_RECOVERY_WORDS) else str(number)


def _clock_reasons(nvml: Any, handle: Any) -> int:
    """The function's name before driver R535 was `...ThrottleReasons`; NVML without the new one says so with an error of its own."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _remapped(nvml: Any, handle: Any) -> dict[str, int | bool]:
    correctable, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows_correctable": correctable,
        "remapped_rows_uncorrectable": uncorrectable,
        "remapped_rows_pending": bool(pending),
        "remapped_rows_failure": bool(failure),
    }


def _links(nvml: Any, handle: Any) -> dict[str, int]:
    """NVLink links that are up and down. A link the board does not have is refused, which is no fault."""
    up = down = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break
        up, down = (up + 1, down) if state == nvml.NVML_FEATURE_ENABLED else (up, down + 1)
    # Boards with NVLink disabled as a whole report every link down: only a part that is down says something.
    return {"nvlink_links_up": up, "nvlink_links_down": down if up else 0}


def _readings(nvml: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Each reading and the call that gives it; a mapping is merged into the readings."""
    volatile, aggregate = nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "uuid": lambda gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "recovery_action": lambda gpu: _recovery(nvml, gpu),
        "ecc_uncorrected_volatile": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, uncorrected, volatile),
        "ecc_uncorrected_aggregate": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, uncorrected, aggregate),
        "remapped_rows": lambda gpu: _remapped(nvml, gpu),
        "clocks_event_reasons": lambda gpu: _clock_reasons(nvml, gpu),
        "temperature_c": lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "utilization_pct": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_used_mib": lambda gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used) // 2**20,
        "pids": lambda gpu: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
        "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
        "pcie_replay": nvml.nvmlDeviceGetPcieReplayCounter,
        "nvlink": lambda gpu: _links(nvml, gpu),
    }


def _one_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name, call in _readings(nvml).items():
        try:
            value = call(handle)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as lost:
            return {**told, "error": f"{type(lost).__name__.removeprefix('NVMLError_')}: {lost}"}
        except nvml.NVMLError as error:
            unread[name] = str(error)
            continue
        told.update(value if isinstance(value, dict) else {name: value})
    return {**told, "unread": unread} if unread else told


def _child(binding: str) -> None:
    nvml: Any = importlib.import_module(binding)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _say({"unknown": f"NVML cannot start here: {error}; is the NVIDIA driver installed and loaded?"})
        return
    try:
        count = nvml.nvmlDeviceGetCount()
        _say({"driver": _text(nvml.nvmlSystemGetDriverVersion()), "gpu_count": count})
        for index in range(count):
            _say({"asking": str(index)})
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
                _say({"asking": address})
                _say({"gpu": address, "readings": _one_gpu(nvml, handle)})
            except nvml.NVMLError as error:
                # The index stands where the address cannot be asked for: a lost GPU refuses even its handle.
                _say({"gpu": str(index), "readings": {"error": f"{type(error).__name__.removeprefix('NVMLError_')}: {error}"}})
    except nvml.NVMLError as error:
        _say({"unknown": f"NVML refused: {error}"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print NVML readings of this node's GPUs, one JSON object a line.")
    parser.add_argument("--binding", default=BINDING, help="module with NVML's functions")
    _child(parser.parse_args().binding)
