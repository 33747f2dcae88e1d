"""A stand-in for NVIDIA's binding with the same names and arguments (test_nvml.py holds it to that). How its GPUs are is told by
the environment variable FAKE_NVML: a comma-separated list, one word for each GPU: ok, lost, reset, hang, refuses, dies;
or `absent`, `stuck` for the whole driver.
"""

import os
import threading
from types import SimpleNamespace
from typing import Any

NVML_SUCCESS = 0
NVML_VOLATILE_ECC = 0
NVML_AGGREGATE_ECC = 1
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
NVML_NVLINK_MAX_LINKS = 36
NVML_FEATURE_ENABLED = 1


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class NVMLError_GpuIsLost(NVMLError):
    def __init__(self) -> None:
        super().__init__(15)


class NVMLError_ResetRequired(NVMLError):
    def __init__(self) -> None:
        super().__init__(16)


class NVMLError_FunctionNotFound(NVMLError):
    def __init__(self) -> None:
        super().__init__(13)


class NVMLError_NotSupported(NVMLError):
    def __init__(self) -> None:
        super().__init__(3)


class NVMLError_InvalidArgument(NVMLError):
    def __init__(self) -> None:
        super().__init__(2)


def _gpus() -> list[str]:
    return os.environ.get("FAKE_NVML", "ok,ok").split(",")


def _hang() -> None:
    threading.Event().wait()


def nvmlInit() -> None:
    if _gpus() == ["absent"]:
        raise NVMLError(12)
    if _gpus() == ["stuck"]:
        _hang()


def nvmlSystemGetDriverVersion() -> str:
    return "570.158.01"


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if _gpus()[index] == "refuses":
        raise NVMLError_GpuIsLost
    return index


def nvmlDeviceGetPciInfo(handle: int) -> Any:
    return SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0")


def nvmlDeviceGetUUID(handle: int) -> str:
    match _gpus()[handle]:
        case "lost":
            raise NVMLError_GpuIsLost
        case "hang":
            _hang()
        case "dies":
            os._exit(139)
    return f"GPU-0000000{handle}"


def nvmlDeviceGetFieldValues(handle: int, fieldIds: list[int]) -> list[Any]:
    number = 1 if _gpus()[handle] == "reset" else 0
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=SimpleNamespace(uiVal=number)) for _ in fieldIds]


def nvmlDeviceGetTotalEccErrors(handle: int, errorType: int, counterType: int) -> int:
    return 0


def nvmlDeviceGetRemappedRows(device: int) -> tuple[int, int, int, int]:
    return (1, 0, 1, 0) if _gpus()[device] == "reset" else (0, 0, 0, 0)


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    raise NVMLError_FunctionNotFound


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> int:
    return 0x4


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 55


def nvmlDeviceGetClockInfo(handle: int, type: int) -> int:
    return 1980


def nvmlDeviceGetMaxClockInfo(handle: int, type: int) -> int:
    return 1980


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=99)


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    return SimpleNamespace(used=2**30)


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
    return [SimpleNamespace(pid=4711)]


def nvmlDeviceGetCurrPcieLinkWidth(handle: int) -> int:
    return 16


def nvmlDeviceGetMaxPcieLinkWidth(handle: int) -> int:
    return 16


def nvmlDeviceGetPcieReplayCounter(handle: int) -> int:
    raise NVMLError_NotSupported


def nvmlDeviceGetNvLinkState(device: int, link: int) -> int:
    if link >= 18:
        raise NVMLError_InvalidArgument
    return 1
