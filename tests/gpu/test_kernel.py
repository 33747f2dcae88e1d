"""Kernel log text: prefixes of every usual form, the table's own examples, messages over several lines, and hostile bytes."""

from datetime import UTC, datetime, timedelta, timezone
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from activities.diagnosis.causes import cause_of
from activities.gpu.findings import Clock, Role
from activities.gpu.kernel import LINES, judge_bursts, read_kernel_log
from activities.records import Action, Domain
from tests.gpu.lines import FELL_OFF

ROWS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(LINES)["lines"]
NVLINK_DOWN_575 = "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 1 (0x00200011 0x00000000)"


# -------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_row_finds_its_example_and_no_earlier_row_takes_it(row: dict[str, Any]) -> None:
    [finding] = read_kernel_log(row["example"])
    assert finding.event == row["id"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_row_leaves_its_counter_example_alone(row: dict[str, Any]) -> None:
    assert row["id"] not in [finding.event for finding in read_kernel_log(row["not"])]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_row_speaks_the_closed_vocabulary(row: dict[str, Any]) -> None:
    for change in ({}, *row.get("below", ())):
        meaning = {**row, **change}
        cause = cause_of(meaning["cause"])
        assert meaning["cause"] == "unknown" if cause is None else cause.domain is Domain(meaning["domain"])
        assert Role(meaning.get("role", "primary"))
        Action(meaning.get("action", "none"))
    assert row["needs"] in row["example"].lower()
    assert row["source"]


# ------------------------------------------------------------------------------------------------------- prefixes


@pytest.mark.parametrize(
    ("prefix", "node", "clock", "at"),
    [
        ("", None, None, None),
        ("[ 1843.308145] ", None, Clock.UPTIME, None),
        ("[ 1843.308145][    T1] ", None, Clock.UPTIME, None),
        ("<4>[ 1843.308145] ", None, Clock.UPTIME, None),
        ("4,1234,1843308145,-;", None, Clock.UPTIME, None),
        ("node-7 kernel: ", "node-7", None, None),
        ("node-7: [ 1843.308145] ", "node-7", Clock.UPTIME, None),
        ("node-7 ", "node-7", None, None),
        ("gpu07.alpha.example.org: ", "gpu07.alpha.example.org", None, None),
        ("May 19 07:08:57 node-100 kernel: [680111.646286] ", "node-100", Clock.YEARLESS, None),
        ("May  6 11:03:44 3 kernel: ", "3", Clock.YEARLESS, None),
        ("node-006 [Sat Mar  4 04:19:03 2023] ", "node-006", Clock.LOCAL, datetime(2023, 3, 4, 4, 19, 3, tzinfo=UTC)),
        ("[Sat Mar  4 04:19:03 2023] ", None, Clock.LOCAL, datetime(2023, 3, 4, 4, 19, 3, tzinfo=UTC)),
        ("2025-05-06T11:03:44.500000+02:00 node-1 kernel: ", "node-1", Clock.UTC, datetime(2025, 5, 6, 9, 3, 44, 500000, tzinfo=UTC)),
        ("2025-05-06T11:03:44+0000 node-1 kernel: ", "node-1", Clock.UTC, datetime(2025, 5, 6, 11, 3, 44, tzinfo=UTC)),
        ("2025-05-06T11:03:44,123456+00:00 ", None, Clock.UTC, datetime(2025, 5, 6, 11, 3, 44, 123456, tzinfo=UTC)),
        ("2025-05-06T11:03:44Z node-1 ", "node-1", Clock.UTC, datetime(2025, 5, 6, 11, 3, 44, tzinfo=UTC)),
        ("2025-05-06 11:03:44 node-1 kernel: ", "node-1", Clock.LOCAL, datetime(2025, 5, 6, 11, 3, 44, tzinfo=UTC)),
    ],
)
def test_node_and_time_are_read_from_every_usual_prefix(prefix: str, node: str | None, clock: Clock | None, at: datetime | None) -> None:
    [finding] = read_kernel_log(prefix + FELL_OFF)
    assert (finding.event, finding.node, finding.clock, finding.at) == ("xid_79", node, clock, at)
    assert finding.text.startswith("NVRM: Xid")


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:5c:00.0: Detected insufficient power on the PCIe slot (27W).",
        "python3[40114]: segfault at 0 ip 00007f12 sp 00007ffd error 4 in libc.so.6",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
        "watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python3:40114]",
        "EDAC MC1: 1 UE memory read error on CPU_SrcID#1",
        "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
        "pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
    ],
)
def test_a_drivers_own_name_is_never_taken_for_a_node(line: str) -> None:
    [finding] = read_kernel_log(line)
    assert finding.node is None


def test_the_callers_node_overrules_names_in_the_lines() -> None:
    [finding] = read_kernel_log("May 19 07:08:57 localhost kernel: " + FELL_OFF, node="node-9")
    assert finding.node == "node-9"


