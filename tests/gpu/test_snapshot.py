"""Readings of GPUs in the shapes they come in, and what they say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.diagnosis.causes import cause_of
from activities.gpu.findings import GpuFinding, Role
from activities.gpu.readings import as_number, canonical, readings_table
from activities.gpu.snapshot import judge_snapshot
from activities.records import Action, Domain


def one(data: dict[str, Any]) -> GpuFinding:
    [finding] = judge_snapshot(data)
    return finding


# -------------------------------------------------------------------------------------------------------- one reading


@pytest.mark.parametrize(
    ("data", "cause", "role", "isolate", "action"),
    [
        ({"remap_failure": True}, "xid_64_row_remap_failure", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"remapped_rows_pending": "yes", "remap_failure": "no"}, "xid_63_row_remap_pending", Role.NOTICE, True, Action.NONE),
        ({"gpu_recovery_action": "Reset"}, "gpu_reset_required_xid_95", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"gpu_recovery_action": 4}, "gpu_reset_required_xid_95", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"DCGM_FI_DEV_GPU_RECOVERY_ACTION": 2}, "gpu_reset_required_xid_95", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"gpu_recovery_action": "Recover IMEX"}, "nvlink_fabric_misconfigured", Role.PRIMARY, False, Action.HOLD),
        ({"gpu_recovery_action": "a new word"}, "unknown", Role.PRIMARY, False, Action.HOLD),
        ({"ecc_uncorrected_volatile": 3}, "ecc_uncorrectable", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 3}, "ecc_uncorrectable", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"ecc_uncorrectable_aggregate": 3}, "ecc_uncorrectable", Role.NOTICE, False, Action.NONE),
        ({"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 3}, "ecc_uncorrectable", Role.NOTICE, False, Action.NONE),
        ({"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1}, "xid_64_row_remap_failure", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"clocks_event_reasons": "HW Thermal Slowdown: Active"}, "thermal_throttling", Role.PRIMARY, True, Action.HOLD),
        ({"clocks_throttle_reasons": 0x44}, "thermal_throttling", Role.PRIMARY, True, Action.HOLD),
        ({"clocks_throttle_reasons": "0x0000000000000080"}, "thermal_throttling", Role.PRIMARY, True, Action.HOLD),
        ({"throttle_reasons": ["sw_power_cap", "hw_power_brake"]}, "thermal_throttling", Role.PRIMARY, True, Action.HOLD),
        ({"processes_not_in_job": 2}, "gpu_shared_by_foreign_process", Role.PRIMARY, True, Action.HOLD),
        (
            {"processes": [{"pid": 9, "job": 12}, {"pid": 8, "job": "none"}]},
            "gpu_shared_by_foreign_process",
            Role.PRIMARY,
            True,
            Action.HOLD,
        ),
        (
            {"processes": [{"pid": 9, "job_id": 12}, {"pid": 8, "job_id": 13}]},
            "gpu_shared_by_foreign_process",
            Role.PRIMARY,
            True,
            Action.HOLD,
        ),
        ({"memory_used_mib_at_start": 60000}, "gpu_not_clean_at_start", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"gpu_count": 7, "expected_gpus": 8}, "gpu_fell_off_bus", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"missing_gpus": 1}, "gpu_fell_off_bus", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"3": {"error": "GPU is lost"}}, "gpu_fell_off_bus", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"nvlink_links_down": 2}, "xid_74_nvlink_fatal", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"fabric_manager": "inactive"}, "fabric_manager_not_running", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ({"pcie_link_width": "8x", "pcie_link_width_max": "16x"}, "slow_gpu_straggler", Role.NOTICE, False, Action.NONE),
        ({"relative_perf_score": 0.6}, "slow_gpu_straggler", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
    ],
)
def test_a_bad_reading_says_what_it_means(data: dict[str, Any], cause: str, role: Role, isolate: bool, action: Action) -> None:
    finding = one(data)
    assert (finding.cause, finding.role, finding.isolate, finding.action) == (cause, role, isolate, action)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"utilization": "100 % on all", "power": "frozen at a constant low level on all", "xid": "none", "ecc": "0", "nvlink_errors": "0"},
        {"nvlink_error_counters": "unchanged across the event", "ecc_uncorrected": 0},
        {"ecc_uncorrectable_volatile": "0 on all", "remapped_rows": "0 on all"},
        {"xid": "none", "ecc": "0", "processes": "none"},
        {"processes": [{"pid": 9, "job": 12, "name": "python"}, {"pid": 8, "job": 12}, {"pid": 7}]},
        {"clocks_event_reasons": "SW Power Cap: Active", "temperature_c": 70},
        {"clocks_throttle_reasons": 0x4},
        {"clocks_throttle_reasons": "HW Thermal Slowdown: Not Active, SW Power Cap: Active"},
        {"gpu_recovery_action": "None", "ecc_uncorrected_volatile": "N/A", "fabric_state": "Completed", "fabric_manager": "running"},
        {"dram_correctable": 177, "remapped_rows_correctable": 1},
        {"worker-1": {"util_pct": [0] * 8}, "worker-2": {"util_pct": [100] * 8}},
        {"node-1": {"sm_clock_mhz": [210, 210, 210, 90]}},  # idle
        {"node-1": {"sm_clock_mhz": [1980, 1980, 1975, 900], "util_pct": [99, 99, 99, 0]}},  # the slow one has nothing to do
        {"unknown": "NVML cannot start here"},
        {"last_xid": 45},
        {"memory_used_mib_at_start": 600},
    ],
)
def test_good_idle_and_unknown_readings_say_nothing(data: dict[str, Any]) -> None:
    assert judge_snapshot(data) == ()


def test_dcgms_last_xid_is_only_a_hint() -> None:
    finding = one({"node-1": {"0": {"DCGM_FI_DEV_XID_ERRORS": 79}}})
    assert (finding.cause, finding.role, finding.isolate) == ("xid_79_fell_off_bus", Role.NOTICE, False)
    assert finding.confidence <= 0.5


def test_a_memory_error_whose_remap_is_pending_is_the_contained_kind() -> None:
    [worst, _] = judge_snapshot({"n1": {"0": {"ecc_uncorrected_volatile": 1, "remap_pending": True}}})
    assert worst.cause == "ecc_contained_row_remap_pending"


# ------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("data", "node", "gpu"),
    [
        ({"node-1": {"6": {"remap_failure": True}}}, "node-1", "6"),
        ({"node-1": {"gpu6": {"remap_failure": True}}}, "node-1", "gpu6"),
        ({"node-1": {"0000:10:1c": {"remap_failure": True}}}, "node-1", "0000:10:1c"),
        ({"node-1": {"gpus": {"6": {"remap_failure": True}}}}, "node-1", "6"),
        ({"nodes": {"node-1": {"6": {"remap_failure": True}}}}, "node-1", "6"),
        ({"node": "node-1", "remap_failure": True}, "node-1", None),
        ({"node": "node-1", "gpu": 6, "remap_failure": True}, "node-1", "6"),
        ({"node-1": {"remap_failure": [False, False, True, False]}}, "node-1", "2"),
        ({"gpus": [{"index": 0, "remap_failure": False}, {"index": 6, "remap_failure": True}]}, None, "6"),
        ({"node-1": {"GPU-8f2c1a00-1111": {"remapped_rows": {"failure": 1}}}}, "node-1", "GPU-8f2c1a00-1111"),
    ],
)
def test_node_and_gpu_are_found_in_every_shape(data: dict[str, Any], node: str | None, gpu: str | None) -> None:
    finding = one(data)
    assert (finding.node, finding.gpu, finding.cause) == (node, gpu, "xid_64_row_remap_failure")


SMI = """
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Recovery Action                   : Drain and Reset
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 0
    Remapped Rows
        Correctable Error                 : 1
        Pending                           : No
        Remapping Failure Occurred        : No
    Clocks Event Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
        SW Power Cap                      : Active
