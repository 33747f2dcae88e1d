"""Which line of an incident came first, and which nodes it blames."""

from datetime import UTC, datetime

import pytest

from activities.gpu.findings import KernelFinding, Role
from activities.gpu.kernel import judge_bursts, read_kernel_log
from activities.records import Action, Domain
from tests.gpu.lines import (
    CONTAINED,
    DOUBLE_BIT,
    FELL_OFF,
    MMU_FAULT,
    NVLINK_FATAL,
    PEER_ACCESS,
    PREEMPTED,
    REMAP_FAILED,
    REMAPPED,
    a_recovery,
    a_warp_exception,
    an_xid,
    on,
)


def bursts(*lines: str) -> tuple[KernelFinding, ...]:
    return judge_bursts(read_kernel_log("\n".join(lines)))


def one(*lines: str) -> KernelFinding:
    [finding] = bursts(*lines)
    return finding


# ---------------------------------------------------------------------------------------------------- one node


def test_the_first_cause_wins_and_what_follows_is_counted() -> None:
    finding = one(
        on("n1", "03:13:37", NVLINK_FATAL),
        on("n1", "03:13:37", a_recovery("GPU Reset Required")),
        *[on("n1", "03:13:38", an_xid(45, "Ch 00000008", gpu=f"0000:{bus}:00")) for bus in ("c3", "07", "44", "84", "0a", "4a")],
        on("n1", "03:14:23", "NVRM: _kgspLogXid119: ****** GSP Timeout ******"),
    )
    assert (finding.cause, finding.node, finding.gpu) == ("xid_74_nvlink_fatal", "n1", "0000:3b:00")
    assert (finding.action, finding.isolate, finding.dropped) == (Action.RESTART_EXCLUDING, True, 8)
    assert finding.others == ("xid_154", "xid_45", "gsp_timeout")


def test_a_storm_of_45_blames_nobody() -> None:
    finding = one(*[on("n1", "11:00:00", an_xid(45, "Ch 1", gpu=f"0000:{bus:02x}:00")) for bus in range(8)])
    assert (finding.role, finding.isolate, finding.action, finding.domain) == (Role.CONSEQUENCE, False, Action.NONE, Domain.NONE)


def test_45_before_the_root_does_not_win() -> None:
    assert one(on("n1", "11:00:00", PREEMPTED), on("n1", "11:00:02", FELL_OFF)).event == "xid_79"


def test_a_survivors_fault_before_the_device_is_reported_lost_does_not_win() -> None:
    assert one(on("n1", "11:00:00", MMU_FAULT), on("n1", "11:00:03", FELL_OFF)).cause == "xid_79_fell_off_bus"


def test_three_minutes_of_silence_part_two_incidents() -> None:
    found = bursts(on("n1", "11:00:00", MMU_FAULT), on("n1", "11:02:59", PREEMPTED), on("n1", "11:06:00", FELL_OFF))
    assert [finding.event for finding in found] == ["xid_31", "xid_79"]


def test_a_reboot_parts_two_incidents() -> None:
    found = bursts(f"[90000.1] {MMU_FAULT}", f"[12.5] {FELL_OFF}")
    assert [finding.event for finding in found] == ["xid_31", "xid_79"]


@pytest.mark.parametrize(
    ("lines", "cause", "action", "isolate"),
    [
        ((DOUBLE_BIT, REMAPPED, CONTAINED), "ecc_contained_row_remap_pending", Action.RESTART_EXCLUDING, True),
        ((REMAPPED, CONTAINED), "ecc_contained_row_remap_pending", Action.RESTART_EXCLUDING, True),
        ((DOUBLE_BIT, CONTAINED), "ecc_contained_row_remap_pending", Action.RESTART, False),
        ((CONTAINED,), "ecc_contained_row_remap_pending", Action.RESTART, False),
        ((DOUBLE_BIT,), "ecc_uncorrectable", Action.RESTART_EXCLUDING, True),
        ((DOUBLE_BIT, REMAPPED, REMAP_FAILED, CONTAINED), "xid_64_row_remap_failure", Action.RESTART_EXCLUDING, True),
        ((DOUBLE_BIT, an_xid(95, "Uncontained: LTC TAG. RST: Yes, D-RST: No")), "ecc_uncorrectable", Action.RESTART_EXCLUDING, True),
        ((REMAPPED,), "xid_63_row_remap_pending", Action.NONE, True),
        ((PEER_ACCESS, PEER_ACCESS, CONTAINED, PREEMPTED), "xid_137_peer_access_error", Action.RESTART, False),
        ((MMU_FAULT, an_xid(43, "Ch 00000009"), PREEMPTED), "illegal_memory_access_app_bug", Action.RESTART, False),
        ((PREEMPTED, an_xid(119, "Timeout waiting for RPC from GSP0!")), "xid_119_gsp_timeout", Action.RESTART_EXCLUDING, True),
    ],
)
def test_codes_are_judged_as_a_set(lines: tuple[str, ...], cause: str, action: Action, isolate: bool) -> None:
    finding = one(*lines)
    assert (finding.cause, finding.action, finding.isolate) == (cause, action, isolate)


