"""Where a workflow is seen in the Temporal UI. Pure; called by `show`."""

from urllib.parse import quote

from activities.configuration import TemporalSection

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def ui_address(section: TemporalSection) -> str | None:
    """The UI's own address: the one configured, else that of the embedded server, which serves it on loopback; else not known."""
    if section.ui_url:
        return section.ui_url.rstrip("/")
    host = section.address.rpartition(":")[0]
    return f"http://127.0.0.1:{section.ui_port}" if host in LOOPBACK else None


def page_of(section: TemporalSection, workflow_id: str) -> str | None:
    """The address of a workflow's page, which shows its newest run; None where nobody said which UI shows this server's workflows.

    Args:
        section: `temporal` of the configuration.
        workflow_id: such as `job/alpha/1234/1767614400`; its slashes are no path.
    """
    address = ui_address(section)
    return f"{address}/namespaces/{quote(section.namespace, safe='')}/workflows/{quote(workflow_id, safe='')}" if address else None
