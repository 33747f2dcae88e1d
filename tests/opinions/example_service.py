"""An operator's own diagnosis service in forty lines, by deploy/opinion.openapi.yaml. Served on loopback by the tests; a pattern to copy.

It knows which nodes gave trouble lately and agrees with a hardware diagnosis of those only.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TROUBLED = {"node-002": "second uncorrectable error this week"}
TOKEN = "let-me-in"


def opinion_on(question: dict[str, Any]) -> dict[str, Any]:
    """The service's whole judgement."""
    troubled = [name for name in question["job"]["nodes"] if name in TROUBLED]
    if not troubled:
        return {"verdict": "UNKNOWN", "why": "our telemetry knows nothing of these nodes"}
    suspects = [{"node": name, "confidence": 0.9, "because": [TROUBLED[name]]} for name in troubled]
    return {"verdict": "RESTART", "domain": "hardware", "suspects": suspects, "why": f"{', '.join(troubled)} gave trouble before"}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"detail": "token wanted"})
        if self.path != "/diagnosis/v1/opinion":
            return self._answer(404, {"detail": "no such path"})
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return self._answer(200, opinion_on(question))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def served() -> Iterator[str]:
    """The service on a free port of loopback; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/diagnosis"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