def test_stamps_without_year_or_zone_take_the_callers() -> None:
    [finding] = read_kernel_log("May 19 07:08:57 n1 kernel: " + FELL_OFF, year=2025, zone=timezone(timedelta(hours=2)))
    assert finding.at == datetime(2025, 5, 19, 5, 8, 57, tzinfo=UTC)


def test_february_29_without_a_year_is_a_date() -> None:
    [finding] = read_kernel_log("Feb 29 07:08:57 n1 kernel: " + FELL_OFF)
    assert (finding.node, finding.clock) == ("n1", Clock.YEARLESS)


# ----------------------------------------------------------------------------------------------- over several lines


def test_a_gpu_lost_in_words_over_three_lines_is_named() -> None:
    text = """[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands."""
    [finding] = judge_bursts(read_kernel_log(text))
    assert (finding.cause, finding.gpu, finding.isolate, finding.line) == ("gpu_fell_off_bus", "0000:b3:00.0", True, 3)


@pytest.mark.parametrize(
    ("frame", "cause", "domain"),
    [
        ("gpfs_f_aio_write_internal+0x11d/0x390 [mmfslinux]", "parallel_fs_write_stuck", Domain.STORAGE),
        ("ll_file_write_iter+0x10/0x20 [lustre]", "parallel_fs_write_stuck", Domain.STORAGE),
        ("nfs_wait_bit_killable+0x21/0xa0 [nfs]", "parallel_fs_write_stuck", Domain.STORAGE),
        ("uvm_va_space_destroy+0x10/0x20 [nvidia_uvm]", "cuda_unknown_error_gpu", Domain.HARDWARE),
        ("mlx5_cmd_exec+0x10/0x20 [mlx5_core]", "hca_local_catastrophic_error", Domain.NETWORK),
        ("io_schedule+0x12/0x40", "unknown", Domain.UNKNOWN),
    ],
)
def test_what_a_stuck_process_waits_for_stands_in_its_trace(frame: str, cause: str, domain: Domain) -> None:
    head = "INFO: task python:280058 blocked for more than 120 seconds."
    [finding, *_] = read_kernel_log(f"n1 [Sat Mar  4 04:19:03 2023] {head}\nn1 [Sat Mar  4 04:19:03 2023]  {frame}")
    assert (finding.cause, finding.domain, finding.device) == (cause, domain, "python:280058")


def test_a_trace_of_another_node_explains_nothing() -> None:
    text = "n1 kernel: INFO: task python:1 blocked for more than 120 seconds.\nn2 kernel: Call Trace: ll_file_write [lustre]"
    assert read_kernel_log(text)[0].cause == "unknown"


def test_the_data_lines_of_an_sxid_are_not_judged_again() -> None:
    text = """[111111.123] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[111111.124] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00"""
    assert [finding.line for finding in read_kernel_log(text)] == [1]


def test_the_driver_named_in_the_log_chooses_the_nvlink_layout() -> None:
    loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)"
    new = read_kernel_log(loaded.format("575.57.08") + "\n" + NVLINK_DOWN_575)[-1]
    old = read_kernel_log(loaded.format("570.158.01") + "\n" + NVLINK_DOWN_575)[-1]
    assert new.isolate
    assert (old.isolate, old.action) == (False, Action.HOLD)


# --------------------------------------------------------------------------------------------------- hostile input


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    judge_bursts(read_kernel_log(data))


PIECES = [row["example"] for row in ROWS] + [
    "May  6 11:03:44 n1 kernel: ",
    "[9999999999.1] ",
    "Feb 31 25:61:61 n1 ",
    "0000-00-00T00:00:00Z ",
    "\x00",
    "\r",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=30)), max_size=12), st.booleans())
def test_any_mixture_of_true_lines_and_noise_is_read_without_an_error(pieces: list[str], lines: bool) -> None:
    findings = judge_bursts(read_kernel_log(("\n" if lines else " ").join(pieces)), since=datetime(2025, 1, 1, tzinfo=UTC))
    assert all(finding.count >= 1 for finding in findings)


def test_an_endless_line_is_cut() -> None:
    [finding] = read_kernel_log(FELL_OFF + "x" * 5_000_000)
    assert len(finding.text) <= 500


@pytest.mark.parametrize(
    "line",
    [
        "ib0 " * 300 + "down",
        "mlx5_core " + "ens0 " * 250 + "down link",
        "EXT4-fs read-only " * 70,
        "Lustre: Connection to " * 60,
        "mmfs " * 250,
        "uncorrect pcieport " + "0000:00:00.0 " * 90,
        "NVRM: " + "0000:3b:00 " * 100 + "fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 74, " + "(0x1," * 230,
        "[hardware error] " * 70,
        ("NVRM: Xid (PCI:0000:3b:00): 145, Non-" + "A" * 1900 + "\n") * 40,
        ("NVRM: Xid (PCI:0000:3b:00): 145, " + " " * 1900 + "up\n") * 40,
    ],
)
def test_no_line_makes_a_pattern_run_away(line: str) -> None:
    started = process_time()
    read_kernel_log(line)
    assert process_time() - started < 5  # one that runs away takes minutes
