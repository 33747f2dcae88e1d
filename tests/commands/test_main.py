"""The program as scripts meet it: exit codes 0, 1, 2, 3, one sentence on standard error, no traceback."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from workers.commands.main import COMMANDS
from workers.embedded.temporal import free_port

MINIMAL = "cluster: {name: alpha}\n"


def backstay(*arguments: str, directory: Path, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with nothing of our own environment but PATH."""
    return subprocess.run(
        [sys.executable, "-m", "workers.commands.main", *arguments],
        capture_output=True,
        text=True,
        timeout=180,  # matchers are compiled anew where the home is new: seconds, and many on a busy machine
        input=stdin,
        check=False,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(directory), "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        cwd=directory,
    )


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"{MINIMAL}temporal: {{address: '127.0.0.1:{free_port()}'}}\n")
    return path


def test_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    told = backstay("--help", directory=tmp_path)
    assert told.returncode == 0
    commands = ("demo", "up", "worker", "jobs", "show", "approve", "reject", "audit", "breaker", "doctor", "policy", "failopen", "diagnose")
    assert [name for name in commands if name not in told.stdout] == []
    assert "Exit codes" in told.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_itself_says(name: str) -> None:
    module, sentence = COMMANDS[name]
    command = getattr(import_module(f"workers.commands.{module}"), name)
    own = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert " ".join(str(own).split()) == sentence


@pytest.mark.parametrize("arguments", [("--help",), ("diagnose", "--help"), ("diagnose", "log"), ("diagnose", "no-such-file")])
def test_what_needs_no_temporal_does_not_wait_for_its_sdk(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "log").write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    code = f"""
import sys
from workers.commands.main import run_to_exit_code
sys.argv = ["backstay", *{arguments!r}]
run_to_exit_code()
sys.exit("temporalio" in sys.modules)
"""
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_an_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    assert backstay("frobnicate", directory=tmp_path).returncode == 2


def test_without_a_configuration_the_mend_is_told(tmp_path: Path) -> None:
    told = backstay("jobs", directory=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("backstay: no configuration: give -c FILE")


def test_a_scheduler_of_another_process_is_a_matter_of_configuration(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text("cluster: {name: alpha, scheduler: {kind: simulated}}\n")
    told = backstay("failopen", "-c", str(path), directory=tmp_path)
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert "set it to command" in told.stderr


def test_a_typo_in_the_configuration_names_line_and_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"{MINIMAL}policy:\n  mod: auto\n")
    told = backstay("policy", "check", directory=tmp_path, BACKSTAY_CONFIG=str(path))
    assert told.returncode == 2
    assert f"{path}:3" in told.stderr
    assert "did you mean mode?" in told.stderr


@pytest.mark.parametrize("command", [("jobs",), ("show", "1"), ("approve", "1"), ("audit", "1"), ("breaker",), ("worker",)])
def test_an_unreachable_temporal_is_exit_code_3_in_one_sentence(tmp_path: Path, configuration: Path, command: tuple[str, ...]) -> None:
    told = backstay(*command, "-c", str(configuration), directory=tmp_path)
    assert told.returncode == 3
    assert "Traceback" not in told.stderr
    assert told.stderr.count("\n") == 1
    assert "backstay up" in told.stderr


def test_an_unreachable_slurm_is_exit_code_3_for_failopen(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"cluster: {{name: alpha, scheduler: {{bin_directory: {tmp_path}}}}}\n")
    told = backstay("failopen", "-c", str(path), directory=tmp_path)
    assert told.returncode == 3
    assert "Traceback" not in told.stderr


def test_doctor_ends_with_1_when_a_check_fails(tmp_path: Path, configuration: Path) -> None:
    told = backstay("doctor", "-c", str(configuration), directory=tmp_path)
    assert told.returncode == 1
    assert "FAILED   temporal: " in told.stdout
    assert told.stderr == ""


def test_policy_check_says_in_words_what_each_cause_would_lead_to(tmp_path: Path, configuration: Path) -> None:
    told = backstay("policy", "check", "-c", str(configuration), directory=tmp_path)
    assert told.returncode == 0
    assert "mode observe" in told.stdout
    assert "restart" in told.stdout


def test_up_refuses_to_start_a_server_on_another_machines_address(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"{MINIMAL}temporal: {{address: '192.0.2.1:7233'}}\n")
    told = backstay("up", "-c", str(path), directory=tmp_path)
    assert told.returncode == 3
    assert "temporal.address" in told.stderr
