"""The Temporal SDK's native part in this process. Its log lines go through Python's `logging`, never to standard output, where by itself
it writes them: a command's output is a document that programs read. Used by whoever makes a client.
"""

import logging
from functools import cache

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

SDK_LOGGER = "temporalio"
"""The SDK's Python part logs under this name too."""


@cache
def sdk_runtime() -> Runtime:
    """The one runtime of this process; each has threads of its own."""
    forwarding = LogForwardingConfig(
        logger=logging.getLogger(SDK_LOGGER),
        prepend_target_on_message=False,  # the logger's name tells it
        append_log_fields_to_message=False,  # our formatter has them as keys; see workers/commands/logging.py
    )
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))
