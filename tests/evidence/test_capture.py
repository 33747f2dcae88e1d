"""Evidence: what is kept of a fault, how much of it, and what never leaves the log."""

import hashlib
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.configuration import EvidenceSection
from activities.evidence.capture import EvidenceStore, Material
from activities.evidence.files import folder_name
from activities.evidence.logs import windows_of
from activities.logs.paths import LogRoots
from activities.records import Evidence, Excerpt, NodeState, SignalSource, as_json
from tests.builders import ECC_LINE, a_job, a_key, a_node, a_signal, after, node_names

NOISE = "iteration {0}/ 100000 | consumed samples: {0} | lm loss: 2.1E+00 | number of nan iterations: 0 |\n"


class Bench:
    """A job's directory under an allowed root, and an evidence directory."""

    def __init__(self, directory: Path, **section: int) -> None:
        self.runs = directory / "runs"
        self.runs.mkdir(exist_ok=True)
        self.directory = directory / "evidence"
        self.store = EvidenceStore(EvidenceSection.model_validate({"directory": self.directory, **section}), LogRoots([self.runs]))

    def log(self, text: str | bytes, name: str = "slurm-17.out") -> Path:
        path = self.runs / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def capture(self, material: Material, incident_id: str = "i-1") -> Evidence:
        return self.store.capture(material, key=a_key(), incident_id=incident_id, captured_at=after(64))

    @property
    def folder(self) -> Path:
        """Where incident `i-1` of job 17 is kept."""
        return self.directory / f"job-alpha-17-{int(a_key().submitted_at.timestamp())}-i-1"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def of_log(evidence: Evidence) -> list[Excerpt]:
    return [excerpt for excerpt in evidence.excerpts if excerpt.source is SignalSource.LOG]


def a_long_log(lines: int = 20_000, at: int = 5_000, line: str = ECC_LINE) -> str:
    text = [NOISE.format(number) for number in range(lines)]
    text[at] = line + "\n"
    return "".join(text)


def test_a_short_log_is_kept_whole_with_job_nodes_and_script(bench: Bench) -> None:
    nodes = [a_node("node-001"), a_node("node-002", state=NodeState.DOWN, reason="Not responding"), a_node("node-003")]
    material = Material(job=a_job(), nodes=nodes, logs=[bench.log(f"start\n{ECC_LINE}\n")], batch_script="#!/bin/sh\nsrun train\n")
    evidence = bench.capture(material)
    texts = {excerpt.title: excerpt.text for excerpt in evidence.excerpts}
    assert texts["slurm-17.out"] == f"start\n{ECC_LINE}\n"
    assert texts["batch script"] == "#!/bin/sh\nsrun train\n"
    assert texts["the job's nodes"] == "node-002: DOWN Not responding\n1 other nodes: nothing unusual\n"
    assert "state: RUNNING\n" in texts["job 17 as Slurm tells it"]
    assert evidence.unreadable == ()


def test_what_is_stored_is_private_hashed_and_referred_to(bench: Bench) -> None:
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log("x\n" * 100)], batch_script="#!/bin/sh\n"))
    folder = bench.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(bench.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} == {"batch_script.sh", "evidence.json", "job.txt", "log-1.txt"}
    for excerpt in evidence.excerpts:
        assert excerpt.stored_at is not None
        assert hashlib.sha256(Path(excerpt.stored_at).read_bytes()).hexdigest() == excerpt.sha256


def test_a_long_log_shows_its_beginning_its_end_and_the_lines_around_the_symptoms(bench: Bench) -> None:
    log = a_long_log(lines=60_000, at=10_000)
    assert len(log) < 8 << 20, "the symptom's line is looked for in the end of the log"
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log(log)], signals=[a_signal(ECC_LINE)]))
    around, end, beginning = of_log(evidence)
    assert ECC_LINE in around.text
    assert "around byte" in around.title
    assert end.text.endswith(NOISE.format(59_999))
    assert beginning.text.startswith(NOISE.format(0))
    assert around.truncated_bytes > 0


@pytest.mark.parametrize("history_bytes", [1024, 8192, 65536])
@pytest.mark.parametrize("log", [a_long_log(), '"' * 300_000, "\x01" * 300_000, "é\n" * 200_000, "\\" * 200_000])
def test_the_record_stays_within_its_bound(tmp_path: Path, history_bytes: int, log: str) -> None:
    bench = Bench(tmp_path, history_bytes=history_bytes)
    material = Material(
        job=a_job(comment="c" * 20_000),
        nodes=[a_node(name, state=NodeState.DOWN, reason="r" * 60) for name in node_names(500)],
        logs=[bench.log(log), bench.log(log, "slurm-17.err")],
        signals=[a_signal(log[400_000:400_090])],
        batch_script="#" * 100_000,
    )
    evidence = bench.capture(material)
    total = sum(len(excerpt.model_dump_json().encode()) for excerpt in evidence.excerpts if excerpt.text)
    labels = 600 * len(evidence.excerpts) if history_bytes < 65536 else 0
    assert total <= history_bytes + labels


