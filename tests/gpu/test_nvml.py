"""Real readings: a process of its own with a deadline, in front of a binding that may hang, die or not be there."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pynvml
import pytest

from activities.gpu.nvml import read_gpus
from activities.gpu.snapshot import judge_snapshot
from tests.gpu import fake_nvml

SOURCE = Path(__file__).parents[2]
Read = Callable[..., Any]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    def read_with(gpus: str, seconds: float = 30.0) -> Any:
        monkeypatch.setenv("FAKE_NVML", gpus)
        monkeypatch.setenv("PYTHONPATH", str(SOURCE))
        return read_gpus(timedelta(seconds=seconds), binding="tests.gpu.fake_nvml")

    return read_with


# ----------------------------------------------------------------------------------------------------- the contract

FUNCTIONS = [name for name in vars(fake_nvml) if name.startswith("nvml")]
CONSTANTS = [name for name in vars(fake_nvml) if name.startswith("NVML_")]
ERRORS = [name for name in vars(fake_nvml) if name.startswith("NVMLError")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stand_in_has_the_bindings_functions_and_arguments(name: str) -> None:
    theirs = list(inspect.signature(getattr(pynvml, name)).parameters)
    assert list(inspect.signature(getattr(fake_nvml, name)).parameters) == theirs


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_stand_in_has_the_bindings_constants(name: str) -> None:
    assert getattr(fake_nvml, name) == getattr(pynvml, name)


@pytest.mark.parametrize("name", ERRORS)
def test_the_stand_in_has_the_bindings_errors(name: str) -> None:
    assert issubclass(getattr(pynvml, name), pynvml.NVMLError)
    if name != "NVMLError":
        assert getattr(pynvml, name)().value == getattr(fake_nvml, name)().value


def test_every_call_the_reader_makes_is_in_the_stand_in() -> None:
    text = (SOURCE / "activities/gpu/nvml.py").read_text()
    used = {word for word in dir(pynvml) if f"nvml.{word}" in text and f"nvml.{word}" not in ("nvml.nvml",)}
    called = {word for word in used if any(f"nvml.{word}{end}" in text for end in ("(", ",", ")", ":", "\n"))}
    assert called <= set(vars(fake_nvml))


# ------------------------------------------------------------------------------------------------------ the reading


def test_healthy_gpus_are_read_and_nothing_is_found(read: Read) -> None:
    told = read("ok,ok")
    assert (told["driver"], told["gpu_count"]) == ("570.158.01", 2)
    gpu = told["gpus"]["00000000:01:00.0"]
    assert (gpu["recovery_action"], gpu["clocks_event_reasons"], gpu["nvlink_links_up"], gpu["pids"]) == ("none", 4, 18, [4711])
    assert list(gpu["unread"]) == ["pcie_replay"]
    assert judge_snapshot({"node-1": told}) == ()


def test_a_gpu_that_waits_for_a_reset_is_found_by_its_address(read: Read) -> None:
    [worst, remap] = judge_snapshot({"node-1": read("ok,reset")})
    assert (worst.node, worst.gpu, worst.cause, worst.isolate) == ("node-1", "00000000:02:00.0", "gpu_reset_required_xid_95", True)
    assert remap.reading == "remap_pending"


@pytest.mark.parametrize(("how", "gpu"), [("lost", "00000000:02:00.0"), ("refuses", "1")])
def test_a_lost_gpu_does_not_hide_the_others(read: Read, how: str, gpu: str) -> None:
    told = read(f"ok,{how},ok")
    assert len(told["gpus"]) == 3
    [finding] = judge_snapshot({"node-1": told})
    assert (finding.gpu, finding.cause) == (gpu, "gpu_fell_off_bus")


def test_a_call_that_hangs_costs_the_deadline_and_names_the_gpu(read: Read) -> None:
    told = read("ok,hang,ok", seconds=4.0)
    assert "recovery_action" in told["gpus"]["00000000:01:00.0"]
    assert "did not answer" in told["gpus"]["00000000:02:00.0"]["error"]
    [finding] = judge_snapshot({"node-1": told})
    assert (finding.gpu, finding.isolate, finding.action.value) == ("00000000:02:00.0", False, "hold")


def test_a_driver_that_hangs_at_the_start_is_unknown_with_the_reason(read: Read) -> None:
    assert read("stuck", seconds=1.0) == {"unknown": "NVML did not answer within 1 s"}


def test_a_process_that_dies_inside_the_driver_leaves_what_it_read(read: Read) -> None:
    told = read("ok,dies")
    assert "recovery_action" in told["gpus"]["00000000:01:00.0"]
    assert "ended while" in told["gpus"]["00000000:02:00.0"]["error"]


def test_a_machine_without_the_driver_says_so(read: Read) -> None:
    assert "driver installed and loaded" in read("absent")["unknown"]


def test_the_real_binding_answers_or_says_why_not() -> None:
    told = read_gpus(timedelta(seconds=20))
    assert ("unknown" in told) != ("gpus" in told)


def test_a_binding_that_is_not_there_is_unknown_with_the_reason() -> None:
    assert "No module named" in read_gpus(timedelta(seconds=20), binding="no_such_binding")["unknown"]
