"""Beside whom background attempts are, when they are held in slices, and what is told of them."""

import os

import pytest

from rota.live.agent import filling
from rota.live.agent.filling import NO_STRAY_S, PATIENCE_S, TELL_EVERY_S, Filling
from rota.live.agent.states import State
from rota.share.marks import FORWARD, OTHER
from rota.share.page import FillWriter, MarkWriter, PageReader
from rota.share.slowdown import Slowdown
from rota.share.weight import Measured
from support.attempts import attempt_in


class Node:
    """Attempts that run in this very process, which has one session for each of ``sessions``."""

    def __init__(self, folder):
        self.folder, self.attempts, self.told = folder, [], []
        self.filling = Filling(
            lambda: self.attempts, self.told.append, [], cores_stand_for_gpus=True
        )
        self.throttled = set()

    def add(self, job, gpus=(0,), *, background=False, limit=1.1, session=True):
        folder = self.folder / str(job)
        folder.mkdir()
        ranks = list(range(len(gpus)))
        record = {
            "job_id": str(job),
            "attempt": 1,
            "slots": len(gpus),
            "members": ranks,
            "gpus": list(gpus),
            "max_world": 1,
            "movable": True,
            "visible": None,
            "suspension": "boundary",
            "program": {"processes": "gpu", "run": "true"},
            "background": background,
            "max_slowdown": limit,
        }
        attempt = attempt_in(folder, record, self.told.append)
        for rank in attempt.ranks:
            rank.shim = rank.worker = os.getpid()
            rank.writer = object() if session else None
        attempt.become(State.RUNNING)
        self.attempts.append(attempt)
        return attempt

    def look(self, now_s):
        self.filling.look(now_s)
        return [message for message in self.told if message["type"] == "filling"]


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path)
    monkeypatch.setattr(filling.Weight, "lower", lambda *_: None)
    monkeypatch.setattr(
        filling.Hold, "throttle", lambda hold: made.throttled.add(hold._attempt.job_id)
    )
    return made


def page_of(attempt):
    target = attempt.folder / "fills"
    return target.resolve() if os.path.lexists(target) else None


def mark_of(attempt):
    return PageReader(attempt.folder / "fills").read(0.0).mark


def test_the_page_of_the_process_on_its_gpu_is_followed_and_none_where_there_is_none(node):
    one, gang = node.add(1, [0], limit=1.3), node.add(2, [2, 1])
    background = [node.add(3 + gpu, [gpu], background=True) for gpu in range(4)]
    node.look(0.0)
    assert [page_of(each) for each in background] == [
        one.folder / "rank0.marks",
        gang.folder / "rank1.marks",
        gang.folder / "rank0.marks",
        None,
    ]
    assert (mark_of(background[0]).segment, mark_of(background[0]).limit) == (OTHER, 1.3)
    writer = MarkWriter(str(one.folder / "rank0.marks"))
    writer.enter(FORWARD)
    node.look(1.0)
    assert mark_of(background[0]).segment == FORWARD  # what a session writes stays
    one.become(State.SUSPENDING)
    gang.record.gpus = [0, 1]  # it is elsewhere by now
    node.look(2.0)
    assert page_of(background[2]) is None
    assert page_of(background[0]).name == "several.marks"
    one.become(State.SUSPENDED)
    node.look(3.0)
    assert page_of(background[0]) == gang.folder / "rank0.marks"


def test_beside_several_nothing_is_known_and_the_strictest_limit_holds(node):
    node.add(1, limit=1.3)
    node.add(2, limit=1.05)
    background = node.add(3, background=True)
    node.look(0.0)
    assert page_of(background) == background.folder / "several.marks"
    assert (mark_of(background).segment, mark_of(background).limit) == (OTHER, 1.05)


def test_a_background_attempt_is_not_beside_another_one(node):
    backgrounds = [node.add(job, background=True) for job in (1, 2)]
    node.look(0.0)
    assert [page_of(each) for each in backgrounds] == [None, None]


def test_without_a_session_it_runs_in_slices_beside_somebody(node):
    node.add(1, background=True, session=False)
    node.look(0.0)
    assert not node.throttled
    node.add(2)
    node.look(1.0)
    assert node.throttled == {"1"}


def test_with_a_session_it_does_while_it_computes_beside_its_pieces(node, monkeypatch):
    node.add(1)
    background = node.add(2, background=True)
    fill = FillWriter(str(background.folder / "fills"))
    cpu_s = pieces_s = 5.0
    monkeypatch.setattr(filling, "cpu_seconds", lambda _: cpu_s)

    def second(now_s, cpu, piece):
        nonlocal cpu_s, pieces_s
        cpu_s, pieces_s = cpu_s + cpu, pieces_s + piece
        fill.write(now_s, 0, 1, pieces_s, None)
        node.throttled.clear()
        node.look(now_s)
        return bool(node.throttled)

    assert not second(0.0, 0.0, 0.0)
    assert not second(1.0, 0.59, 0.5)
    assert second(2.0, 0.61, 0.5)
    assert second(3.0, 0.03, 0.0)
    assert second(2.9 + NO_STRAY_S, 0.01, 0.0)
    assert not second(3.1 + NO_STRAY_S, 0.05, 0.05)


