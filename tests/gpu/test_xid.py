"""One Xid or SXid: read in every form the drivers write, and judged by NVIDIA's catalogue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.diagnosis.causes import cause_of
from activities.gpu.findings import Role
from activities.gpu.xid import XidMessage, judge_sxid, judge_xid, parse_sxid, parse_xid, place_of
from activities.gpu.xid_table import table
from activities.records import Action, Domain
from tests.gpu.lines import FELL_OFF, MMU_FAULT, NVLINK_FATAL, a_recovery, a_warp_exception, an_nvlink5, an_xid

CODES = [row["code"] for row in table()["xids"]]


def judged(line: str, driver: str | None = None) -> "tuple[str, Role, bool, Action]":
    message = parse_xid(line)
    assert message is not None
    verdict = judge_xid(message, driver)
    return verdict.cause, verdict.role, verdict.isolate, verdict.action


# ---------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("line", "code", "gpu", "pid", "process"),
    [
        (FELL_OFF, 79, "0000:3b:00", 4711, "python3"),
        ("NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.", 79, "0000:3b:00", None, None),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000001, engmask 00000111", 31, "0000:03:00", None, None),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked", 63, "0000:10:1c", 1850, None),
        ("NVRM: Xid (PCI:0000:81:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed", 154, "0000:81:00", None, None),
        ("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, pid=7, name=a b, Contained: SM (0x1)", 94, "0000:05:00", 7, "a b"),
        ("NVRM: Xid (PCI:0008:01:00): 145, pid=876766, name=ray::Worker, RLW_RXPIPE Nonfatal", 145, "0008:01:00", 876766, "ray::Worker"),
        ("dcgm: XID error 79 on GPU 3", 79, None, None, None),
    ],
)
def test_every_form_of_the_message_is_read(line: str, code: int, gpu: str | None, pid: int | None, process: str | None) -> None:
    message = parse_xid(line)
    assert message is not None
    assert (message.code, message.gpu, message.pid, message.process) == (code, gpu, pid, process)


@pytest.mark.parametrize("line", ["", "no Xid here", "Xid", "XID count: none", "the exid 45 of a process"])
def test_prose_without_a_number_behind_the_word_is_no_message(line: str) -> None:
    assert parse_xid(line) is None


def test_the_mig_instance_is_kept() -> None:
    message = parse_xid("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, Contained")
    assert message is not None
    assert message.instance == "GPU-I:05"


@given(st.text())
def test_any_text_is_read_or_refused_without_an_error(text: str) -> None:
    for line in (
        text,
        f"NVRM: Xid (PCI:0000:3b:00): 74, {text}",
        f"NVRM: Xid (PCI:0000:3b:00): 149, {text}",
        f"Xid (PCI:0000:3b:00): {text}",
    ):
        message = parse_xid(line)
        if message is not None:
            judge_xid(message, text)
        if (sxid := parse_sxid(f"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, {text}")) is not None:
            judge_sxid(sxid)


# ------------------------------------------------------------------------------------------------- the catalogue


@pytest.mark.parametrize("code", CODES)
def test_every_xid_of_the_catalogue_has_a_verdict_of_the_closed_vocabulary(code: int) -> None:
    verdict = judge_xid(XidMessage(code=code))
    cause = cause_of(verdict.cause)
    assert verdict.cause == "unknown" if cause is None else verdict.domain is cause.domain
    assert verdict.why.startswith("Xid")
    assert verdict.bucket in table()["buckets"]


@pytest.mark.parametrize("code", CODES)
def test_only_a_first_cause_asks_for_an_action(code: int) -> None:
    verdict = judge_xid(XidMessage(code=code))
    if code == 154:
        return  # names an action and no cause
    assert (verdict.action is Action.NONE) == (verdict.role is not Role.PRIMARY)
    if verdict.action is Action.RESTART_EXCLUDING:
        assert verdict.isolate or verdict.bucket == "CHECK_UVM"


@pytest.mark.parametrize("code", [0, 2, 65, 123, 138, 174, 999, 9999])
def test_a_number_that_is_not_in_the_catalogue_needs_a_person(code: int) -> None:
    verdict = judge_xid(XidMessage(code=code))
    assert not verdict.known
    assert (verdict.action, verdict.isolate, verdict.cause, verdict.domain) == (Action.HOLD, False, "unknown", Domain.UNKNOWN)
    assert "person" in verdict.why


@pytest.mark.parametrize("code", [62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 158])
def test_one_event_that_asks_for_a_reset_or_reboot_isolates_its_node(code: int) -> None:
    verdict = judge_xid(XidMessage(code=code))
    assert (verdict.role, verdict.isolate, verdict.action) == (Role.PRIMARY, True, Action.RESTART_EXCLUDING)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 137])
def test_what_a_program_can_cause_blames_no_node(code: int) -> None:
    assert not judge_xid(XidMessage(code=code)).isolate


@pytest.mark.parametrize("code", [43, 45])
def test_a_channel_taken_down_is_a_consequence(code: int) -> None:
    assert judge_xid(XidMessage(code=code)).role is Role.CONSEQUENCE


def test_a_recorded_row_remap_lets_the_job_go_on_but_keeps_the_next_one_away() -> None:
    assert judged(an_xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate")) == (
        "xid_63_row_remap_pending",
        Role.NOTICE,
        True,
        Action.NONE,
    )


# -------------------------------------------------------------------------------------------------------- 154, 13


@pytest.mark.parametrize(
    ("text", "action", "isolate"),
    [
        ("GPU Reset Required", Action.RESTART_EXCLUDING, True),
        ("Node Reboot Required", Action.RESTART_EXCLUDING, True),
        ("Drain and Reset", Action.RESTART_EXCLUDING, True),
        ("Drain P2P", Action.RESTART_EXCLUDING, True),
        ("None", Action.NONE, False),
        ("Something New", Action.HOLD, False),
    ],
)
def test_the_last_parentheses_of_154_name_the_action(text: str, action: Action, isolate: bool) -> None:
    message = parse_xid(a_recovery(text))
    assert message is not None
    verdict = judge_xid(message)
    assert (verdict.action, verdict.isolate) == (action, isolate)


def test_the_place_of_a_warp_exception_is_read() -> None:
    message = parse_xid(a_warp_exception(3, 7))
    assert message is not None
    assert place_of(message) == "GPC 3, TPC 7"
    assert place_of(XidMessage(code=13, text="Graphics Exception: ESR 0x505730=0x20012")) is None


# ------------------------------------------------------------------------------------------------------- NVLink


@pytest.mark.parametrize(
    ("registers", "role", "isolate"),
    [
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", Role.PRIMARY, True),  # register 3 bit 16: repeat, field diagnostic
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.BENIGN, False),  # register 1 bit 0: ignore
        ("0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.CONSEQUENCE, False),  # bit 1: another device's fault, seen from here
        ("0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", Role.CONSEQUENCE, True),  # register 4 bit 18: secondary, but the fabric needs a reset
        ("0x102, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.PRIMARY, True),  # mechanics outweigh the secondary bit
    ],
)
def test_the_registers_of_74_are_read_before_blaming(registers: str, role: Role, isolate: bool) -> None:
    message = parse_xid(an_xid(74, f"NVLink: fatal error detected on link 8({registers})"))
    assert message is not None
    verdict = judge_xid(message)
    assert (verdict.role, verdict.isolate) == (role, isolate)


def test_a_74_without_registers_and_without_the_word_fatal_needs_a_person() -> None:
    assert judged(an_xid(74, "NVLink: link 3 something")) == ("xid_74_nvlink_fatal", Role.PRIMARY, False, Action.HOLD)
    assert judged(NVLINK_FATAL)[2:] == (True, Action.RESTART_EXCLUDING)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # true lines of recorded failures
        (an_nvlink5(145, "RLW_RXPIPE", "Nonfatal", 0x040980C2, 0x8), ("xid_145_nvlink_nonfatal", Role.BENIGN, False, Action.NONE)),
        (an_nvlink5(149, "NETIR_BER_EVENT", "Nonfatal", 0x0009C226, 0x1), ("xid_145_nvlink_nonfatal", Role.NOTICE, False, Action.NONE)),
        (
            an_nvlink5(149, "NETIR_LINK_DOWN", "Fatal", 0x0215C5C6, 0x0),
            ("xid_149_nvlink_link_down", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ),
        # by the table
        (
            an_nvlink5(149, "NETIR_LINK_DOWN", "Fatal", 0x026001C6, 0x0),
            ("xid_145_nvlink_nonfatal", Role.NOTICE, False, Action.NONE),
        ),  # reason 0x26
        (an_nvlink5(149, "NETIR", "Fatal", 0x006, 0x0), ("xid_149_nvlink_netir", Role.PRIMARY, True, Action.RESTART_EXCLUDING)),
        (an_nvlink5(144, "SAW_MVB", "Fatal", 0x021, 0x2), ("xid_145_nvlink_fabric", Role.PRIMARY, True, Action.RESTART_EXCLUDING)),
        (an_nvlink5(145, "RLW_SRC_TRACK", "Nonfatal", 0x0E2, 0x4), ("xid_145_nvlink_fabric", Role.CONSEQUENCE, False, Action.NONE)),
        (
            an_nvlink5(145, "RLW_RXPIPE", "Fatal", 0x4C2, 0x1),
            ("xid_145_nvlink_fabric", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ),  # promoted
        # undecoded: a unit, a bit or a layout in no row
        (an_nvlink5(145, "RLW_NEW", "Nonfatal", 0x0C2, 0x1), ("xid_145_nvlink_fabric", Role.PRIMARY, False, Action.HOLD)),
        (an_nvlink5(145, "RLW_RXPIPE", "Nonfatal", 0x0C2, 0x40000000), ("xid_145_nvlink_fabric", Role.PRIMARY, False, Action.HOLD)),
        (an_nvlink5(145, "RLW_RXPIPE", "Nonfatal", 0x0C2, 0x40000001), ("xid_145_nvlink_fabric", Role.PRIMARY, False, Action.HOLD)),
        (an_xid(149, "a text without words"), ("xid_149_nvlink_link_down", Role.PRIMARY, False, Action.HOLD)),
    ],
)
def test_nvlink_5_is_decoded_by_unit_and_words(line: str, expected: tuple[str, Role, bool, Action]) -> None:
    assert judged(line) == expected


def test_the_driver_chooses_the_layout() -> None:
    before, after = an_nvlink5(144, "SAW_MVB", "Fatal", 0x021, 0x2), an_nvlink5(144, "SAW_MVB", "Fatal", 0x001, 0x2)
    assert judged(before, "570.158.01")[2]
    assert not judged(after, "570.158.01")[2]
    assert judged(after, "575.57.08")[2]
    assert judged(after, None)[2]


def test_a_disagreement_of_line_and_table_is_left_to_a_person() -> None:
    cause, _, isolate, action = judged(an_nvlink5(145, "RLW_RSPCOL", "Nonfatal", 0x0A2, 0x2))
    assert (cause, isolate, action) == ("xid_145_nvlink_fabric", True, Action.HOLD)


def test_a_link_down_reason_that_points_at_the_peer_says_so() -> None:
    message = parse_xid(an_nvlink5(149, "NETIR_LINK_DOWN", "Fatal", 0x0215C5C6, 0x0))
    assert message is not None
    assert "peer" in judge_xid(message).why


# --------------------------------------------------------------------------------------------------------- SXid


@pytest.mark.parametrize(
    ("text", "role", "isolate", "action"),
    [
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", Role.BENIGN, False, Action.NONE),
        ("12020, Fatal, Link 08 egress sequence ID error", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ("11013, Fatal, Link 08 ingress header DBE", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ("11013, Non-fatal, Link 08 ingress header DBE", Role.BENIGN, False, Action.NONE),
        ("22003, Non-fatal, Link 08 Minion Halt", Role.PRIMARY, False, Action.HOLD),  # table and line disagree
        ("11013, Severity 1 Engine instance 08", Role.PRIMARY, False, Action.HOLD),  # no severity to go by
        ("99999, Fatal, new", Role.PRIMARY, True, Action.RESTART_EXCLUDING),
        ("99999, Non-fatal, new", Role.BENIGN, False, Action.NONE),
        ("99999, new", Role.PRIMARY, False, Action.HOLD),
        ("10004, Non-fatal, thermal", Role.NOTICE, False, Action.NONE),
    ],
)
def test_an_sxid_is_judged_by_its_severity_and_the_table(text: str, role: Role, isolate: bool, action: Action) -> None:
    message = parse_sxid(f"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {text}")
    assert message is not None
    verdict = judge_sxid(message)
    assert (verdict.role, verdict.isolate, verdict.action) == (role, isolate, action)


@pytest.mark.parametrize("row", table()["sxids"], ids=lambda row: str(row["code"]))
def test_every_sxid_of_the_table_has_a_verdict_for_each_word(row: "dict[str, str | int]") -> None:
    for word in ("Fatal, ", "Non-fatal, ", ""):
        message = parse_sxid(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {row['code']}, {word}text")
        assert message is not None
        assert judge_sxid(message).why


def test_an_application_fault_is_the_applications() -> None:
    assert judged(MMU_FAULT) == ("illegal_memory_access_app_bug", Role.PRIMARY, False, Action.RESTART)
