"""A receiver of traces over OTLP/HTTP that keeps what it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Receiver:
    """Takes traces at ``url``; ``services`` has the name of each sender's service."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.services: set[str] = set()
        self._spans: list[Any] = []

    def take(self, body: bytes) -> None:
        """Keep the spans of one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(about["service.name"])
            self._spans += [span for scope in resource.scope_spans for span in scope.spans]

    def spans(self, name: str) -> list[Any]:
        """The spans of this name so far."""
        return [span for span in self._spans if span.name == name]

    def children(self, parent: Any) -> list[Any]:
        """The spans of which this one is the parent, by when they began."""
        ids = parent.trace_id, parent.span_id
        found = [each for each in self._spans if (each.trace_id, each.parent_span_id) == ids]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding"):
                raise NotImplementedError("the body is compressed")
            it.take(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        it = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield it
        finally:
            server.shutdown()
            thread.join()
