"""What `diagnose` is given on the command line becomes signals: logs, directories, standard input, cases, options."""

import json
import os
from pathlib import Path

import pytest

from activities.records import JobState
from tests.builders import ECC_LINE
from workers.commands.capture import captured, job_of
from workers.commands.errors import BadUsage, CommandFailed

CASE = f"""
id: x
signals:
  log: |
    {ECC_LINE}
  scheduler: {{state: FAILED, exit_code: '1:0', nodes: 'node-[001-002]'}}
  kernel_log: ['node-002 kernel: NVRM: Xid (PCI:0000:4e:00): 48']
  gpu_metrics: {{node-002: {{ecc_uncorrected: 1}}}}
expected: {{}}
"""


def test_a_log_is_read_from_its_path(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(ECC_LINE)
    with captured([str(log)]) as signals:
        assert [source.path for source in signals.logs] == [log]


def test_a_directory_gives_its_logs_and_flight_recorder_dumps_and_no_hidden_file(tmp_path: Path) -> None:
    for name in ("a.log", "b/c.out", "model.pt", ".hidden.log", "nccl_trace_rank_0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with captured([str(tmp_path)]) as signals:
        assert [Path(source.name).name for source in signals.logs] == ["a.log", "c.out"]
        assert [dump.name for dump in signals.flight_recorder] == ["nccl_trace_rank_0"]


def test_a_directory_without_logs_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"holds no log"), captured([str(tmp_path)]):
        pass


def test_a_recorded_case_gives_all_its_signals(tmp_path: Path) -> None:
    case = tmp_path / "001.yaml"
    case.write_text(CASE)
    with captured([str(case)]) as signals:
        assert signals.logs[0].stream().read().decode().strip() == ECC_LINE
        assert "Xid" in signals.kernel_logs[""]
        assert signals.gpu_snapshots["node-002"]
        job = job_of(signals)
        assert (job.state, job.nodes) == (JobState.FAILED, ("node-001", "node-002"))


def test_a_yaml_file_that_is_no_case_is_read_as_a_log(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 3.0e-4\n")
    with captured([str(file)]) as signals:
        assert signals.logs[0].path == file


def test_options_add_to_the_signals(tmp_path: Path) -> None:
    log, kernel, scheduler = tmp_path / "a.log", tmp_path / "node-007.dmesg", tmp_path / "job.json"
    log.write_text("x")
    kernel.write_text("NVRM: Xid (PCI:0000:4e:00): 79")
    scheduler.write_text(json.dumps({"state": "NODE_FAIL", "nodes": ["node-007"]}))
    with captured([str(log)], kernel_logs=[f"node-007={kernel}"], scheduler=scheduler) as signals:
        assert "79" in signals.kernel_logs["node-007"]
        assert job_of(signals).state is JobState.NODE_FAIL


def test_prose_in_place_of_a_node_list_names_no_node(tmp_path: Path) -> None:
    log, scheduler = tmp_path / "a.log", tmp_path / "job.json"
    log.write_text("x")
    scheduler.write_text(json.dumps({"state": "RUNNING", "nodes": "128 hosts"}))
    with captured([str(log)], scheduler=scheduler) as signals:
        assert job_of(signals).nodes == ()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"cannot read .*nowhere.*No such file"), captured([str(tmp_path / "nowhere")]):
        pass


def test_options_that_hold_no_json_object_are_refused(tmp_path: Path) -> None:
    log, bad = tmp_path / "a.log", tmp_path / "bad.json"
    log.write_text("x")
    bad.write_text("[1]")
    with pytest.raises(BadUsage, match="JSON object"), captured([str(log)], gpu=bad):
        pass


def test_what_has_no_end_or_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/zero", str(tmp_path / "fifo")):
        with pytest.raises(BadUsage, match="is no plain file; name one, or pipe it in and name -"), captured([path]):
            pass