def test_an_endless_line_is_kept_by_its_ends(bench: Bench) -> None:
    excerpts = of_log(bench.capture(Material(job=a_job(), logs=[bench.log(b"a" * 5_000_000 + b"END")])))
    assert excerpts[0].text.endswith("END")


def test_of_a_log_larger_than_the_store_beginning_and_end_are_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored_bytes=100_000)
    [first, *_] = of_log(bench.capture(Material(job=a_job(), logs=[bench.log(a_long_log())], batch_script="#!/bin/sh\n")))
    assert first.stored_at is not None
    kept = Path(first.stored_at).read_text()
    assert kept.startswith(NOISE.format(0))
    assert kept.endswith(NOISE.format(19_999))
    assert "bytes left out]" in kept
    assert sum(path.stat().st_size for path in (bench.folder).iterdir() if path.name != "evidence.json") <= 100_000


def test_nothing_is_stored_where_the_operator_allows_no_bytes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored_bytes=0)
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log("x\n")]))
    assert not bench.directory.exists()
    assert all(
        excerpt.stored_at is None and excerpt.sha256 == hashlib.sha256(excerpt.text.encode()).hexdigest() for excerpt in evidence.excerpts
    )
    assert evidence.unreadable == ()


def test_the_first_capture_counts_for_a_requeue_truncates_the_log(bench: Bench) -> None:
    material = Material(job=a_job(), logs=[bench.log(f"{ECC_LINE}\n")])
    first = bench.capture(material)
    bench.log("the next attempt starts\n")
    assert bench.capture(material) == first
    assert bench.capture(material, "i-2") != first


def test_another_job_with_a_reused_id_has_evidence_of_its_own(bench: Bench) -> None:
    material = Material(job=a_job(), logs=[bench.log(f"{ECC_LINE}\n")])
    bench.capture(material)
    bench.log("another job\n")
    later = bench.store.capture(material, key=a_key(submitted_at=after(9999)), incident_id="i-1", captured_at=after(9999))
    assert of_log(later)[0].text == "another job\n"
    assert bench.store.captured(key=a_key(submitted_at=after(9999)), incident_id="i-1") == later
    assert bench.store.captured(key=a_key(), incident_id="i-3") is None


def test_a_capture_that_died_half_way_keeps_what_it_had(bench: Bench) -> None:
    material = Material(job=a_job(), logs=[bench.log(f"{ECC_LINE}\n")])
    bench.capture(material)
    (bench.folder / "evidence.json").unlink()
    bench.log("the next attempt starts\n")
    bench.capture(material)
    assert (bench.folder / "log-1.txt").read_text() == f"{ECC_LINE}\n"


def test_secrets_reach_neither_history_nor_store(bench: Bench) -> None:
    secret = "hf_" + "Q7" * 17
    telling = f"using HF_TOKEN={secret}"
    log = a_long_log(at=9_000, line=telling)
    script = f"#!/bin/sh\nexport WANDB_API_KEY={'ab12' * 10}\nsrun train --token {secret}\n"
    evidence = bench.capture(
        Material(job=a_job(comment=f"token {secret}"), logs=[bench.log(log)], batch_script=script, signals=[a_signal(telling)])
    )
    assert secret not in evidence.model_dump_json()
    assert "ab12ab12" not in evidence.model_dump_json()
    for path in (bench.folder).iterdir():
        assert secret.encode() not in path.read_bytes()
    assert not (bench.folder / "batch_script.sh").exists(), "a script with holes is not offered for sbatch"
    [note] = evidence.unreadable
    assert "2 secrets were taken out of batch_script.redacted.sh" in note


KEY_LINES = [f"MIIEowIBAAKCAQEAr3x0Z9vT1kQ2mN8pLs7YwE4uJ6hG5fD3sA1qW2eR{number:04d}ab3\n" for number in range(40)]
KEY = "".join(["-----BEGIN RSA PRIVATE KEY-----\n", *KEY_LINES, "-----END RSA PRIVATE KEY-----\n"])
DB_PASSWORD = "p@ss-4-word-" + "Q7" * 20


