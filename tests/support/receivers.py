"""A receiver of webhooks on a real socket, which fails on purpose."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rota.client.client import new_secret

HANG = "hang"


class Receiver(ThreadingHTTPServer):
    """Answers as ``answers`` says, one after another, and the last again and again.

    An answer is a status, a (status, headers), or HANG: nothing until ``release`` is set.
    ``entered`` counts the calls that have come; ``calls`` has their headers and bodies.
    """

    daemon_threads = True

    def __init__(self, *answers: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers or (204,))
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.entered = threading.Semaphore(0)
        self.release = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/in/s3cret-path"
        self.secret = new_secret()

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.calls]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever called may have hung up."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        it = self.server
        it.calls.append((dict(self.headers), body))
        answer = it.answers.pop(0) if len(it.answers) > 1 else it.answers[0]
        it.entered.release()
        if answer == HANG:
            it.release.wait()
            answer = 204
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def receiving(*answers: Any) -> Iterator[Receiver]:
    """A receiver until the end of the context."""
    with Receiver(*answers) as it:
        thread = threading.Thread(target=it.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield it
        finally:
            it.release.set()
            it.shutdown()
            thread.join()
