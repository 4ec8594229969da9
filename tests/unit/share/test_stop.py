"""When a tree runs and when it is stopped, without any process."""

from rota.share.controllers import SlowdownFeedback, Verdict
from rota.share.marks import FORWARD, NOBODY, Mark, Seen
from rota.share.stop import LONG_SLICE_S, SLICE_S, Duty

BUSY = Seen(Mark(7, 1.0, 0, 0, FORWARD, 99.9, (0.0,) * 8, (0.0,) * 8))


class Scripted(SlowdownFeedback):
    def __init__(self, *says):
        super().__init__()
        self.says, self.ends = list(says), []

    def ask(self, seen, now_s, piece=0):
        return self.says.pop(0)

    def ended(self, now_s, busy_s=None):
        self.ends.append(now_s)


def test_a_slice_runs_to_its_end_and_then_it_is_asked_again():
    controller = Scripted(Verdict(True), Verdict(False, 0.004, "no"), Verdict(True))
    duty = Duty([controller])
    assert duty.turn([BUSY], 100.0) == (True, SLICE_S, "")
    assert duty.turn([BUSY], 100.0 + SLICE_S / 2).runs
    assert duty.turn([BUSY], 100.0 + SLICE_S) == (False, 0.004, "no")
    assert not duty.runs
    assert duty.turn([BUSY], 101.0).runs
    assert controller.ends == [100.0 + SLICE_S]


def test_alone_a_slice_is_long_and_it_is_looked_often():
    duty = Duty([SlowdownFeedback()])
    assert duty.turn([NOBODY], 100.0) == (True, SLICE_S, "")
    move = duty.turn([NOBODY], 100.0 + LONG_SLICE_S / 2)
    assert move.runs
    assert duty.turn([NOBODY], 100.0 + LONG_SLICE_S).runs


def test_a_tree_stopped_for_another_reason_has_no_slice():
    controller = Scripted(Verdict(True), Verdict(False, 0.01))
    duty = Duty([controller])
    duty.turn([BUSY], 100.0)
    duty.pause(100.001)
    duty.pause(100.001)
    assert controller.ends == [100.001]
    assert not duty.turn([BUSY], 100.002).runs


def test_on_two_devices_a_slice_begins_when_both_have_a_gap_and_ends_on_both():
    first = Scripted(Verdict(True), Verdict(True), Verdict(False, 0.01))
    second = Scripted(Verdict(False, 0.004, "busy"), Verdict(True), Verdict(False, 0.02))
    duty, seen = Duty([first, second]), [NOBODY, BUSY]
    assert duty.turn(seen, 100.0) == (False, 0.004, "busy")
    assert duty.turn(seen, 100.1) == (True, SLICE_S, "")
    assert duty.turn(seen, 100.1 + SLICE_S) == (False, 0.02, "")
    assert first.ends == second.ends == [100.1 + SLICE_S]