GPU 00000000:4E:00.0
    GPU Recovery Action                   : None
    Remapped Rows
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Clocks Event Reasons
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
"""


def test_the_text_of_nvidia_smi_is_read_by_its_sections() -> None:
    found = {(finding.gpu, finding.cause) for finding in judge_snapshot({"node-1": {"nvidia_smi": SMI}})}
    assert found == {
        ("00000000:3b:00.0", "gpu_reset_required_xid_95"),
        ("00000000:4e:00.0", "xid_63_row_remap_pending"),
        ("00000000:4e:00.0", "thermal_throttling"),
    }


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_the_exposition_of_dcgm_is_read_with_its_labels(label: str) -> None:
    text = f'# HELP x\nDCGM_FI_DEV_ROW_REMAP_FAILURE{{gpu="3",UUID="GPU-1",{label}="node-9"}} 1\nDCGM_FI_DEV_GPU_TEMP{{gpu="3"}} 60\n'
    finding = one({"dcgm": text})
    assert (finding.node, finding.gpu, finding.cause) == ("node-9", "GPU-1", "xid_64_row_remap_failure")


# -------------------------------------------------------------------------------------------------------------- peers


def test_a_gpu_much_slower_than_its_peers_stands_out() -> None:
    finding = one({"n1": {"sm_clock_mhz": [1980, 1980, 1980, 1980]}, "n2": {"sm_clock_mhz": [1980, 1110, 1980, 1980]}})
    assert (finding.node, finding.gpu, finding.cause, finding.isolate) == ("n2", "1", "slow_gpu_straggler", True)


def test_a_node_with_longer_steps_than_its_peers_stands_out() -> None:
    finding = one({f"n{number}": {"step_time_s": 4.0 if number == 2 else 2.0} for number in range(5)})
    assert (finding.node, finding.cause) == ("n2", "slow_gpu_straggler")


def test_where_many_are_slow_no_one_is() -> None:
    assert judge_snapshot({"n1": {"sm_clock_mhz": [1980, 1980, 1980, 1980, 1110, 1110, 1110, 1110]}}) == ()


def test_a_clock_that_falls_with_heat_is_throttled() -> None:
    finding = one({"node": "n8", "temperature_c": [62, 71, 80, 87, 89], "sm_clock_mhz": [1890, 1860, 1700, 1440, 1290]})
    assert (finding.node, finding.cause, finding.action) == ("n8", "thermal_throttling", Action.HOLD)


def test_a_node_with_fewer_gpus_than_the_others_lost_one() -> None:
    finding = one({f"n{number}": {"gpu_count": 7 if number == 3 else 8} for number in range(5)})
    assert (finding.node, finding.cause, finding.value) == ("n3", "gpu_fell_off_bus", "7 of 8")


# --------------------------------------------------------------------------------------------- tables and hostile input


@pytest.mark.parametrize("row", readings_table()["readings"], ids=lambda row: row["reading"])
def test_each_row_that_judges_speaks_the_closed_vocabulary(row: dict[str, Any]) -> None:
    if row["test"] == "none":
        return
    cause = cause_of(row["cause"])
    assert cause is not None
    assert cause.domain is Domain(row["domain"])
    assert row["source"]


@pytest.mark.parametrize(
    ("value", "number"), [("85 C", 85), ("16x", 16), ("0 on all", 0), (True, 1), ("yes", 1), ("Not Active", 0), ("0x40", 64)]
)
def test_numbers_are_read_with_their_units(value: object, number: float) -> None:
    assert as_number(value) == number


@pytest.mark.parametrize("value", ["unchanged", "N/A", "", None, [], float("nan"), float("inf"), "0000:3b:00"])
def test_what_is_no_number_is_none(value: object) -> None:
    assert as_number(value) is None


NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["node", "gpu", "gpus", "3", "remap_failure", "sm_clock", "ecc", "error", "xid", "recovery_action"]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=40), st.sampled_from([SMI, 'DCGM_X{a="b"} 1'])),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(NAMES, inner, max_size=5)),
    max_leaves=20,
)


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_any_mapping_is_judged_without_an_error(data: dict[str, Any]) -> None:
    for finding in judge_snapshot(data):
        assert finding.cause == "unknown" or cause_of(finding.cause) is not None


@given(st.text())
def test_any_name_is_known_or_left_out(name: str) -> None:
    canonical(name)


def test_a_node_called_like_a_gpu_is_the_node_of_the_gpus_below_it() -> None:
    found = judge_snapshot({"gpu-02": {"gpu1": {"ecc_uncorrectable_volatile": 3}}, "gpu-03": {"gpu1": {"ecc_uncorrectable_volatile": 0}}})
    assert [(finding.node, finding.gpu) for finding in found] == [("gpu-02", "gpu1")]
