"""The one place that connects to Temporal. Called by the worker and by every command that talks to workflows."""

import re
from importlib.metadata import version
from pathlib import Path

from temporalio.client import Client, TLSConfig
from temporalio.service import RPCError

from activities.configuration import Configuration, TemporalSection, WorkerSection
from workers.converter import data_converter


class TemporalUnreachable(Exception):
    """No Temporal server answers there: what was found, and the mend; the message is both."""

    def __init__(self, found: str, mend: str) -> None:
        super().__init__(f"{found}; {mend}")
        self.found, self.mend = found, mend


class SearchAttributesMissing(Exception):
    """Workflows cannot run without their search attributes. The message lists them with their types."""


async def connect(configuration: Configuration) -> Client:
    """A client whose records and errors stand in histories as readable JSON without secrets.

    Raises:
        TemporalUnreachable: nothing answers at `temporal.address`, or it refuses us.
    """
    section = configuration.temporal
    try:
        return await Client.connect(
            section.address,
            namespace=section.namespace,
            data_converter=data_converter,
            tls=_tls(section),
            api_key=section.api_key_file.expanduser().read_text().strip() if section.api_key_file else None,
        )
    except (RuntimeError, RPCError) as error:
        mend = "start `backstay up` here, or point temporal.address at your Temporal cluster"
        raise TemporalUnreachable(f"no Temporal server answers at {section.address} ({_first_line(error)})", mend) from error
    except OSError as error:
        raise TemporalUnreachable(f"{error.filename}: {error.strerror}", "mend the temporal.tls_* and api_key_file paths") from error


def build_id_of(section: WorkerSection) -> str:
    """The build that workers of this configuration are, under deployment versioning."""
    return section.build_id or version("backstay")


def _tls(section: TemporalSection) -> TLSConfig | bool:
    if not section.tls:
        return False

    def read(path: Path | None) -> bytes | None:
        return path.expanduser().read_bytes() if path else None

    return TLSConfig(
        server_root_ca_cert=read(section.tls_ca),
        client_cert=read(section.tls_certificate),
        client_private_key=read(section.tls_key),
    )


def _first_line(error: Exception) -> str:
    """The operating system's own reason where the SDK quotes one, else the first line of what it says."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    reason = re.search(r'Os \{[^}]*message: "([^"]+)"', said)
    return (reason.group(1) if reason else said)[:160]
