"""`backstay show JOB`: one job's whole story, for people or as the documented JSON."""

from activities.configuration import Configuration
from workers.client import connect
from workers.commands.lookup import Found, read_job
from workers.commands.options import ConfigOption, JobArgument, JsonOption, open_configuration, run
from workers.commands.shapes import job_document
from workers.commands.temporal_ui import page_of
from workers.commands.terminal import print_json, tell
from workers.commands.unwatched import find_or_explain
from workers.commands.words import job_in_words


def show(job: JobArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show where a job stands and every incident it had: symptom, cause, suspects, recommendation, decision, outcome."""
    configuration = open_configuration(config)
    found = run(_read(configuration, job))
    if as_json:
        print_json(job_document(found.state, found.progress, found.warnings))
        return
    for line in job_in_words(found.state, found.progress, found.warnings, blind=found.blind):
        tell(line)
    if page := page_of(configuration.temporal, found.workflow_id):
        tell("")
        tell("the whole history, in the Temporal UI:")
        tell(page, fold=False)


async def _read(configuration: Configuration, job_id: str) -> Found:
    client = await connect(configuration)
    return await read_job(client, await find_or_explain(client, configuration, job_id))
