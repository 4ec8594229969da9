"""A look at objects of Kubernetes, and at whatever becomes of them, in a thread of its own."""

import contextlib
import json
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rota.live.provider.kubernetes_api import Api, ApiError, silence

AGAIN_S = 1.0  # after a look that failed


class News(NamedTuple):
    """What a watch has seen: all objects, if ``is_all``, else one that has changed or ``is_gone``.

    With an ``error`` it has seen nothing.
    """

    objects: Sequence[Mapping[str, Any]] = ()
    is_all: bool = False
    is_gone: bool = False
    error: ApiError | None = None


class Watch:
    """Watches the objects at a ``path`` that a label ``selector`` finds."""

    def __init__(self, api: Api, path: str, selector: str) -> None:
        self._api, self._path, self._selector = api, path, selector
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._stopped, self._one = threading.Event(), threading.Lock()
        self._response: Any = None
        self._is_cut = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin with a look at all objects."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="rota-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; returns when its thread has ended, or waits for an answer that nobody reads."""
        self._stopped.set()
        self.again()
        if self._thread is not None:
            self._thread.join(AGAIN_S)

    def again(self) -> None:
        """Look at all objects anew, as what is watched may be silent for long."""
        with self._one:
            self._is_cut = True
            if self._response is not None:
                with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended
                    self._response.shutdown()

    def news(self) -> list[News]:
        """All that it has seen since it was asked last."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._is_cut = False
            try:
                told = self._api.call("GET", self._path, labelSelector=self._selector)
                self._news.put(News(told["items"], is_all=True))
                version: str | None = told["metadata"]["resourceVersion"]
                while version is not None and not self._is_cut:
                    version = self._follow(version)
            except ApiError as error:
                if not self._is_cut:
                    self._news.put(News(error=error))
                self._stopped.wait(AGAIN_S)

    def _follow(self, version: str) -> str | None:
        """Watch from a version on until the API server ends that. Returns the last version.

        That is None if it must be looked at anew.
        """
        from urllib3.exceptions import HTTPError

        response = self._api.watch(
            self._path, labelSelector=self._selector, resourceVersion=version
        )
        with self._one:
            self._response = response
        rest = b""
        try:
            for piece in () if self._is_cut else response.stream(None):
                *lines, rest = (rest + piece).split(b"\n")
                for event in map(json.loads, filter(None, lines)):
                    if event["type"] == "ERROR":  # the version is too old, for example
                        self._stopped.wait(AGAIN_S)
                        return None
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._news.put(News([event["object"]], is_gone=event["type"] == "DELETED"))
        # After a shutdown the socket has no TLS: what is read then may be no text.
        except (HTTPError, OSError, AttributeError, ValueError) as error:
            raise silence(error) from None
        finally:
            with self._one:
                self._response = None
            response.close()
        return version
