"""The list of jobs in columns that fit a window: which columns there is room for, what folds, what goes beneath its row. Pure.

What one needs is never cut: job ID, name, state, and what needs a person. Called by `jobs`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from activities.slurm.hostlist import collect
from workers.commands.lookup import Found
from workers.commands.shapes import job_row, warnings_of
from workers.commands.standing import SEE_TO_IT, Standing, standing
from workers.commands.terminal import folded, printable
from workers.commands.words import clipped

LONGEST_NAME = 40  # columns in all, over as many lines as it takes; Slurm takes names of a thousand letters
LONGEST_NODES = 24  # columns; more nodes are counted
LONGEST_STANDING = 400  # columns; a reason may have thousands, and `backstay show` has it whole
MOST_WARNINGS = 10  # beneath the list; more would push it off the screen
MOST_NAMED = 5  # jobs that share a warning; the rest are counted
GAP = 2  # columns between two columns


ALWAYS = 0


class Column(NamedTuple):
    heading: str
    turn: int
    """When it gets what room a window has: those that are shown `ALWAYS` first, then in this order. A pipe shows all."""
    widest: int
    """Longer cells fold, unless there is room when all columns have theirs."""


COLUMNS = (
    Column("JOB", ALWAYS, 24),
    Column("NAME", ALWAYS, 16),
    Column("USER", 1, 10),
    Column("STATE", ALWAYS, 10),
    Column("NEEDS YOU", 7, 11),
    Column("MODE", 4, 7),
    Column("TRY", 6, 3),
    Column("ITERATION", 2, 9),
    Column("CHECKPOINT", 3, 10),
    Column("NODES", 5, LONGEST_NODES),
)
WHERE = "WHERE IT STANDS"
LEFT_FOR_WHERE = len("no fault seen")  # what is true of most jobs stands in their row; what is longer goes beneath


def first_things_first(found: Sequence[Found]) -> list[Found]:
    """Those that need a person, then the others, each in the order they came: newest first."""
    return sorted(found, key=lambda each: standing(each).need is None)


def as_lines(found: Sequence[Found], width: int | None) -> Iterator[str]:
    """The list, line by line.

    Args:
        width: columns of the window, 80 or more for comfort; None for a pipe, where each job is one line and nothing folds.
    """
    told = [standing(each) for each in found]
    cells = [_cells(each, what) for each, what in zip(found, told, strict=True)]
    natural = [max(map(cell_len, column)) for column in zip((column.heading for column in COLUMNS), *cells, strict=True)]
    widths = _widths(natural, width)
    headings = [_padded(column.heading, widths[n]) for n, column in enumerate(COLUMNS) if n in widths]
    has_room = width is None or cell_len(_joined([*headings, WHERE])) <= width
    yield _joined([*headings, WHERE] if has_room else headings)
    for row, what in zip(cells, told, strict=True):
        yield from _row([row[n] for n in widths], list(widths.values()), what, width)


def counts_in_words(found: Sequence[Found]) -> str:
    """The list in one sentence, for whoever sees its end first."""
    told = [standing(each) for each in found]
    needing = sum(what.need is not None for what in told)
    blind = sum(each.blind is not None for each in found)
    needs = f"{needing} need{'s' if needing == 1 else ''} you (listed first)" if needing else "none needs you"
    return f"{len(found)} job{'' if len(found) == 1 else 's'}: {needs}" + (f"; {blind} cannot be seen in part" if blind else "")


def warnings_in_words(found: Sequence[Found]) -> Iterator[str]:
    """What is amiss, each thing once with the jobs it is true of; what the list says in the job's own row is not repeated."""
    jobs_by_warning: dict[str, list[str]] = {}
    for each in found:
        for warning in warnings_of(each.state, each.warnings):
            if warning != each.blind:
                jobs_by_warning.setdefault(warning, []).append(each.state.key.job_id)
    for warning, jobs in list(jobs_by_warning.items())[:MOST_WARNINGS]:
        if len(jobs) == 1:
            yield f"warning: job {jobs[0]}: {warning}"
        else:
            rest = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
            yield f"warning: {len(jobs)} jobs ({', '.join(jobs[:MOST_NAMED])}{rest}): {warning}"
    if len(jobs_by_warning) > MOST_WARNINGS:
        yield f"and {len(jobs_by_warning) - MOST_WARNINGS} more warnings; `backstay show JOB` tells a job's own"


