"""Who is let in: links, sessions, hosts, origins, and what pages may load."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect


@pytest.fixture
def strange(dashboard):
    """A client without a session."""
    with httpx.Client(base_url=dashboard.url, trust_env=False) as http:
        yield http


def test_a_link_signs_in_once_and_its_session_opens_pages(dashboard, strange):
    assert strange.get("/queue").status_code == 401
    link = dashboard.link()
    answer = strange.get(link)
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert strange.get("/queue").status_code == 200
    with httpx.Client(trust_env=False) as other:
        assert other.get(link).status_code == 403


def test_pages_may_load_nothing_from_elsewhere_and_stand_in_no_frame(dashboard, strange):
    strange.get(dashboard.link())
    page = strange.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    scripts = policy.partition("script-src ")[2].partition(";")[0]
    assert "unsafe-inline" not in scripts and "http" not in policy
    nonce = scripts.partition("'nonce-")[2].partition("'")[0]
    assert page.text.count("<script") == page.text.count(f'<script nonce="{nonce}"') > 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rota.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_other_names_and_other_sites_are_refused(dashboard, strange, headers, status):
    strange.get(dashboard.link())
    assert strange.get("/", headers=headers).status_code == status
    assert strange.post("/", headers=headers).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", None])
def test_a_websocket_of_another_site_is_refused(dashboard, strange, origin):
    strange.get(dashboard.link())
    cookie = "; ".join(f"{name}={value}" for name, value in strange.cookies.items())
    address = dashboard.url.replace("http", "ws") + "/_nicegui_ws/socket.io/?transport=websocket"
    with (
        pytest.raises(InvalidStatus),
        connect(address, origin=origin, additional_headers={"Cookie": cookie}, proxy=None),
    ):
        pass


def test_only_the_tokens_holder_gets_a_link(dashboard, strange, cluster):
    token = cluster.folder.token.read_text().strip()
    wrong = {"Authorization": "Bearer x"}
    assert strange.post("/link", headers=wrong).status_code == 403
    right = {"Authorization": f"Bearer {token}"}
    assert strange.post("/link", headers=right | {"Origin": dashboard.url}).status_code == 403
    assert strange.post("/link", headers=right).status_code == 200
