"""The gate of a background rank, on a clock of its own, and on the hooks of a real model."""

import torch

from rota.share.controllers import LEAST_PIECE_S, SlowdownFeedback, Totals, Verdict
from rota.share.gate import Gate
from rota.share.marks import FORWARD, LOAD, NOBODY, Seen
from rota.share.page import FillWriter, MarkWriter, read_fill
from rota.share.slowdown import Slowdown

SLOWDOWN = Slowdown(1.04, 1.02, 1.06, 9)


class Scripted:
    """A controller that says what it is told, and notes what it hears."""

    def __init__(self, *says):
        self.says, self.heard = list(says), []

    def ask(self, seen, now_s, piece=0):
        self.heard.append(("ask", piece))
        return self.says.pop(0) if self.says else Verdict(True)

    def began(self, now_s, piece=0):
        self.heard.append(("began", piece))

    def ended(self, now_s, busy_s=None):
        self.heard.append(("ended", busy_s))

    def totals(self):
        return Totals(3, 7, 0.25, SLOWDOWN)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def gate_of(controller, awaited=lambda _: False, **more):
    clock = Clock()
    return Gate(
        controller, lambda _: NOBODY, awaited, clock=clock, busy_clock=lambda: 7.0, **more
    ), clock


def test_a_piece_ends_where_the_next_one_begins():
    controller = Scripted()
    gate, clock = gate_of(controller)
    gate.ask(1)
    clock.now_s += 0.01
    gate.ask(2)
    clock.now_s += 0.01
    gate.leave()
    gate.leave()
    begins = [("ask", 1), ("began", 1), ("ended", 0.0), ("ask", 2), ("began", 2), ("ended", 0.0)]
    assert controller.heard == begins


def test_a_piece_that_has_just_begun_goes_on():
    controller = Scripted()
    gate, clock = gate_of(controller)
    for number in range(10):
        gate.ask(number)
        clock.now_s += LEAST_PIECE_S / 3.9
    assert [what for what in controller.heard if what[0] == "began"] == [
        ("began", 0),
        ("began", 4),
        ("began", 8),
    ]


def test_it_waits_for_as_long_as_the_controller_says():
    waits = []
    no = [Verdict(False, 0.001), Verdict(False, 0.02)]
    gate, _ = gate_of(Scripted(*no), lambda wait_s: bool(waits.append(wait_s)))
    gate.ask(0)
    assert waits == [0.001, 0.02]


def test_a_suspension_that_is_asked_for_opens_it():
    controller = Scripted(*[Verdict(False, 0.02)] * 1000)
    gate, _ = gate_of(controller, lambda _: True)
    gate.ask(0)
    assert controller.heard == [("ask", 0), ("began", 0)]


def test_an_open_gate_asks_nobody_until_it_is_shut():
    controller = Scripted(*[Verdict(False, 0.02)] * 1000)
    gate, clock = gate_of(controller, lambda _: controller.says.clear() or False)
    gate.open()
    gate.ask(0)
    assert ("ask", 0) not in controller.heard
    gate.shut()
    clock.now_s += 1
    gate.ask(1)
    assert ("ask", 1) in controller.heard


def test_launches_end_when_their_device_says_so():
    class Device:
        def __init__(self):
            self.count = self.done = 0

        def launched(self):
            self.count += 1

        def over(self):
            done, self.done = self.done, 0
            return done

    controller, device = Scripted(), Device()
    gate, clock = gate_of(controller)
    gate._launches = device
    gate.ask(0)
    clock.now_s += 1
    gate.ask(1)
    assert (device.count, ("ended", None) in controller.heard) == (1, False)
    device.done = 1
    clock.now_s += 1
    gate.ask(2)
    assert controller.heard.count(("ended", None)) == 1


def test_a_model_asks_before_each_layer_forward_and_backward_and_before_the_optimiser():
    controller = Scripted()
    gate, _ = gate_of(controller)
    clock_steps = iter(range(1000))

    class Ticking(Clock):
        def __call__(self):
            return 100.0 + next(clock_steps)

    gate._clock = Ticking()
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gate.watch(model, [optimizer], torch.device("cpu"))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    pieces = [piece for what, piece in controller.heard if what == "began"]
    assert pieces == [0, 2, 3, 1, 4]


def test_without_a_page_there_is_no_gate_and_no_hook(monkeypatch):
    gate = Gate.told(None, lambda _: False)
    model = torch.nn.Linear(2, 2)
    gate.watch(model, [], torch.device("cpu"))
    gate.ask(0)
    gate.leave()
    gate.close()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_it_follows_a_link_to_another_page(tmp_path):
    link, pages = tmp_path / "fills", [tmp_path / "one", tmp_path / "two"]
    for page, segment in zip(pages, (FORWARD, LOAD), strict=True):
        MarkWriter(str(page)).enter(segment)
    gate = Gate.told(str(link), lambda _: False)
    assert gate._read(0.0) == NOBODY
    link.symlink_to(pages[0])
    assert gate._read(1.0).mark.segment == FORWARD
    link.unlink()
    link.symlink_to(pages[1])
    assert gate._read(2.0).mark.segment == LOAD
    gate.close()


def test_what_it_tells_is_read_beside_the_page(tmp_path):
    path = tmp_path / "page"
    assert read_fill(path) is None
    gate, _ = gate_of(Scripted(), fills=FillWriter(str(path)))
    gate.ask(0)
    told = read_fill(path)
    assert told[2:] == (100.0, 3, 7, 0.25, SLOWDOWN)
    FillWriter(str(path)).write(101.0, 3, 7, 0.25, None)
    assert read_fill(path)[2:] == (101.0, 3, 7, 0.25, None)
    gate.close()
    file = tmp_path / "page.fill"
    *rest, last = file.read_bytes()
    file.write_bytes(bytes([*rest, last ^ 1]))
    assert read_fill(path) is None


def test_a_torn_page_is_no_reason_to_fail():
    controller = SlowdownFeedback()
    gate = Gate(controller, lambda _: Seen(torn=True), lambda _: True)
    for number in range(5):
        gate.ask(number)
    gate.leave()
    assert controller.totals().pieces >= 1
