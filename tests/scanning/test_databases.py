"""Compiled matchers kept between runs: read back where they can be trusted, compiled anew where they cannot."""

from collections.abc import Sequence
from pathlib import Path

import hyperscan
import pytest

from activities.scanning.databases import FILES_KEPT, directory, kept_or_compiled

WORDS = (b"foo", b"bar\\d+")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = directory()
    assert found == tmp_path / "backstay" / "matchers"
    return found


class Compiler:
    """Compiles, and counts how often it had to."""

    def __init__(self, expressions: Sequence[bytes] = WORDS) -> None:
        self.expressions = list(expressions)
        self.times = 0

    def __call__(self) -> hyperscan.Database:
        self.times += 1
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        count = len(self.expressions)
        database.compile(expressions=self.expressions, ids=list(range(count)), elements=count, flags=0)
        return database


def hits(compiler: Compiler, *, flags: int = 0, worth_seconds: float = 0) -> list[tuple[int, int]]:
    """(id, end) of what the database finds in a fixed text."""
    database = kept_or_compiled(compiler.expressions, flags, compiler, worth_seconds=worth_seconds)
    found: list[tuple[int, int]] = []

    def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
        found.append((number, end))

    database.scan(b"foo bar7", match_event_handler=on_match, scratch=hyperscan.Scratch(database))
    return sorted(found)


def test_a_second_start_reads_what_the_first_one_compiled(place: Path) -> None:
    compiler = Compiler()
    assert hits(compiler) == hits(compiler) == [(0, 3), (1, 8)]
    assert compiler.times == 1


def test_nobody_else_can_read_or_change_what_is_kept(place: Path) -> None:
    hits(Compiler())
    (kept,) = place.iterdir()
    assert (place.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)


def test_other_patterns_and_other_flags_are_other_files(place: Path) -> None:
    for words in (WORDS, WORDS[:1], (b"foobar\\d+",)):
        hits(Compiler(words))
    hits(Compiler(), flags=hyperscan.HS_FLAG_CASELESS)
    assert len(list(place.iterdir())) == 4


def test_what_compiles_at_once_is_not_kept(place: Path) -> None:
    hits(Compiler(), worth_seconds=60)
    assert not place.exists()


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-9], lambda data: data[:90] + bytes([data[90] ^ 1]) + data[91:]])
def test_a_damaged_file_is_compiled_anew_and_mended(place: Path, damage: object) -> None:
    compiler = Compiler()
    hits(compiler)
    (kept,) = place.iterdir()
    assert callable(damage)
    kept.write_bytes(damage(kept.read_bytes()))
    assert hits(compiler) == [(0, 3), (1, 8)]
    assert hits(compiler) == [(0, 3), (1, 8)]
    assert compiler.times == 2


def test_a_file_others_can_write_is_not_trusted(place: Path) -> None:
    compiler = Compiler()
    hits(compiler)
    (kept,) = place.iterdir()
    kept.chmod(0o666)
    hits(compiler)
    assert compiler.times == 2


def test_a_directory_others_can_write_is_neither_trusted_nor_used(place: Path) -> None:
    place.mkdir(parents=True)
    place.chmod(0o777)
    compiler = Compiler()
    hits(compiler)
    hits(compiler)
    assert compiler.times == 2
    assert not list(place.iterdir())


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    compiler = Compiler()
    hits(compiler)
    (kept,) = place.iterdir()
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    hits(compiler)
    assert compiler.times == 2


def test_where_nothing_can_be_kept_it_compiles_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert hits(Compiler()) == [(0, 3), (1, 8)]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert directory() is None
    assert hits(Compiler()) == [(0, 3), (1, 8)]


def test_a_relative_cache_directory_is_ignored_as_the_specification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/alice")
    assert directory() == Path("/home/alice/.cache/backstay/matchers")


def test_files_of_former_tables_do_not_pile_up(place: Path) -> None:
    for number in range(FILES_KEPT + 3):
        hits(Compiler((b"word%d" % number,)))
    assert len(list(place.iterdir())) == FILES_KEPT


def test_a_refused_pattern_is_refused_as_ever(place: Path) -> None:
    with pytest.raises(hyperscan.error):
        hits(Compiler((b"(",)))
    assert not place.exists()
