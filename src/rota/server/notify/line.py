"""The line of one hook: from the event log to its deliveries, one try at a time."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from rota.model.events import Event
from rota.model.news import TOLD, row_of
from rota.model.state.state import ClusterState
from rota.server.notify.message import item_for
from rota.server.notify.outcome import Outcome
from rota.store.deliveries import (
    DELIVERED,
    FAILED,
    GIVEN_UP,
    PAGE,
    WAITING,
    Deliveries,
    Delivery,
    Hook,
    Item,
)

FIRST_PAUSE_S = 10.0  # before the second try of a delivery; each further one is twice as long
LONGEST_PAUSE_S = 3600.0
JITTER = 0.2  # a pause is longer or shorter by so much of it, at most
REST_S = 10.0  # after a try that failed nothing is sent to its hook for so long
GIVEN_UP_S = 24 * 3600.0  # from the event on
MOST_WAITING = 1000  # what comes after them stays in the log until one of them is over

Send = Callable[[Hook, str], Coroutine[Any, Any, Outcome]]

log = logging.getLogger("rota.server")


class Line:
    """Delivers to one hook, in the order of events as far as tries succeed.

    At most one try is under way. What is to be delivered follows from the log: an event that the
    log has is delivered at least once, whenever this process is killed, or given up and told so.
    """

    def __init__(
        self,
        hook: Hook,
        deliveries: Deliveries,
        state: ClusterState,
        now_s: Callable[[], float],
        send: Send,
    ) -> None:
        self._hook, self._deliveries, self._state = hook, deliveries, state
        self._now_s, self._send = now_s, send
        self._seen = self._kept = hook.cursor
        self._rests_until_s = 0.0
        self._unnoted: Delivery | None = None  # how a try has ended, until that is written down
        self.news = asyncio.Event()  # set when there may be something to do

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            self.news.clear()
            try:
                wait_s = await self.turn()
            except Exception:  # whatever is wrong with one hook, it is tried again
                log.exception("hook %s can't be served now", self._hook.name)
                wait_s = REST_S
            try:
                async with asyncio.timeout(wait_s):
                    await self.news.wait()
            except TimeoutError:
                continue

    async def turn(self) -> float | None:
        """Do what is due. Returns seconds until something else is; None if nothing waits."""
        self._write_down()
        while self._look():
            await asyncio.sleep(0)  # other hooks go on meanwhile
        delivery = self._deliveries.next(self._hook.name)
        if delivery is None:
            return None
        now_s = self._now_s()
        due_s = max(delivery.next_at_s, self._rests_until_s)
        if due_s > now_s:
            return due_s - now_s
        self._unnoted = self._after(delivery, await self._send(self._hook, delivery.body))
        self._write_down()
        return 0.0

    def _look(self) -> bool:
        """Make deliveries of a part of the log; False once all of it, or enough, was looked at."""
        if self._deliveries.num_waiting(self._hook.name) >= MOST_WAITING:
            return False
        events, until = self._deliveries.news(self._seen, TOLD)
        if until <= self._seen:
            return False
        items = [item for seq, event in events if (item := self._item(seq, event)) is not None]
        if items or until - self._kept >= PAGE:
            self._deliveries.take(self._hook.name, items, until)
            self._kept = until
        self._seen = until
        return True

    def _item(self, seq: int, event: Event) -> Item | None:
        row = row_of(event)
        spec = None if row is None else self._state.spec[row]
        return item_for(self._hook, seq, event, spec, self._deliveries.store.identity)

    def _write_down(self) -> None:
        if self._unnoted is not None:
            self._deliveries.note(self._unnoted)
            self._unnoted = None

    def _after(self, delivery: Delivery, outcome: Outcome) -> Delivery:
        """The delivery as a try leaves it."""
        now_s, tries = self._now_s(), delivery.tries + 1
        state, next_at_s = DELIVERED, now_s
        if not outcome.arrived:
            self._rests_until_s = now_s + REST_S
            state, next_at_s = WAITING, now_s + pause_s(tries)
            if next_at_s > delivery.at_s + GIVEN_UP_S:
                state, next_at_s = GIVEN_UP, now_s
                about = delivery.word + ("" if delivery.job_id is None else f" {delivery.job_id}")
                text = "hook %s was not told of event %d (%s) in %d tries, the last of which: %s"
                log.warning(text, self._hook.name, delivery.seq, about, tries, outcome.answer)
        self._deliveries.tries[FAILED if state == WAITING else state] += 1
        told = delivery._replace(state=state, tries=tries, next_at_s=next_at_s)
        return told._replace(answer=outcome.answer)


def pause_s(tries: int) -> float:
    """The pause after so many tries that failed, 1 or more, with chance in it."""
    mean_s = min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 30), LONGEST_PAUSE_S)
    return mean_s * random.uniform(1 - JITTER, 1 + JITTER)
