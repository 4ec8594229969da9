"""`rota ps --watch`: a new list once something has happened."""

import asyncio
from functools import partial

import pytest

from rota.cli import looking, watching
from rota.cli.watching import Watch
from rota.client.client import Client
from rota.folder import Folder
from rota.model.events import NodeOpened
from support.served import NODE, controller_without_agents, served


async def _made(folder):
    return controller_without_agents(folder)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "home").create()
    monkeypatch.setenv("ROTA_HOME", str(folder.path))
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with served(folder, asyncio.run(_made(folder))) as it:
        yield it


def happen(cluster):
    cluster.do(partial(cluster.controller.journal.write_first, NodeOpened(1.0, NODE, "ann")))


def test_what_happened_after_the_list_ends_the_wait_and_so_does_an_outage(cluster):
    with Client(folder=cluster.folder) as client:
        client.jobs()
        happen(cluster)
        watch = Watch(client, client.cursor, 0.0)
        assert watch.wait() is None
        happen(cluster)
        assert watch.wait() is None
        cluster.stop()
        while (why := watch.wait()) is None:
            pass
        assert why


def test_the_list_is_printed_again_once_something_has_happened(cluster, rota, monkeypatch):
    monkeypatch.setattr(looking, "WATCH_S", 0.0)
    waits = []

    class Once(watching.Watch):
        def wait(self):
            waits.append(None)
            if len(waits) == 2:
                raise KeyboardInterrupt
            with Client(folder=cluster.folder) as client:
                client.submit({"run": "true", "workdir": "/tmp", "name": "late"})
            return super().wait()

    monkeypatch.setattr(looking, "Watch", Once)
    code, out, _ = rota("ps", "--watch")
    assert code == 130
    before, late, after = out.partition("late")
    assert late
    assert before.count("GPUs in use") == 2
    assert "GPUs in use" not in after