def test_the_harvest_since_the_last_report_is_told_with_the_slowdown_of_late(node):
    node.add(1)
    background = node.add(2, background=True)
    fill = FillWriter(str(background.folder / "fills"))
    fill.write(0.0, 100, 9, 30.0, Slowdown(1.3, 1.2, 1.4, 6))
    assert node.look(0.0) == []
    fill.write(4.0, 115, 9, 31.0, Slowdown(1.3, 1.2, 1.4, 6))
    assert node.look(TELL_EVERY_S) == []  # too few steps
    fill.write(5.0, 120, 9, 32.0, Slowdown(1.1, 1.08, 1.12, 9))
    (told,) = node.look(10.0)
    assert (told["job_id"], told["attempt"], told["beside"]) == ("2", 1, "1")
    assert told["harvest"] == pytest.approx(0.2)
    assert [told[name] for name in ("slowdown", "low", "high", "pairs")] == [1.1, 1.08, 1.12, 9]
    assert len(node.look(10.0 + PATIENCE_S - 1)) == 1
    told = node.look(10.0 + PATIENCE_S)[-1]  # no step at all, and what was told is old
    assert (told.get("slowdown"), told["harvest"]) == (None, 0.0)


def test_a_slowdown_of_which_too_little_is_known_is_not_told(node):
    node.add(1)
    background = node.add(2, background=True)
    fill = FillWriter(str(background.folder / "fills"))
    fill.write(0.0, 0, 0, 0.0, None)
    node.look(0.0)
    fill.write(5.0, 100, 9, 1.0, None)
    (told,) = node.look(TELL_EVERY_S)
    assert (told["beside"], told["harvest"]) == ("1", pytest.approx(0.2))
    assert "slowdown" not in told


def test_each_process_of_a_gang_follows_the_page_of_its_gpu(node):
    gang, one = node.add(1, [1, 0], limit=1.3), node.add(2, [2])
    background = node.add(3, [0, 2, 3], background=True)
    node.look(0.0)
    links = [background.folder / name for name in ("fills", "fills1", "fills2")]
    pages = [gang.folder / "rank1.marks", one.folder / "rank0.marks"]
    assert [link.resolve() for link in links[:2]] == pages
    assert not os.path.lexists(links[2])
    assert not node.throttled
    one.become(State.SUSPENDED)
    node.look(1.0)
    assert [os.path.lexists(link) for link in links] == [True, False, False]


def test_one_process_with_several_gpus_runs_in_slices_beside_anybody(node):
    node.add(1, [1])
    background = node.add(2, [0, 1], background=True)
    background.record.members = [0]
    node.look(0.0)
    assert node.throttled == {"2"}


def test_of_a_gang_is_told_what_is_worst_on_any_of_its_gpus(node):
    node.add(1, [0], limit=2.0)
    node.add(2, [1], limit=1.1)
    background = node.add(3, [0, 1, 2], background=True)
    fills = [FillWriter(str(background.folder / name)) for name in ("fills", "fills1", "fills2")]
    for fill in fills:
        fill.write(0.0, 0, 0, 0.0, None)
    assert node.look(0.0) == []
    fills[0].write(5.0, 100, 9, 1.0, Slowdown(1.5, 1.3, 1.7, 9))
    fills[1].write(5.0, 10, 9, 2.0, Slowdown(1.2, 1.15, 1.25, 9))
    fills[2].write(5.0, 0, 9, 4.0, None)
    assert node.look(5.0) == []  # too few steps of the second one
    fills[1].write(10.0, 20, 9, 2.0, Slowdown(1.2, 1.15, 1.25, 9))
    (told,) = node.look(10.0)
    assert (told["beside"], told["slowdown"], told["low"]) == ("2", 1.2, 1.15)
    assert told["harvest"] == pytest.approx(0.1)
    fills[0].write(15.0, 200, 9, 1.0, Slowdown(1.9, 1.7, 2.1, 9))
    fills[1].write(15.0, 40, 9, 2.0, Slowdown(1.05, 1.02, 1.08, 9))
    told = node.look(15.0)[-1]  # which of them may be beyond its limit, if none is for certain
    assert (told["beside"], told["slowdown"]) == ("1", 1.9)


def test_alone_it_has_all_of_its_gpu(node):
    node.add(2, background=True)
    node.look(0.0)
    (told,) = node.look(TELL_EVERY_S)
    assert (told["beside"], told["harvest"]) == (None, 1.0)


def test_a_link_that_can_not_be_made_leaves_slices(node):
    node.add(1)
    background = node.add(2, background=True)
    (background.folder / "fills").mkdir()
    (background.folder / "fills" / "full").touch()
    node.look(0.0)
    assert node.throttled == {"2"}


class Way:
    def __init__(self, name, ratio):
        self.name, self.ratio = name, ratio


def test_the_first_way_that_was_seen_to_work_is_used(monkeypatch, caplog):
    ways = [Way("a", 1.0), Way("b", None), Way("c", 0.1), Way("d", 0.0)]
    monkeypatch.setattr(
        filling, "measure", lambda way: Measured(way.name, way.ratio, "" if way.ratio else "no")
    )
    with caplog.at_level("INFO", "rota.agent"):
        assert filling._first_that_works(ways) is ways[2]
        assert filling._first_that_works(ways[:2]) is None
    assert "by c: 0.10 s" in caplog.text
    assert "do not give way on the CPU: a: 1.00 s; b: no" in caplog.text
