"""Requests of a Kubernetes API server, by the official client: JSON goes out and comes in."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rota.errors import pip_install

CALL_S = 10.0  # to be connected with the API server, and for it to answer
SILENT_S = 90.0  # a watch tells something every minute
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ApiError(Exception):
    """The API server has refused, or can't be asked: its own words, and the HTTP status.

    ``is_silence``: it did not answer, and may do so later; what it was asked for may be done.
    """

    def __init__(self, text: str, status: int = 0, *, is_silence: bool = False) -> None:
        super().__init__(text)
        self.status, self.is_silence = status, is_silence


class UnusableError(Exception):
    """There is no API server to ask: the reason, and the fix."""


class Api:
    """An API server, and the namespace in which it is asked.

    ``client`` is the SDK's, and ``server`` the URL. It may be asked by several threads at once.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self._client, self.namespace = client, namespace
        self.server = str(client.configuration.host)

    def path(self, kind: str, name: str = "") -> str:
        """The path of objects of the namespace, such as ``pods``, or of one of them."""
        group = "apis/coordination.k8s.io/v1" if kind == "leases" else "api/v1"
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **query: Any,
    ) -> Any:
        """The answer to a request. Raises ApiError."""
        from urllib3.exceptions import HTTPError

        response = self._request(method, path, body, query, CALL_S)
        try:
            text = response.read()
        except (HTTPError, OSError) as error:
            raise silence(error) from None
        _check(response.status, text)
        return json.loads(text)

    def find(self, path: str) -> Any:
        """An object; None if there is none. Raises ApiError."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def delete(self, path: str, **options: Any) -> None:
        """Delete an object, if it is there. Raises ApiError."""
        try:
            self.call("DELETE", path, options or None)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, **query: Any) -> Any:
        """A response of urllib3 that goes on: what becomes of objects. Raises ApiError."""
        query |= {"watch": "true", "allowWatchBookmarks": "true"}
        response = self._request("GET", path, None, query, (CALL_S, SILENT_S))
        if response.status >= 400:
            _check(response.status, response.read())
        return response.response

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any],
        timeout_s: float | tuple[float, float],
    ) -> Any:
        """The response. ``timeout_s`` is for all of it, or for connecting and for each answer."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        asked = self._client.param_serialize(
            method,
            path,
            query_params=[*query.items()],
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            return self._client.call_api(*asked, _request_timeout=timeout_s)
        except (HTTPError, OSError) as error:
            raise silence(error) from None
        except ApiException as error:  # of TLS
            raise ApiError(_line(error.reason or error), is_silence=True) from None


def connect(context: str | None, namespace: str | None) -> Api:
    """The API server of this pod, or of a context of KUBECONFIG: by default the current one.

    The namespace is the pod's, or the context's, unless it is named. Raises UnusableError.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise UnusableError(f"{error}; install it with: {pip_install('kubernetes')}") from None
    settings = client.Configuration()
    try:
        if context is None and is_inside():
            config.load_incluster_config(client_configuration=settings)
            own = OWN_NAMESPACE.read_text().strip()
        else:
            # The SDK would read the variable once only, when it is imported.
            file = os.environ.get("KUBECONFIG") or None
            config.load_kube_config(file, context=context, client_configuration=settings)
            contexts, current = config.list_kube_config_contexts(file)
            found = next((each for each in contexts if each["name"] == context), current)
            own = found["context"].get("namespace") or "default"
    except Exception as error:  # the SDK passes on what a malformed file has it raise
        words = _line(error).rstrip(".")
        if not isinstance(error, config.ConfigException | OSError):
            words = f"the kubeconfig can't be read: {type(error).__name__}: {words}"
        raise UnusableError(
            f"{words}; set KUBECONFIG to the file of your cluster, and name one of its "
            "contexts with --context (`kubectl config get-contexts`)"
        ) from None
    settings.retries = False
    return Api(client.ApiClient(settings), namespace or own)


def is_inside() -> bool:
    """True in a pod that may ask the API server of its cluster."""
    return OWN_NAMESPACE.exists()


def _check(status: int, text: bytes) -> None:
    """Raise ApiError with the API server's words unless it has done what it was asked for."""
    if 200 <= status <= 299:
        return
    try:
        words = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        words = text.decode("utf-8", "replace") or f"HTTP status {status}"
    raise ApiError(_line(words), status, is_silence=status == 429 or status >= 500)


def silence(error: BaseException) -> ApiError:
    """The error that the API server is not heard."""
    return ApiError(_line(getattr(error, "reason", None) or error), is_silence=True)


def _line(words: object) -> str:
    return " ".join(str(words).split())
