"""A file system that never answers holds up no question but those about its folders."""

import asyncio
import threading

import pytest

from rota.live.agent import entering
from rota.live.agent.entering import MOST_LOOKS, FolderLooks


@pytest.fixture
def hung(monkeypatch):
    """Looks below /dead wait until this is set; it has the paths that threads wait for."""
    gate, own = threading.Event(), entering.obstacle_to
    gate.waiting = []

    def look(path):
        if path.startswith("/dead"):
            gate.waiting.append(path)
            assert gate.wait(60)
            return ""
        return own(path)

    monkeypatch.setattr(entering, "obstacle_to", look)
    yield gate
    gate.set()


def test_a_dead_folder_takes_one_thread_however_often_it_is_asked_for(hung, tmp_path, monkeypatch):
    monkeypatch.setattr(entering, "ANSWER_S", 0.01)

    async def main():
        looks = FolderLooks()
        for _ in range(10):
            await looks.obstacles(["/dead/a"])
        assert hung.waiting == ["/dead/a"]
        monkeypatch.setattr(entering, "ANSWER_S", 60)
        found = await looks.obstacles([str(tmp_path), "/none"])
        assert found == {"/none": "there is no /none"}
        hung.set()
        assert await looks.obstacles(["/dead/a"]) == {}

    asyncio.run(main())


def test_many_dead_folders_take_no_more_threads_than_there_may_be(hung, monkeypatch):
    monkeypatch.setattr(entering, "ANSWER_S", 0.01)

    async def main():
        await FolderLooks().obstacles(f"/dead/{number}" for number in range(2 * MOST_LOOKS))

    before = threading.active_count()
    asyncio.run(main())  # it ends, though threads wait for ever
    assert threading.active_count() <= before + MOST_LOOKS
    assert not any(each.daemon is False for each in threading.enumerate() if "/dead" in each.name)


def test_who_never_answers_is_told_once(hung, monkeypatch, caplog):
    monkeypatch.setattr(entering, "ANSWER_S", 0.01)
    monkeypatch.setattr(entering, "DEAD_S", 0.0)

    async def main():
        looks = FolderLooks()
        while not (found := await looks.obstacles(["/dead/a"])):
            pass
        assert found == {"/dead/a": "the file system of /dead/a does not answer"}
        await looks.obstacles(["/dead/a"])

    asyncio.run(main())
    assert caplog.messages == ["/dead/a can't be looked at: its file system does not answer"]
