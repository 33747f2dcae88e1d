"""Kernel lines as the drivers write them, for the tests of this folder."""


def an_xid(code: int, text: str = "", *, gpu: str = "0000:3b:00", pid: int | None = 4711, name: str = "python3") -> str:
    who = f"pid={pid}, name={name}, " if pid is not None else "pid='<unknown>', name=<unknown>, "
    return f"NVRM: Xid (PCI:{gpu}): {code}, {who}{text}"


def on(node: str, time: str, text: str) -> str:
    """A syslog line: `May  6 11:03:44 node kernel: text`."""
    return f"May  6 {time} {node} kernel: {text}"


FELL_OFF = an_xid(79, "GPU has fallen off the bus.")
MMU_FAULT = an_xid(31, "Ch 00000009, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7ee1_a2000000.")
PREEMPTED = an_xid(45, "Ch 00000008")
DOUBLE_BIT = an_xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 5.", pid=None)
REMAPPED = an_xid(63, "Row Remapper: New row (0x00000000036ab1d0) marked for remapping, reset gpu to activate.", pid=None)
REMAP_FAILED = an_xid(64, "Row Remapper: Error writing event to the row remapper table.", pid=None)
CONTAINED = an_xid(94, "Contained: CE User Channel (0x9). RST: No, D-RST: No")
PEER_ACCESS = an_xid(137, "NVLink: TLC RX PRIV Error on link 17")
NVLINK_FATAL = an_xid(74, "NVLink: fatal error detected on link 8(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")


def a_recovery(text: str, *, gpu: str = "0000:3b:00") -> str:
    return an_xid(154, f"GPU recovery action changed from 0x0 (None) to 0x1 ({text})", gpu=gpu, pid=None)


def a_warp_exception(gpc: int, tpc: int, *, pid: int = 4711) -> str:
    return an_xid(13, f"Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Out Of Range Address", pid=pid)


def an_nvlink5(code: int, unit: str, word: str, intr_info: int, status: int, *, link: int = 14) -> str:
    return an_xid(code, f"{unit} {word} XC0 i0 Link {link} (0x{intr_info:08x} 0x{status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)")
