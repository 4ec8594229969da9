"""What a role may do: actions of all routes, and a role that is lowered meanwhile."""

import asyncio
from types import SimpleNamespace

import pytest

from rota.client.client import Client
from rota.client.joblist import Due, Found
from rota.errors import NotAllowedError
from rota.server import roles
from rota.ui import steering
from rota.ui.reader import Reader

NONE_DUE = Due(())
JOB = {"run": "true", "workdir": "/tmp"}


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("GET", "/api/v1/jobs", "read"),
        ("GET", "/api/v1/shutdown", "read"),
        ("POST", "/api/v1/jobs", "submit"),
        ("POST", "/api/v1/plans", "submit"),
        ("POST", "/api/v1/sweeps/digits/trials", "submit"),
        ("PUT", "/api/v1/snapshots/0a", "submit"),
        ("PUT", "/api/v1/snapshots/0a/b", "administer"),
        ("POST", "/api/v1/jobs/1/suspend", "suspend"),
        ("POST", "/api/v1/nodes/here/drain", "drain"),
        ("POST", "/api/v1/sweeps/digits/cancel", "cancel"),
        ("POST", "/api/v1/sweeps/digits/end", "cancel"),
        ("POST", "/api/v1/sweeps/digits/trials/3/stop", "cancel"),
        ("POST", "/api/v1/hooks/cancel/test", "administer"),
        ("DELETE", "/api/v1/hooks/team", "administer"),
        ("POST", "/api/v1/shutdown", "administer"),
        ("POST", "/api/v1/unknown/1/forget", "administer"),
    ],
)
def test_a_call_is_an_action(method, path, action):
    assert roles.action_of(method, path) == action


def test_a_role_that_is_lowered_meanwhile_is_refused_and_buttons_follow(cluster, monkeypatch):
    def drawn(client, job):
        """Whether each button of a job is enabled, on a page that was read just now."""
        reader = Reader(lambda: client)
        asyncio.run(_read_once(reader))
        frame = SimpleNamespace(reader=reader, may=lambda action: action in reader.may)
        buttons = {verb: _Button() for verb in steering.VERBS}
        steering.draw_steering(frame, buttons, job["id"], job)
        return {verb: not each._props["disabled"] for verb, each in buttons.items()}

    with Client(folder=cluster.folder) as client:
        job = client.submit(JOB)
        assert drawn(client, job) == {"Suspend": True, "Resume": False, "Cancel": True}
        assert client.may() == set(roles.ACTIONS)
        monkeypatch.setattr(roles, "allowed", lambda: frozenset({"read", "suspend"}))
        with pytest.raises(NotAllowedError, match="does not allow you to cancel"):
            client.cancel(job["id"])
        with pytest.raises(NotAllowedError, match="to submit"):
            client.submit(JOB)
        assert client.may() == {"read", "suspend"}
        assert drawn(client, job) == {"Suspend": True, "Resume": False, "Cancel": False}
        assert client.suspend(job["id"])["changed"]


class _Button:
    def __init__(self):
        self._props = {}

    def update(self):
        pass


async def _read_once(reader):
    reader._merge(await reader.call(_reads), NONE_DUE)


def _reads(client):
    told = {"ahead_s": 0.0, "nodes": [], "awaited": [], "may": client.may()}
    return told | {"jobs": Found([], None)}
