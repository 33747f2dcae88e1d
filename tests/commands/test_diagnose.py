"""`backstay diagnose` with nothing running and no configuration: for a person, for a program, from a pipe."""

import json
from pathlib import Path

import pytest

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
    assert (told.returncode, document["symptom"]) == (1, {"kind": "crash"})
    assert (document["diagnosis"]["cause"], document["diagnosis"]["primary"]["line"]) == ("ecc_uncorrectable", 6)
    assert [suspect["node"] for suspect in document["attribution"]["suspects"]] == ["node-002"]
    assert (document["recommendation"]["action"], document["recommendation"]["exclude_nodes"]) == ("restart_excluding", ["node-002"])
    assert document["progress"]["iteration"] == 10


def test_a_person_reads_the_same_from_a_pipe(tmp_path: Path) -> None:
    told = backstay("diagnose", "-", "--scheduler", what_slurm_said(tmp_path), directory=tmp_path, stdin=LOG)
    assert told.returncode == 1
    assert "not known" not in told.stdout, "what could not be looked at helps nobody here"
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


def test_the_exit_code_tells_whether_a_failure_was_found_in_either_form(tmp_path: Path) -> None:
    healthy = LOG.partition("[rank1]")[0]
    for form in ((), ("--json",)):
        codes = [backstay("diagnose", "-", *form, directory=tmp_path, stdin=text).returncode for text in (LOG, healthy, "")]
        assert codes == [1, 0, 0]
    told = " ".join(backstay("diagnose", "--help", directory=tmp_path).stdout.split())
    assert "Exit code 1: a failure was found" in told


MISSING = 'Traceback (most recent call last):\n  File "/w/train.py", line 1, in <module>\n    import apex\n'
IMPORTS = (
    ("ModuleNotFoundError: No module named 'apex'", "no module named apex is installed"),
    ("[rank0]: ModuleNotFoundError: No module named 'flash_attn.ops.triton'", "no module named flash_attn.ops.triton is installed"),
    ("node-3: ModuleNotFoundError: No module named 'my_model'; 'my_model' is not a package", "no module named my_model is installed"),
    ("ImportError: cannot import name 'PreTrainedModel' from 'transformers' (/v/__init__.py)", "transformers has no PreTrainedModel"),
    ("ImportError: cannot import name 'x' from partially initialized module 'm' (most likely due to a circular import)", "circular import"),
    ("RuntimeError: Error building extension 'fused_adam'", "an extension could not be built"),
    (
        "ImportError: /v/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "a binary does not fit what is installed beside it",
    ),
)


@pytest.mark.parametrize(("line", "words"), IMPORTS)
def test_a_failed_import_is_told_in_words_that_are_true_of_it(tmp_path: Path, line: str, words: str) -> None:
    told = backstay("diagnose", "-", directory=tmp_path, stdin=f"{MISSING}{line}\n")
    assert told.returncode == 1
    assert "import_error_abi_mismatch (user)" in told.stdout
    assert words in " ".join(told.stdout.split())
    assert ("built for another version" in told.stdout) is ("undefined symbol" in line)


def test_a_path_that_cannot_be_read_is_a_failed_diagnosis(tmp_path: Path) -> None:
    told = backstay("diagnose", str(tmp_path / "nowhere.log"), directory=tmp_path)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"backstay: cannot read {tmp_path / 'nowhere.log'}: No such file or directory\n"


def test_a_dump_that_is_refused_is_told_with_its_place_to_people_and_programs(tmp_path: Path) -> None:
    dump = tmp_path / "dumps" / "nccl_trace_rank_1"
    dump.parent.mkdir()
    dump.write_bytes(b"no pickle")
    told = backstay("diagnose", "-", "--dumps", str(dump.parent), directory=tmp_path, stdin=LOG)
    assert told.returncode == 1
    assert f"  note: flight-recorder dump not used: {dump}: not a flight-recorder dump" in told.stdout
    told = backstay("diagnose", "-", "--dumps", str(dump.parent), "--json", directory=tmp_path, stdin=LOG)
    [note] = json.loads(told.stdout)["notes"]
    assert str(dump) in note


def test_a_directory_of_dumps_that_is_none_is_refused(tmp_path: Path) -> None:
    told = backstay("diagnose", "-", "--dumps", str(tmp_path / "nowhere"), directory=tmp_path, stdin=LOG)
    assert (told.returncode, told.stdout) == (1, "")
    assert "No such file or directory" in told.stderr