@pytest.mark.parametrize("secret", [KEY, f"HF_TOKEN=hf_{'aBcDeFgHi' * 4}\n", f"postgres://bob:{DB_PASSWORD}@db/x\n"])
@pytest.mark.parametrize("history_bytes", [4096, 5000, 9001])
def test_secrets_go_where_the_bounds_of_an_excerpt_or_of_the_copy_cut_them(tmp_path: Path, secret: str, history_bytes: int) -> None:
    """The whole log is made of them, so that every bound lies inside one: of the beginning, of a telling place and of the end."""
    bench = Bench(tmp_path, stored_bytes=60_000, history_bytes=history_bytes)
    half = secret * (100_000 // len(secret))
    log = f"{half}{ECC_LINE}\n{half}"
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log(log)], signals=[a_signal(ECC_LINE)]))
    kept = evidence.model_dump_json() + "".join(path.read_text() for path in bench.folder.iterdir())
    for piece in ("MIIEowIB", "sA1qW2eR", "aBcDeFgHi", "4-word", "Q7Q7"):
        assert piece not in kept
    assert ECC_LINE in kept


def test_a_secret_on_one_endless_line_goes_where_it_is_cut(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored_bytes=60_000)
    row = '{"step":%d,"accessToken":"' + "Ab3dEf6hIj9l" * 40 + '","loss":2.5},'
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log("".join(row % number for number in range(400)))]))
    kept = evidence.model_dump_json() + "".join(path.read_text() for path in bench.folder.iterdir())
    assert "Ab3dEf" not in kept
    assert "loss" in kept


def test_a_log_made_of_secrets_costs_a_bounded_time_and_says_what_was_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored_bytes=16 << 20)
    bench.capture(Material(job=a_job(), logs=[bench.log("password=hunter22\n" * 300_000)]))
    kept = (bench.folder / "log-1.txt").read_text()
    assert "hunter22" not in kept
    assert kept.count("[redacted: password]") < 100_000
    assert kept.rstrip().endswith("bytes left out: more than 20000 secrets stand before them]")


def test_a_log_outside_the_allowed_roots_is_noted_not_opened(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside.log"
    outside.write_text("secret plans\n")
    (bench.runs / "link.out").symlink_to(outside)
    evidence = bench.capture(Material(job=a_job(), logs=[outside, bench.runs / "link.out", bench.runs / "gone.out"]))
    assert of_log(evidence) == []
    assert len(evidence.unreadable) == 3
    assert "logs.roots" in evidence.unreadable[-1]
    assert "No such file" in evidence.unreadable[0]
    assert "secret plans" not in evidence.model_dump_json()


def test_what_the_caller_could_not_get_is_noted(bench: Bench) -> None:
    evidence = bench.capture(Material(job=a_job(), unreadable=["batch script: permission denied"]))
    assert evidence.unreadable == ("batch script: permission denied",)


def test_an_evidence_directory_that_cannot_be_written_costs_the_store_not_the_evidence(bench: Bench) -> None:
    bench.directory.write_text("a file in the way")
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log(f"{ECC_LINE}\n")]))
    assert of_log(evidence)[0].text == f"{ECC_LINE}\n"
    [note] = evidence.unreadable
    assert "cannot be written" in note


@pytest.mark.parametrize("hostile", ["../../etc", "/etc/passwd", "a/b", "..", "", ".hidden", "x" * 500, "job/alpha/17/1#0"])
def test_an_incidents_name_never_leads_out_of_the_directory(hostile: str) -> None:
    name = folder_name(hostile)
    assert "/" not in name
    assert not name.startswith(".")
    assert 0 < len(name) < 128


def test_different_incidents_never_share_a_folder() -> None:
    assert len({folder_name(name) for name in ("a/b", "a-b", "a b", "a:b")}) == 4


def test_ansi_colours_carriage_returns_and_bytes_that_are_no_text_are_made_readable(bench: Bench) -> None:
    log = bench.log(b"\x1b[31mred\x1b[0m\r 10%\r 20%\nbad \xff\xfe \x00 byte\n")
    assert of_log(bench.capture(Material(job=a_job(), logs=[log])))[0].text == "red\n 10%\n 20%\nbad �� � byte\n"


def test_a_record_reads_back_as_it_was(bench: Bench) -> None:
    evidence = bench.capture(Material(job=a_job(), logs=[bench.log(b"\xff\x00\n")]))
    assert Evidence.model_validate(as_json(evidence)) == evidence


@given(st.integers(0, 10**7), st.lists(st.integers(0, 10**7), max_size=9), st.integers(500, 60_000))
def test_windows_lie_in_the_log_and_fit_the_room(size: int, places: list[int], room: int) -> None:
    windows = windows_of(size, places, room)
    assert all(0 <= window.start <= window.end <= size for window in windows)
    assert sum(window.end - window.start for window in windows) <= room