def test_154_sets_the_action_of_a_fault_that_alone_would_only_restart() -> None:
    finding = one(CONTAINED, a_recovery("GPU Reset Required"))
    assert (finding.event, finding.action, finding.isolate) == ("xid_94", Action.RESTART_EXCLUDING, True)


def test_154_alone_keeps_the_node_out_without_knowing_why() -> None:
    finding = one(a_recovery("Node Reboot Required"))
    assert (finding.role, finding.action, finding.isolate) == (Role.PRIMARY, Action.RESTART_EXCLUDING, True)


def test_154_back_to_none_asks_for_nothing() -> None:
    assert one(a_recovery("None")).role is Role.BENIGN


def test_an_unknown_xid_asks_for_a_person() -> None:
    finding = one(an_xid(777, "something new"))
    assert (finding.role, finding.action, finding.domain) == (Role.PRIMARY, Action.HOLD, Domain.UNKNOWN)


def test_power_smoothing_engaged_again_clears_its_loss() -> None:
    assert "xid_163" not in [finding.event for finding in bursts(an_xid(163, "PSHC disengaged"), an_xid(162, "PSHC re-engaged"))]


def test_benign_lines_alone_stay_benign() -> None:
    finding = one("mlx5_core 0000:5c:00.0: mlx5_pcie_event:301:(pid 2): Detected insufficient power on the PCIe slot (27W).")
    assert (finding.role, finding.action) == (Role.BENIGN, Action.NONE)


def test_a_port_that_comes_back_flapped_and_one_that_stays_down_lowers_bandwidth() -> None:
    down, up = "mlx5_core 0000:2a:00.0 ens2np0: Link down", "mlx5_core 0000:2a:00.0 ens2np0: Link up"
    stays, flaps = one(on("n1", "11:00:00", down)), one(on("n1", "11:00:00", down), on("n1", "11:00:09", up))
    assert (stays.cause, stays.action) == ("ib_port_down_degraded", Action.HOLD)
    assert (flaps.cause, flaps.action) == ("ib_port_error", Action.RESTART_EXCLUDING)


# ------------------------------------------------------------------------------------------------------ repeats


def test_13_at_one_place_again_follows_the_device() -> None:
    first, second = bursts(on("n1", "11:00:00", a_warp_exception(1, 2)), on("n1", "15:00:00", a_warp_exception(1, 2, pid=99)))
    assert not first.isolate
    assert (second.cause, second.isolate) == ("illegal_memory_access_faulty_gpu", True)


@pytest.mark.parametrize(
    "second",
    [
        on("n1", "15:00:00", a_warp_exception(4, 2)),  # another place
        on("n1", "11:00:01", a_warp_exception(1, 2)),  # the same event, printed twice
        "May  8 15:00:00 n1 kernel: " + a_warp_exception(1, 2),  # two days later
    ],
)
def test_13_elsewhere_or_long_after_stays_the_programs(second: str) -> None:
    assert not any(finding.isolate for finding in bursts(on("n1", "11:00:00", a_warp_exception(1, 2)), second))


def test_31_again_on_one_gpu_with_another_program_follows_the_device() -> None:
    again = an_xid(31, "Ch 00000010, MMU Fault", name="other")
    assert bursts(on("n1", "11:00:00", MMU_FAULT), on("n1", "15:00:00", again))[-1].cause == "illegal_memory_access_faulty_gpu"
    assert not bursts(on("n1", "11:00:00", MMU_FAULT), on("n1", "15:00:00", MMU_FAULT))[-1].isolate


def test_31_that_moves_between_gpus_is_the_program() -> None:
    lines = [on("n1", f"1{hour}:00:00", an_xid(31, "MMU Fault", gpu=f"0000:{hour}b:00", name=f"p{hour}")) for hour in range(4)]
    assert not any(finding.isolate for finding in bursts(*lines))


# ----------------------------------------------------------------------------------------------- several nodes


def test_the_node_whose_device_died_explains_its_peers() -> None:
    found = bursts(on("n1", "11:00:00", FELL_OFF), on("n2", "11:00:01", PEER_ACCESS), on("n3", "11:00:02", MMU_FAULT))
    assert [(finding.node, finding.role, finding.isolate) for finding in found] == [
        ("n1", Role.PRIMARY, True),
        ("n2", Role.CONSEQUENCE, False),
        ("n3", Role.CONSEQUENCE, False),
    ]


