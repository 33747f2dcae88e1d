"""Slurm's node expressions, `node-[001-004,7]`, to names and back; a typed and cached layer over python-hostlist.

Callers: whatever reads Slurm's words (`values.py` first), `commands.py` before a list goes on a command line, `backstay jobs`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from hostlist import BadHostlist, collect_hostlist, expand_hostlist

_NOTHING = frozenset({"", "(null)", "None", "None assigned"})  # how the versions say "no nodes"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", re.ASCII)


class HostlistInvalid(ValueError):
    """Not a node expression, or one that names more nodes than any cluster has."""


@lru_cache(maxsize=4096)  # one poll reads the same few expressions for thousands of jobs
def expand(expression: str) -> tuple[str, ...]:
    """The names an expression stands for, in its order. Raises `HostlistInvalid`."""
    if expression.strip() in _NOTHING:
        return ()
    try:
        return tuple(expand_hostlist(expression, allow_duplicates=False, sort=False))
    except (BadHostlist, ValueError) as error:
        raise HostlistInvalid(f"not a node expression: {expression[:200]!r} ({error})") from error


def collect(names: Iterable[str]) -> str:
    """The shortest expression for these names, sorted: `node-[001-002]`."""
    return str(collect_hostlist(sorted(set(names))))


def is_node_name(text: str) -> bool:
    """Whether it can be one node's name: no list, no bracket, nothing a command could take for an option."""
    return _NODE_NAME.fullmatch(text) is not None
