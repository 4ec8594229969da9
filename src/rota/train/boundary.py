"""The boundary between two steps: where a rank reports, is suspended, or changes its gang."""

from __future__ import annotations

from rota.live.wire import COMPUTING, WAITING, clock
from rota.share.marks import IDLE, LOAD
from rota.train.link import Link
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.pulse import Pulse
from rota.train.reports import Reports
from rota.train.suspension_wait import SuspensionWait
from rota.train.training import Training
from rota.train.turns import Turns


class Boundary:
    """The boundaries of one session, which has no ``link`` if it runs without Rota.

    ``started`` is whether the first step has begun; ``turn`` is None without a link.
    """

    def __init__(
        self,
        link: Link | None,
        member: Member,
        training: Training,
        progress: Progress,
        reports: Reports,
        pulse: Pulse,
        turns: Turns,
    ) -> None:
        self._link = link
        self._member = member
        self._training = training
        self._progress = progress
        self._reports = reports
        self._pulse = pulse
        self._turns = turns
        self.turn = SuspensionWait(link, training, reports, progress) if link is not None else None
        self.started = False

    def start(self) -> None:
        """Before the first step: give all ranks the same state."""
        if not self.started:
            self.started = True
            if self._training.start() and self.turn is not None:
                self.turn.wait(clock.now_s())
            self._training.segments.page.enter(LOAD)

    def end_step(self) -> None:
        """A step is over: report, suspend or change the gang if asked to."""
        self._turns.end()
        due = self._training.end_step()
        self._training.checkpoint.again()
        if (cycle := self._training.handover.measure()) is not None:
            self._reports.memory(cycle._asdict())
        if self._link is not None and not self._member.rehearses:
            if due:
                self._reports.progress()
            if self._training.adaptation is not None:
                self._reports.tuned(self._training.adaptation.told())
            for message in self._link.poll():
                self._member.obey(message, self._progress.step)
            if self._member.must_hold(self._progress.step):
                self._training.segments.end_step(IDLE, self._training.cut)
                self._hold()
                self._training.segments.page.enter(LOAD)
                self._progress.begin_step()
                return
        self._training.segments.end_step(LOAD, self._training.cut)
        self._progress.begin_step()

    def _hold(self) -> None:
        """Suspend here, or change the gang, once all ranks hold at this step."""
        stopped_s = clock.now_s()
        self._pulse.enter(WAITING)
        what = self._member.agree(self._progress.step)
        if what == "offload":
            self._suspend(stopped_s)
        elif what == "vote":
            self._member.change()
        self._pulse.enter(COMPUTING)

    def _suspend(self, stopped_s: float) -> None:
        assert self.turn is not None
        self._reports.progress(must_arrive=True)
        self._turns.leave()
        self._training.offload()
        self.turn.wait(stopped_s)

    def join(self) -> None:
        """End the rehearsal: take over everything from the others."""
        self._training.join()
        self._training.segments.page.renew()
        self._reports.introduce()
        self._progress.begin_step()