def test_one_fault_on_many_nodes_in_a_minute_blames_what_they_share() -> None:
    found = bursts(*[on(f"n{number}", f"11:00:{number:02d}", FELL_OFF) for number in range(4)])
    assert [(finding.isolate, finding.action) for finding in found] == [(False, Action.HOLD)] * 4
    assert "4 nodes in one minute" in found[0].why


def test_uptime_says_nothing_across_nodes() -> None:
    found = bursts(*[f"n{number} kernel: [100.{number}] {FELL_OFF}" for number in range(4)])
    assert all(finding.isolate for finding in found)


# ------------------------------------------------------------------------------------- what the table calls ignorable

_REGISTERS = "XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
_TORN_DOWN = an_xid(45, "Ch 00000001 caused by previous Xid 145")


@pytest.mark.parametrize(("says", "isolate"), [("Fatal", True), ("Nonfatal", False)])
def test_an_ignorable_nvlink_error_that_a_process_was_torn_down_for_is_none(says: str, isolate: bool) -> None:
    finding = one(f"NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE {says} {_REGISTERS}", _TORN_DOWN)
    assert (finding.cause, finding.isolate) == ("xid_145_nvlink_fabric", isolate)


def test_an_ignorable_nvlink_error_that_nobody_died_of_stays_one() -> None:
    finding = one(f"NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE Nonfatal {_REGISTERS}", an_xid(45, "Ch 00000001"))
    assert finding.cause != "xid_145_nvlink_fabric"


def test_a_fault_of_which_only_the_victims_are_left_is_told_by_them() -> None:
    finding = one(an_xid(45, "Ch 00000001 caused by previous Xid 145"), an_xid(45, "Ch 00000002 caused by previous Xid 149"))
    assert (finding.cause, finding.isolate, finding.role) == ("xid_149_nvlink_netir", True, Role.PRIMARY)


@pytest.mark.parametrize(
    ("unit", "victims", "cause"),
    [
        ("NETIR_LINK_EVT", True, "xid_149_nvlink_netir"),
        ("NETIR_LINK_EVT", False, "xid_149_nvlink_link_down"),
        ("NETIR_LINK_DOWN", True, "xid_149_nvlink_link_down"),
    ],
)
def test_a_link_event_that_other_gpus_die_of_is_more_than_a_link(unit: str, victims: bool, cause: str) -> None:
    link = (
        f"NVRM: Xid (PCI:0000:dc:00): 149, {unit} Fatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    lost = "NVRM: Xid (PCI:0000:ed:00): 45, pid=12, name=python, Ch 0000000c caused by previous Xid 145"
    assert one(link, *([lost] if victims else [])).cause == cause


# --------------------------------------------------------------------------------------------- the incident's window

SINCE = datetime(2025, 5, 6, 12, 0, tzinfo=UTC)


def dated(time: str, text: str) -> str:
    return f"2025-05-06T{time}+00:00 n1 kernel: {text}"


def test_an_old_application_fault_is_outside_the_incident() -> None:
    assert judge_bursts(read_kernel_log(dated("09:00:00", MMU_FAULT)), since=SINCE) == ()


def test_an_old_fault_that_no_reset_cleared_still_keeps_the_node_out() -> None:
    [finding] = judge_bursts(read_kernel_log(dated("09:00:00", an_xid(95, "Uncontained"))), since=SINCE)
    assert (finding.cause, finding.isolate) == ("gpu_reset_required_xid_95", True)


def test_a_driver_load_clears_what_came_before() -> None:
    load = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"
    lines = "\n".join([dated("09:00:00", an_xid(95, "Uncontained")), dated("09:30:00", load)])
    assert [finding for finding in judge_bursts(read_kernel_log(lines), since=SINCE) if finding.isolate] == []


def test_a_boot_clears_what_came_before() -> None:
    lines = "\n".join([dated("09:00:00", FELL_OFF), dated("09:30:00", "Linux version 5.14.0-427.13.1.el9_4.x86_64 (mockbuild@x64)")])
    assert judge_bursts(read_kernel_log(lines), since=SINCE) == ()


@pytest.mark.parametrize(
    ("stamp", "since", "is_kept"),
    [
        ("May  6 11:03:44", datetime(2025, 5, 6, 10, 0, tzinfo=UTC), True),
        ("May  6 11:03:44", datetime(2025, 5, 6, 12, 0, tzinfo=UTC), False),
        ("Jan  1 00:03:44", datetime(2024, 12, 30, 12, 0, tzinfo=UTC), True),
        ("Dec 31 23:03:44", datetime(2025, 1, 2, 12, 0, tzinfo=UTC), False),
    ],
)
def test_a_stamp_without_a_year_is_of_the_year_that_brings_it_nearest(stamp: str, since: datetime, is_kept: bool) -> None:
    assert bool(judge_bursts(read_kernel_log(f"{stamp} n1 kernel: {MMU_FAULT}"), since=since)) is is_kept
