"""Real outputs of Slurm's programs, recorded on private clusters of several versions: `outputs/<version>/`."""

from pathlib import Path

OUTPUTS = Path(__file__).parent / "outputs"


def recorded(version: str, name: str) -> bytes:
    return (OUTPUTS / version / name).read_bytes()
