"""What a cluster keeps of the nodes that it has asked an engine for, whatever the engine is."""

from types import SimpleNamespace

import pytest

from rota.live.provider.asked import LATE_S, Asked
from rota.live.provider.book import Book


@pytest.fixture
def lab(tmp_path):
    times = SimpleNamespace(now_s=1e9)
    door = SimpleNamespace(is_connected=lambda name: False)
    asked = Asked(tmp_path / "asked.json", "lab", lambda: times.now_s)
    return SimpleNamespace(times=times, asked=asked, book=Book("Lab", asked, (1, 4), door))


def test_what_was_asked_for_in_vain_while_the_disk_is_full_is_asked_for_once_it_has_room(
    lab, tmp_path
):
    lab.book.scale(2, lambda name: False)
    lab.asked.ask(["lab-1", "lab-2"])
    lab.book.recall()
    draft = tmp_path / "asked.json.new"
    draft.mkdir()  # nothing can be written
    lab.book.note_unheard(["lab-1"])
    assert lab.book.to_ask() == []
    draft.rmdir()
    lab.book.note_unheard(["lab-1"])
    assert (lab.book.to_ask(), lab.book.unheard) == (["lab-2"], set())


def test_a_node_of_which_the_engine_tells_only_after_all_were_given_up_is_given_up_too(lab):
    lab.book.scale(1, lambda name: False)
    lab.asked.ask(["lab-1"])
    lab.book.release_all()
    lab.times.now_s += LATE_S + 1
    assert lab.book.settle([]) == {"lab-1"}
    lab.book.settle(["lab-1"])
    assert lab.book.due() == ["lab-1"]


def test_the_minute_of_a_node_that_is_given_up_begins_after_its_last_job(tmp_path):
    now_s, busy = [0.0], {"lab-1"}
    door = SimpleNamespace(is_connected=lambda name: True, has_jobs=busy.__contains__)
    asked = Asked(tmp_path / "asked.json", "lab", lambda: 1e9)
    book = Book("Lab", asked, (1, 4), door, clock=lambda: now_s[0])
    book.scale(1, lambda name: False)
    asked.ask(["lab-1"])
    book.release_all()
    for now_s[0] in (0.0, 61.0, 3600.0):
        assert book.due() == []
    busy.clear()
    now_s[0] = 3659.0
    assert book.due() == []
    now_s[0] = 3660.0
    assert book.due() == ["lab-1"]
