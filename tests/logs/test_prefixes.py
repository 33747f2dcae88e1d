"""Who printed a line, and when: the forms that launchers, loggers and Slurm really use."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.logs.prefixes import Prefixed, parse_prefix, strip_ansi, strip_ansi_bytes


@pytest.mark.parametrize(
    ("line", "rank", "local_rank", "node", "text"),
    [
        ("[rank7]: Traceback (most recent call last):", 7, None, None, "Traceback (most recent call last):"),
        ("[rank7]:   File", 7, None, None, "  File"),
        ("2025-01-01T00:00:01.123456789Z stdout F [rank7]: boom", 7, None, None, "boom"),
        ("[rank: 3] Received SIGTERM: 15", 3, None, None, "Received SIGTERM: 15"),
        ("[default3]:saving checkpoint", None, 3, None, "saving checkpoint"),
        ("7: Fatal Python error", 7, None, None, "Fatal Python error"),
        (" 7:   File", 7, None, None, "  File"),
        ("7:", 7, None, None, ""),
        ("task 7: E0912 10:03:58.771000 1 client.cc:3100] boom", 7, None, None, "boom"),
        ("task 7: translate into German", None, None, None, "task 7: translate into German"),
        ("0: [node-3] hello", 0, None, "node-3", "hello"),
        ("node-012: hello", None, None, "node-012", "hello"),
        ("worker-1: {'loss': 1.42}", None, None, "worker-1", "{'loss': 1.42}"),
        ("ip-10-0-1-2.ec2.internal: hello", None, None, "ip-10-0-1-2.ec2.internal", "hello"),
        ("nid001234: hello", None, None, "nid001234", "hello"),
        ("[node-003:0]: Epoch 0 | batch 0", None, 0, "node-003", "Epoch 0 | batch 0"),
        ("[1,7]<stderr>:boom", 7, None, None, "boom"),
        ("(RayTrainWorker pid=12, ip=10.0.0.3) [rank5]: boom", 5, None, "10.0.0.3", "boom"),
        ("(raylet, ip=10.60.2.14) A worker died", None, None, "10.60.2.14", "A worker died"),
        ("(TaskRunner pid=2211) step:140", None, None, None, "step:140"),
        ("[0] epoch 0 batch 10", 0, None, None, "epoch 0 batch 10"),
        ("[task 162 rank 1 rack10-node02] boom", 162, None, "rack10-node02", "boom"),
        ("[node-228:41230] Signal: Illegal instruction (4)", None, None, "node-228", "Signal: Illegal instruction (4)"),
        ("[node-1616:1864777:0:1864777] Caught signal 4", None, None, "node-1616", "Caught signal 4"),
        ("node-007:4135:4746 [5] transport/net_ib.cc:2244 NCCL WARN x", None, 5, "node-007", "transport/net_ib.cc:2244 NCCL WARN x"),
        ("[2025-10-24 11:02:00][INFO][rank0] step=1200", 0, None, None, "step=1200"),
        ("[2025-11-20 09:14:00] [INFO:train:rank3] step 3410", 3, None, None, "step 3410"),
        ("[Rank 0] step=10, skipped=0", 0, None, None, "step=10, skipped=0"),
    ],
)
def test_rank_and_node_are_taken_off_the_front(line: str, rank: int | None, local_rank: int | None, node: str | None, text: str) -> None:
    found = parse_prefix(line)
    assert (found.rank, found.local_rank, found.node, found.text) == (rank, local_rank, node, text)


@pytest.mark.parametrize(
    ("line", "carrier", "rank", "text"),
    [
        ("trainer-1  | [rank3]: boom", "trainer-1", 3, "boom"),
        ("trainer_1  | 5: boom", "trainer_1", 5, "boom"),
        ("gpu-04 | boom", "gpu-04", None, "boom"),
        ("loss  | 2.5", None, None, "loss  | 2.5"),
        ("[pod/llm-worker-1/trainer] 5: boom", "llm-worker-1", 5, "boom"),
        ("Mar  2 09:00:00 log01 trainer[47]: 5: boom", "log01", 5, "boom"),
        ("Mar  2 09:00:00 log01 trainer: [rank5]: boom", "log01", 5, "boom"),
        ("2026-03-02T09:00:00+0000 log01 python3[47]: boom", "log01", None, "boom"),
        ("<134>1 2026-03-02T09:00:00.1Z log01 trainer 47 - - boom", "log01", None, "boom"),
        ("2026-03-02T09:00:00.1Z 5: boom", None, 5, "boom"),
        ("2026-03-02 09:00:00 5: boom", None, 5, "boom"),
        ("[2026-03-02 09:00:00] 5: boom", None, 5, "boom"),
        ("2026-03-02T09:00:00.1Z stderr F 5: [rank21]: boom", None, 21, "boom"),
        ("Mar 02 09:00:00 5: boom", None, 5, "boom"),
        ("1772442000.000001 5: boom", None, 5, "boom"),
        ('2026-03-02T09:00:00Z {pod="w-1", app="llm"} 5: boom', None, 5, "boom"),
        ("2026-03-02T09:00:00.1+00:00 train/trainer/1f2e 5: boom", None, 5, "boom"),
        ("2026-03-02T09:00:00Z {'loss': 0.0, 'grad_norm': nan}", None, None, "{'loss': 0.0, 'grad_norm': nan}"),
        ("2026-03-02 09:00:00 [41] boom", None, None, "[41] boom"),  # a process id
        ("Mar 02 09:00:00 log01 RuntimeError: boom", None, None, "RuntimeError: boom"),
    ],
)
def test_a_carrier_is_no_node_and_the_line_behind_it_begins_anew(line: str, carrier: str | None, rank: int | None, text: str) -> None:
    found = parse_prefix(line)
    assert (found.carrier, found.rank, found.text) == (carrier, rank, text)
    assert found.node is None or "RuntimeError" in line


@pytest.mark.parametrize(
    "node",
    ["gpu-04", "gpu04", "gpu001", "gpu-16", "gpu-a-01", "gpu-4.cluster.local", "dgx01", "n0012", "ip-10-1-2-3", "a3-mega-7", "h100-03",
     "dgx01.cluster.local", "NODE01.EXAMPLE.ORG", "worker-1.svc.py3.internal"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{}: boom", "[{}:0]: boom", "[{}] boom", "{}:41:42 [0] boom", "7: {}: boom"])
def test_names_that_clusters_really_use_are_nodes(node: str, form: str) -> None:
    found = parse_prefix(form.format(node))
    assert (found.node, found.text) == (node, "boom")


@pytest.mark.parametrize(
    "form",
    [
        "{}:41:42 [3] NCCL INFO",
        "srun: error: {}: task 3: Killed",
        "srun: error: {}: tasks 0-3: Killed",
        "srun: error: Node failure on {}",
        "slurmstepd-{}: error: oom-kill",
        "slurmstepd: error: *** STEP 82.0 ON {} CANCELLED AT 2023-03-05T02:41:19",
    ],
)
@pytest.mark.parametrize("node", ["gpu-4", "gpu3", "login", "n1", "a100", "rank3", "top_node.local"])
def test_where_only_a_node_can_stand_any_name_is_one(node: str, form: str) -> None:
    assert parse_prefix(form.format(node)).node == node


@pytest.mark.parametrize(
    "line",
    [
        "urllib3.exceptions.NewConnectionError: <urllib3.connection.HTTPSConnection object>: Failed to establish a new connection",
        "boto3.exceptions.S3UploadFailedError: Failed to upload",
        "S3UploadFailedError: Failed to upload",
        "redis7.client-2.Timeout: after 5 s",
        "socket2.timeout: timed out",
        "[s3fs.core.Error] gone",
        "train2.py: started",
        "net_ib2.cc:41: failed",
        "gpu-4: 80 C", "gpu15: 80 C", "GPU0: 80 C", "gpu-0 | 80 C",
    ],
)  # fmt: skip
def test_a_class_a_file_and_a_device_are_no_nodes(line: str) -> None:
    assert parse_prefix(line) == Prefixed(text=line)


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("[2026-01-01 12:00:00,123] hello", datetime(2026, 1, 1, 12, 0, 0, 123000, UTC)),
        ("[2026-01-01 12:00:00] hello", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2020-06-11 12:20:00.222004: step 0", datetime(2020, 6, 11, 12, 20, 0, 222004, UTC)),
        ("2026-01-01T12:00:00Z hello", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2026-01-01T14:00:00+02:00 hello", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2022-05-17 16:20:41,120 - mmdet - INFO - Epoch", datetime(2022, 5, 17, 16, 20, 41, 120000, UTC)),
        (" [2025-03-02 04:00:05] iteration    31000/  100000 |", datetime(2025, 3, 2, 4, 0, 5, tzinfo=UTC)),
        ("[NeMo W 2021-12-19 08:03:00 nemo_logging:349] hello", datetime(2021, 12, 19, 8, 3, tzinfo=UTC)),
        ("I20260708 04:40:00 140 iris.worker] hello", datetime(2026, 7, 8, 4, 40, tzinfo=UTC)),
        ("[default0]:[2022-04-12 05:11:42,118] [INFO] [logging.py:69:log_dist] hello", datetime(2022, 4, 12, 5, 11, 42, 118000, UTC)),
        ("(W pid=4, ip=10.0.0.1) INFO:2026-05-11 09:40:12 step", datetime(2026, 5, 11, 9, 40, 12, tzinfo=UTC)),
        ("[rank0]:[titan] 2026-03-02 09:00:12,123 - root - INFO - step: 1", datetime(2026, 3, 2, 9, 0, 12, 123000, UTC)),
        ("[2026-02-31 12:00:00] no such day", None),
    ],
)
def test_the_time_is_read_in_every_usual_form(line: str, at: datetime | None) -> None:
    assert parse_prefix(line).at == at


@pytest.mark.parametrize(
    "line", ["I0630 12:00:01.120000 1 a.cc:12] hi", "[I630 12:00:01.120000000 a.cpp:12] hi", "Jun 30 12:00:01.12 node-3 kernel: hi"]
)
def test_a_time_without_a_year_needs_to_know_about_when(line: str) -> None:
    assert parse_prefix(line).at is None
    found = parse_prefix(line, near=datetime(2026, 7, 1, tzinfo=UTC))
    assert found.at == datetime(2026, 6, 30, 12, 0, 1, 120000, UTC)


def test_a_year_end_lies_between_december_and_january() -> None:
    assert parse_prefix("I1231 23:59:59.0 1 a.cc:1] hi", near=datetime(2026, 1, 1, tzinfo=UTC)).at == datetime(
        2025, 12, 31, 23, 59, 59, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("line", "node", "rank"),
    [
        ("srun: error: node-015: task 3: Out Of Memory", "node-015", 3),
        ("srun: error: node-015: tasks 0-7: Killed", "node-015", None),
        ("srun: error: Node failure on node-049", "node-049", None),
        ("slurmstepd-node-015: error: Detected 1 oom-kill event(s)", "node-015", None),
        ("slurmstepd: error: *** STEP 82.0 ON node-006 CANCELLED AT 2023-03-05T02:41:19", "node-006", None),
        ("[rank3]:[E1120 09:16:47.920724310 ProcessGroupNCCL.cpp:684] [Rank 5] boom", None, 3),
        ("[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught", None, 2),
        ("Jun 30 12:00:01 node-3 kernel: NVRM: Xid", "node-3", None),
        ("2026-06-30T12:00:01.12+02:00 node-3 kernel: NVRM: Xid", "node-3", None),
    ],
)
def test_slurms_and_pytorchs_own_messages_tell_where_and_keep_their_text(line: str, node: str | None, rank: int | None) -> None:
    found = parse_prefix(line)
    assert (found.node, found.rank) == (node, rank)
    assert found.text


@pytest.mark.parametrize(
    ("line", "task", "rank", "node"),
    [
        ("2: [rank21]: RuntimeError: boom", 2, 21, None),
        ("37: [rank37]:[E302 04:41:07.1 ProcessGroupNCCL.cpp:685] [Rank 5] boom", 37, 37, None),
        ("37: [Rank 5] boom", 37, 37, None),  # of a group
        ("37: n5:1:2 [5] NCCL WARN boom", 37, 37, "n5"),
        ("[rank21]: boom", None, 21, None),
        ("(RayTrainWorker pid=418, ip=10.1.2.8) hpc-8:418:420 [0] NCCL INFO boom", None, None, "hpc-8"),
    ],
)
def test_a_launchers_number_gives_way_to_the_rank_itself_and_an_address_to_a_name(
    line: str, task: int | None, rank: int | None, node: str | None
) -> None:
    found = parse_prefix(line)
    assert (found.task, found.rank, found.node) == (task, rank, node)


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 1: 12 batches", "gpu0: 80C", "step10: done", "mlx5_0: port down", "V100: 32 GB", "{'loss': 1}", "frame #3: c10::Error",
        "[TEST] MPI: call", "[preflight] node-110: running", "RuntimeError: CUDA error", "INFO: all good", "12:00:01 no date", "[0]:", "",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_prefix_is_left_alone(line: str) -> None:
    assert parse_prefix(line) == Prefixed(text=line)


def test_colours_are_stripped_from_text_and_bytes() -> None:
    assert strip_ansi("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07") == "red link"
    assert strip_ansi_bytes(b"\x1b[Kstep\x1b[2K 1") == b"step 1"


@given(st.text())
def test_any_text_is_read_without_an_exception_and_the_text_is_its_end(line: str) -> None:
    assert strip_ansi(line.rstrip("\r\n")).endswith(parse_prefix(line, near=datetime(2026, 1, 1, tzinfo=UTC)).text)


_PIECES = ("[rank1]:", "[", "]", ":", " ", "12", "2026-02-30 12:00:61", "node-3", "(", "pid=1", ")", "[99", "E1399 25:00:00.1 1", "+99:99",
           "Feb 31 12:00:00 n kernel:")  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES)).map("".join))
def test_pieces_of_prefixes_in_any_order_do_no_harm(line: str) -> None:
    parse_prefix(line, near=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_line_without_end_is_read_in_bounded_time() -> None:
    for filler in ("[", "(", "a", "a-1.", "1", "[a", " "):
        parse_prefix(filler * 200_000)
