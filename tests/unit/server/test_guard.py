"""Nobody gets past the guard: no token, the wrong kind, another host, another site, a huge body."""

import http.client
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rota.folder import Folder
from rota.server.app import create_app
from rota.server.guard import MAX_BODY_BYTES, OPEN_PATHS
from rota.server.notify.notifier import Notifier
from rota.server.sweepdriver import SweepDriver
from support.served import StandInController

AGENT_URL = "/agent/v1"


def routes_of(app):
    """(method, path) of every route, WebSockets as WS, path parameters filled in."""
    found = set()
    waiting = list(app.routes)
    while waiting:
        route = waiting.pop()
        waiting += getattr(getattr(route, "original_router", route), "routes", None) or []
        path = getattr(route, "path", None)
        if path is None:
            continue
        methods = getattr(route, "methods", None) or {"WS"}
        found |= {(method, path.replace("{job_id}", "1")) for method in methods}
    for path, methods in app.openapi()["paths"].items():
        found |= {(method.upper(), path.replace("{job_id}", "1")) for method in methods}
    return sorted(found)


@pytest.fixture
def routes(folder):
    controller = StandInController(folder)
    notifier = Notifier(controller.deliveries, controller.state, controller.now_s, folder)
    return routes_of(create_app(controller, folder, SweepDriver(lambda: False, folder), notifier))


def status(cluster, method, path, headers):
    if method == "WS":
        try:
            with connect("ws" + cluster.url[4:] + path, additional_headers=headers, proxy=None):
                return 101
        except InvalidStatus as error:
            return error.response.status_code
    return raw_status(cluster, method, path, {"Host": urlsplit(cluster.url).netloc} | headers)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_every_route_needs_the_token_of_its_kind(cluster, routes, user_token, agent_token):
    assert ("POST", "/api/v1/jobs") in routes
    assert ("WS", AGENT_URL) in routes
    assert len(routes) > 15
    for method, path in routes:
        right, other = user_token, agent_token
        if path.startswith("/agent/"):
            right, other = agent_token, user_token
        wrong = [
            {},
            bearer(other),
            bearer("wrong"),
            bearer(right[:-1]),
            bearer(right + "x"),
            {"Authorization": "Bearer"},
            {"Authorization": right},
            {"Authorization": f"Basic {right}"},
            {"Cookie": f"token={right}"},
        ]
        answers = [status(cluster, method, path, headers) for headers in wrong]
        if path in OPEN_PATHS:
            assert set(answers) == {200}, path
        else:
            assert answers == [401] * len(wrong), (method, path)


def test_only_the_health_of_the_process_and_the_ca_are_open():
    assert {"/healthz", "/agent/v1/ca"} == OPEN_PATHS


def test_paths_that_do_not_exist_need_a_token_too(cluster):
    assert status(cluster, "GET", "/api/v1/nothing", {}) == 401
    assert status(cluster, "GET", "/healthz/", {}) == 401
    assert status(cluster, "GET", "//healthz", {}) == 401


def test_a_refusal_says_what_is_missing(cluster, agent_token):
    with httpx.Client(trust_env=False) as client:
        answer = client.get(cluster.url + "/api/v1/jobs")
        assert answer.json()["code"] == "AuthError"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        other = client.get(cluster.url + "/api/v1/jobs", headers=bearer(agent_token))
        assert "other kind" in other.json()["detail"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:80",
     "10.0.0.1", "0.0.0.0", "127.0.0.1@evil.example", "localhost:1:2", "[::2]",
     "", "localhost evil.example"],
)  # fmt: skip
def test_a_forged_host_is_refused_everywhere(cluster, routes, user_token, agent_token, host):
    for method, path in routes:
        token = agent_token if path.startswith("/agent/") else user_token
        headers = bearer(token) | {"Host": host}
        if method == "WS":
            answer = handshake(cluster, path, headers)
            assert answer in (400, 421), path
        else:
            assert raw_status(cluster, method, path, headers) in (400, 421), (method, path)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:9", "127.1.2.3"]
)
def test_loopback_hosts_are_served(cluster, user_token, host):
    assert raw_status(cluster, "GET", "/version", bearer(user_token) | {"Host": host}) == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "file://", ""],
)
def test_another_origin_is_refused_everywhere(cluster, routes, user_token, agent_token, origin):
    for method, path in routes:
        token = agent_token if path.startswith("/agent/") else user_token
        headers = bearer(token) | {"Origin": origin}
        assert status(cluster, method, path, headers) == 403, (method, path)


def test_the_servers_own_origin_is_served(cluster, user_token):
    headers = bearer(user_token) | {"Origin": cluster.url, "Sec-Fetch-Site": "same-origin"}
    assert status(cluster, "GET", "/version", headers) == 200


def test_a_cross_site_call_without_an_origin_is_refused(cluster, user_token):
    headers = bearer(user_token) | {"Sec-Fetch-Site": "cross-site"}
    assert status(cluster, "GET", "/api/v1/jobs", headers) == 403


def test_a_body_over_the_limit_is_refused(http):
    assert http.post("/api/v1/jobs", content=b"x" * MAX_BODY_BYTES).status_code == 422
    answer = http.post("/api/v1/jobs", content=b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["code"] == "InputError"


def test_a_body_over_the_limit_is_refused_when_its_size_is_not_told(http):
    pieces = (b"x" * 65536 for _ in range(32))
    assert http.post("/api/v1/jobs", content=pieces).status_code == 413


def test_an_agent_with_its_token_reaches_the_controller(cluster, agent_token):
    url = "ws" + cluster.url[4:] + AGENT_URL
    with connect(url, additional_headers=bearer(agent_token), proxy=None) as socket:
        socket.send("hello")
        assert socket.recv() == "welcome"
    assert cluster.controller.agents_said == ["hello"]


def test_tokens_are_for_their_owner_alone(cluster, folder):
    for path in (folder.token, folder.agent_token, folder.server):
        assert path.stat().st_mode & 0o777 == 0o600
    assert isinstance(folder, Folder)


def raw_status(cluster, method, path, headers):
    """A call whose Host header is exactly what the test says."""
    address = urlsplit(cluster.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def handshake(cluster, path, headers):
    """A WebSocket handshake by hand: client libraries write their own Host."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    return raw_status(cluster, "GET", path, upgrade | headers)