def _cells(found: Found, what: Standing) -> list[str]:
    row = job_row(found.state, found.progress)
    job = row["job"]
    return [
        printable(job["job_id"]),
        clipped(job["name"], LONGEST_NAME).strip() or "-",
        clipped(job["user"], LONGEST_NAME).strip() or "-",
        row["state"].replace("_", " "),
        SEE_TO_IT[what.need] if what.need else "-",
        row["mode"],
        *("-" if row[name] is None else str(row[name]) for name in ("attempt", "iteration", "checkpoint_iteration")),
        _nodes(job["nodes"]),
    ]


def _nodes(nodes: Sequence[str]) -> str:
    if not nodes:
        return "-"
    together = printable(collect(nodes))
    return together if cell_len(together) <= LONGEST_NODES else f"{len(nodes)} nodes"


def _widths(natural: Sequence[int], width: int | None) -> dict[int, int]:
    """How wide each column is that is shown, by its number: as its cells are, up to `widest`; what room is left unfolds them.

    Args:
        natural: how wide each column's widest cell or heading is.
        width: columns of the window; None for a pipe.
    """
    if width is None:
        return dict(enumerate(natural))
    widths: dict[int, int] = {}
    spare = width - LEFT_FOR_WHERE
    for number in sorted(range(len(COLUMNS)), key=lambda number: COLUMNS[number].turn):
        least = min(natural[number], COLUMNS[number].widest)
        if COLUMNS[number].turn != ALWAYS and least + GAP > spare:
            break  # a later one would fit, but then each list would have other columns
        widths[number] = least
        spare -= least + GAP
    for number in sorted(widths):
        more = min(max(spare, 0), natural[number] - widths[number])
        widths[number] += more
        spare -= more
    return dict(sorted(widths.items()))


def _row(row: Sequence[str], widths: Sequence[int], what: Standing, width: int | None) -> Iterator[str]:
    """The cells, folded within their columns; where it stands on the same line, or beneath where it does not fit."""
    sentence = clipped(what.sentence, LONGEST_STANDING)
    if width is None:
        where = f"{sentence}; {what.command}" if what.command else sentence
        yield _joined([*map(_padded, row, widths), where])
        return
    stacks = [_in_column(cell, size) for cell, size in zip(row, widths, strict=True)]
    fits = not what.command and sum(widths) + GAP * len(widths) + cell_len(sentence) <= width
    for number in range(max(map(len, stacks))):
        cells = [_padded(stack[number] if number < len(stack) else "", size) for stack, size in zip(stacks, widths, strict=True)]
        yield _joined([*cells, sentence if fits and number == 0 else ""])
    if sentence and not fits:
        yield from folded(f"  {sentence}", width)
    if what.command:
        yield from folded(f"  {printable(what.command)}", width)


def _in_column(cell: str, size: int) -> list[str]:
    """Broken between words where each fits, else wherever the column ends."""
    if cell_len(cell) <= size:
        return [cell]
    words = cell.split(" ")
    if all(cell_len(word) <= size for word in words):
        lines = [words[0]]
        for word in words[1:]:
            if cell_len(f"{lines[-1]} {word}") <= size:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines
    return [piece for piece in chop_cells(cell, size) if piece]


def _padded(cell: str, size: int) -> str:
    return cell + " " * (size - cell_len(cell))


def _joined(cells: Sequence[str]) -> str:
    return (" " * GAP).join(cells).rstrip()
