"""`backstay diagnose` with nothing running and no configuration: for a person, for a program, from a pipe."""

import json
from pathlib import Path

from tests.commands.test_main import backstay

LOG = """node-001:11:11 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x8d - Init COMPLETE
node-002:12:12 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x8d - Init COMPLETE
 iteration       10/     100 | consumed samples:         5120 | elapsed time per iteration (ms): 250.0 | lm loss: 7.0E+00 |
[rank1]: Traceback (most recent call last):
[rank1]:   File "/workspace/train.py", line 7, in <module>
[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered
"""


def what_slurm_said(directory: Path) -> str:
    """The file for `--scheduler`: the job's nodes, by which a rank is mapped to its node."""
    path = directory / "job.json"
    path.write_text(json.dumps({"state": "FAILED", "exit_code": "1:0", "nodes": "node-[001-002]"}))
    return str(path)


def test_a_program_reads_cause_suspect_and_action(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(LOG)
    told = backstay("diagnose", str(log), "--scheduler", what_slurm_said(tmp_path), "--json", directory=tmp_path)
    document = json.loads(told.stdout)
    assert (told.returncode, document["symptom"]) == (0, {"kind": "crash"})
    assert (document["diagnosis"]["cause"], document["diagnosis"]["primary"]["line"]) == ("ecc_uncorrectable", 6)
    assert [suspect["node"] for suspect in document["attribution"]["suspects"]] == ["node-002"]
    assert (document["recommendation"]["action"], document["recommendation"]["exclude_nodes"]) == ("restart_excluding", ["node-002"])
    assert document["progress"]["iteration"] == 10


def test_a_person_reads_the_same_from_a_pipe(tmp_path: Path) -> None:
    told = backstay("diagnose", "-", "--scheduler", what_slurm_said(tmp_path), directory=tmp_path, stdin=LOG)
    assert told.returncode == 0
    for words in (
        "crash",
        "ecc_uncorrectable (hardware)",
        "line 6",
        "suspect: node node-002",
        "what to do: restart excluding node-002; a broken device",
    ):
        assert words in told.stdout


def test_a_log_in_which_nothing_went_wrong_says_so(tmp_path: Path) -> None:
    told = backstay("diagnose", "-", directory=tmp_path, stdin=LOG.partition("[rank1]")[0])
    assert told.returncode == 0
    assert told.stdout.startswith("No failure found.")


def test_a_path_that_cannot_be_read_is_a_failed_diagnosis(tmp_path: Path) -> None:
    told = backstay("diagnose", str(tmp_path / "nowhere.log"), directory=tmp_path)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"backstay: cannot read {tmp_path / 'nowhere.log'}: No such file or directory\n"


def test_a_dump_that_is_refused_is_told_with_its_place_to_people_and_programs(tmp_path: Path) -> None:
    dump = tmp_path / "dumps" / "nccl_trace_rank_1"
    dump.parent.mkdir()
    dump.write_bytes(b"no pickle")
    told = backstay("diagnose", "-", "--dumps", str(dump.parent), directory=tmp_path, stdin=LOG)
    assert told.returncode == 0
    assert f"  note: flight-recorder dump not used: {dump}: not a flight-recorder dump" in told.stdout
    told = backstay("diagnose", "-", "--dumps", str(dump.parent), "--json", directory=tmp_path, stdin=LOG)
    [note] = json.loads(told.stdout)["notes"]
    assert str(dump) in note


def test_a_directory_of_dumps_that_is_none_is_refused(tmp_path: Path) -> None:
    told = backstay("diagnose", "-", "--dumps", str(tmp_path / "nowhere"), directory=tmp_path, stdin=LOG)
    assert (told.returncode, told.stdout) == (1, "")
    assert "No such file or directory" in told.stderr
