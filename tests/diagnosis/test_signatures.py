"""Every row of the table on its own examples; bad rows are refused with their place and the mend."""

from pathlib import Path

import pytest

from activities.diagnosis.causes import causes
from activities.diagnosis.reader import Reader
from activities.diagnosis.signals import LogSource
from activities.diagnosis.signatures import Role, Signature, SignaturesRefused, built_in, load, parse
from activities.records import Domain
from activities.scanning.scan import MultiPattern

ROW = """\
- id: our_switch
  pattern: 'fabric watch: port \\d+ flapping'
  cause: ib_port_error
  role: primary
  source: our own monitor
  positive: 'fabric watch: port 12 flapping'
  negative: 'fabric watch: all ports up'
"""


@pytest.mark.parametrize("row", built_in(), ids=[row.id for row in built_in()])
def test_a_row_matches_its_positive_example_and_not_its_negative_one(row: Signature) -> None:
    matcher = MultiPattern({row.id: row.pattern})
    assert matcher.matches(row.positive.encode())
    assert not matcher.matches(row.negative.encode())


def test_the_table_is_broad() -> None:
    assert len(built_in()) >= 120
    assert all(row.source for row in built_in())


def test_most_causes_that_a_log_can_show_have_a_row() -> None:
    # The others rest on kernel lines, readings, the scheduler's history or on what came before (refine.py, collectives.py, gpu/).
    with_row = {row.cause for row in built_in()}
    told_by_lines = [slug for slug, cause in causes().items() if cause.domain in (Domain.NETWORK, Domain.STORAGE, Domain.USER)]
    assert {slug for slug in told_by_lines if slug not in with_row} <= {
        "checkpoint_read_transient", "parallel_fs_write_stuck", "loss_nan_data_mismatch",
    }  # fmt: skip


def test_no_benign_row_hides_the_examples_of_a_primary_row() -> None:
    benign = MultiPattern({row.id: row.pattern for row in built_in() if row.role is Role.BENIGN})
    hidden = [row.id for row in built_in() if row.role is Role.PRIMARY and benign.matches(row.positive.encode())]
    assert hidden == []


def test_operator_rows_are_added_and_replace_by_id(tmp_path: Path) -> None:
    ours = tmp_path / "ours.yaml"
    ours.write_text(ROW + ROW.replace("our_switch", "quota_exceeded"))
    rows = {row.id: row for row in load([ours])}
    assert rows["our_switch"].domain is Domain.NETWORK
    assert rows["quota_exceeded"].cause == "ib_port_error"
    assert len(rows) == len(built_in()) + 1


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (ROW + ROW.replace("our_switch", "b").replace("ib_port_error", "ib_port_eror"), "ours.yaml:8", "did you mean 'ib_port_error'"),
        (ROW.replace("pattern:", "patern:"), "ours.yaml:1", "did you mean 'pattern'"),
        (ROW.replace("flapping'\n", "(?<=x)y'\n", 1), "ours.yaml:1", "no look-around"),
        (ROW.replace("port 12 flapping", "port up"), "ours.yaml:1", "does not match its own positive example"),
        (ROW.replace("all ports up", "port 1 flapping"), "ours.yaml:1", "matches its own negative example"),
        (ROW.replace("role: primary", "role: primry"), "ours.yaml:1", "role"),
        (ROW + "  phase: +chekpoint\n", "ours.yaml:1", "'+checkpoint'"),
        (ROW.replace("  cause: ib_port_error\n", ""), "ours.yaml:1", "needs a cause"),
        (ROW + ROW, "ours.yaml:8", "used twice"),
        (ROW + "  extracts: '('\n", "ours.yaml:1", "not a regular expression"),
        (ROW + "  extracts: 'port (?=x)(?P<node>n)'\n", "ours.yaml:1", "no look-around"),
        (ROW + "  extracts: '(?P<node>.{900}.{900})'\n", "ours.yaml:1", "smaller counted repeats"),
        ("id: x\n", "ours.yaml:1", "list of rows"),
        ("- [\n", "ours.yaml:2", "not valid YAML"),
        ("- {id: " + "[" * 5000 + "\n", "ours.yaml:1", "nests deeper"),
        (ROW + "  weight: " + "9" * 5000 + "\n", "ours.yaml:8", "5000 digits"),
        ("- just text\n", "ours.yaml:1", "a row is a mapping"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(text: str, place: str, says: str) -> None:
    with pytest.raises(SignaturesRefused) as refusal:
        parse(text, "ours.yaml")
    assert str(refusal.value).startswith(place), refusal.value
    assert says in str(refusal.value)


@pytest.mark.timeout(60)
def test_an_operators_row_that_python_would_take_for_ever_to_match_is_matched(tmp_path: Path) -> None:
    ours = tmp_path / "ours.yaml"
    ours.write_text(ROW + "  extracts: '(?P<node>(?:\\d|\\d)+)x'\n")
    reader = Reader(load([ours]))
    line = f"fabric watch: port 12 flapping {'1' * 3000} at the end\n"
    reading = reader.read([LogSource(data=(line * 50).encode())], near=None)
    assert [item.signature for item in reading.observations] == ["our_switch"] * 50


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SignaturesRefused, match=r"missing\.yaml: cannot be read"):
        load([tmp_path / "missing.yaml"])


def test_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load([tmp_path / "empty.yaml"]) == built_in()
