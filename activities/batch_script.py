"""What a batch script says, read as text and never evaluated: the variables it sets and how `srun` lays out its tasks. Pure.

Only plain words count. What a shell would have to compute is not known, and is left out.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from activities.records import Job, Record

LONGEST_SCRIPT = 1 << 20
"""Characters that are looked at; Slurm takes scripts of 4 MB (slurm.conf max_script_size), nobody writes them."""

_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))")
_COMMANDS_END = (";", "&&", "||", "|", "&", "(", ")")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(?P<options>.*)$", re.MULTILINE)
_LAYOUTS = ("block", "cyclic")

# srun(1): options that make a step's layout another one than its job's allocation tells.
_SHAPES = ("-n", "--ntasks", "-N", "--nodes", "-w", "--nodelist", "-x", "--exclude", "-r", "--relative")
_SHAPING_VARIABLES = ("SLURM_HOSTFILE", "SLURM_ARBITRARY_NODELIST", "SLURM_NTASKS", "SLURM_NNODES")


class Layout(Record):
    """How ranks are laid out on the nodes; `distribution` is block, cyclic, or unknown."""

    distribution: str = "block"
    tasks_of_nodes: tuple[int, ...] = ()


def values_of(script: str, *names: str) -> tuple[str, ...]:
    """What these variables are set to anywhere in the script (`export X=/a`, `X=/a srun ...`), each value once, as
    written: with its `$` variables, without its quotes."""
    found = (match["value"] for words in _commands(script) for match in _assignments(words) if match["name"] in names)
    return tuple(dict.fromkeys(value for value in found if value))


def expanded(text: str, job: Job) -> str | None:
    """A word of the script with Slurm's plain variables in it filled in; None where it holds anything else that a
    shell would compute."""
    known = {
        "SLURM_JOB_ID": str(job.numeric_id),
        "SLURM_JOBID": str(job.numeric_id),
        "SLURM_ARRAY_JOB_ID": str(job.array_job_id) if job.array_job_id is not None else None,
        "SLURM_ARRAY_TASK_ID": str(job.array_task_id) if job.array_task_id is not None else None,
        "SLURM_JOB_NAME": job.name or None,
        "SLURM_JOB_USER": job.user or None,
        "USER": job.user or None,
        "SLURM_RESTART_COUNT": str(job.restart_count) if job.restart_count else None,  # unset in a first attempt
    }
    wanted = [match["braced"] or match["plain"] for match in _VARIABLE.finditer(text)]
    if any(known.get(name) is None for name in wanted):
        return None
    filled = _VARIABLE.sub(lambda match: known[match["braced"] or match["plain"]] or "", text)
    return None if re.search(r"[$`*?\[\]~\n]", filled) or not filled.isprintable() else filled


def layout_of(job: Job, script: str | None) -> Layout:
    """How Slurm lays out the job's ranks, by its own count of tasks a node and the script's words.

    Slurm spreads tasks by the CPUs it allocated on each node unless it was told how many go on one
    (--ntasks-per-node), so without that count an even layout is not taken for granted.

    Args:
        job: with the nodes of the attempt.
        script: the batch script; None where there is none, or Slurm did not show it.
    """
    nodes, tasks, per_node = len(job.nodes), job.task_count, job.tasks_per_node
    is_even = bool(nodes and tasks) and (tasks == nodes or (per_node is not None and per_node * nodes == tasks))
    if not is_even:
        return Layout(distribution="unknown") if tasks is not None and tasks > nodes > 1 else Layout()
    assert tasks is not None
    said, own_counts = _distributions(script or ""), _counts_of_steps(script or "") - {str(tasks // nodes)}
    if not said <= set(_LAYOUTS) or len(said) > 1 or _steps_differ(script or "", job):
        return Layout(distribution="unknown")
    distribution = next(iter(said), "block")
    if not own_counts:
        return Layout(distribution=distribution, tasks_of_nodes=(tasks // nodes,) * nodes)
    # A step of its own number on each node: in blocks where that is one launcher a node, or the job itself told no number.
    is_in_blocks = distribution == "block" and len(own_counts) == 1 and (own_counts == {"1"} or tasks == nodes)
    return Layout() if is_in_blocks else Layout(distribution="unknown")


def _distributions(script: str) -> set[str]:
    """Every distribution named: by directives, by `srun`, by the environment. `cyclic:cyclic` is across nodes first (srun(1))."""
    said = set(values_of(script, "SLURM_DISTRIBUTION"))
    options = [words[1:] for words in _commands(script) if words[0] == "srun"]
    options += [tuple(_words(match["options"])) for match in _DIRECTIVE.finditer(script[:LONGEST_SCRIPT])]
    for words in options:
        said |= {value for name, value in _options(words) if name in ("-m", "--distribution")}
    return {re.split(r"[:,]", value.lower())[0] for value in said}


def _steps_differ(script: str, job: Job) -> bool:
    """Whether the script gives a step a shape of its own that is not plainly the whole job's."""
    same = {"-n": job.task_count, "--ntasks": job.task_count, "-N": len(job.nodes), "--nodes": len(job.nodes)}
    if values_of(script, *_SHAPING_VARIABLES):
        return True
    for words in _commands(script):
        for name, value in _options(words[1:]) if words[0] == "srun" else ():
            own_words = value in ("$SLURM_NTASKS", "$SLURM_NNODES", "$SLURM_JOB_NUM_NODES")
            if name in _SHAPES and not own_words and value != str(same.get(name)):
                return True
    return False


def _counts_of_steps(script: str) -> set[str]:
    """The tasks on each node that steps are given by `srun --ntasks-per-node`."""
    steps = (words[1:] for words in _commands(script) if words[0] == "srun")
    return {value for words in steps for name, value in _options(words) if name == "--ntasks-per-node"}


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of options as Slurm's programs take them: `--name=value`, `--name value`, `-n4`, `-n 4`."""
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word.startswith("--"):
            name, mark, value = word.partition("=")
            yield name, value if mark else following
        elif word.startswith("-") and len(word) > 1:
            yield word[:2], word[2:].removeprefix("=") or following


def _assignments(words: Sequence[str]) -> Iterator[re.Match[str]]:
    """Assignments at a command's beginning, or behind `export`, `declare` or `env`."""
    for word in words:
        match = _ASSIGNED.fullmatch(word)
        if match is not None:
            yield match
        elif word not in ("export", "declare", "env", "-x"):
            return


def _commands(script: str) -> Iterator[tuple[str, ...]]:
    """The script's simple commands in words, without comments. A line that a shell would still wait for more of is left out.
    Assignments before a command are a command of their own, and so is what follows them."""
    for line in re.sub(r"\\\n", " ", script[:LONGEST_SCRIPT]).splitlines():
        command: list[str] = []
        for word in (*_words(line), ";"):
            if word not in _COMMANDS_END:
                command.append(word)
                continue
            if command:
                yield tuple(command)
                bare = [at for at, one in enumerate(command) if not _ASSIGNED.fullmatch(one) and one not in ("env", "exec", "time")]
                if bare and bare[0] > 0:
                    yield tuple(command[bare[0] :])
            command = []


def _words(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quote that does not end here
        return []
