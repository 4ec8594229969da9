"""Hooks and what each is to be sent, in the file of the event log."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.model.events import Event
from rota.store.events import EventStore

WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given_up"
STATES = (WAITING, DELIVERED, GIVEN_UP)
FAILED = "failed"  # a try that is repeated
TRIED = (DELIVERED, FAILED, GIVEN_UP)
PAGE = 500  # events looked at in one go
KEPT = 1000  # deliveries of a hook that are over


class Hook(NamedTuple):
    """Whoever is told of events: a webhook or a command, registered by ``user`` at ``at_s``.

    ``target`` is the webhook's URL, or the command's name. ``on`` are the news that it is told of
    whatever they are about; those of jobs that name it come on top. All events up to number
    ``cursor`` that it is to be told of are among its deliveries.
    """

    name: str
    kind: str
    target: str
    on: tuple[str, ...]
    private: bool  # the URL may lead to a loopback, private or link-local address
    secret: str  # that signs what a webhook is sent
    user: str
    at_s: float
    cursor: int = 0


class Item(NamedTuple):
    """An event, by its number, that a hook is to be told of; ``body`` is what it is sent."""

    seq: int
    word: str
    job_id: str | None
    body: str
    at_s: float


class Delivery(NamedTuple):
    """An Item on its way to a hook, tried ``tries`` times; ``answer`` is how the last try ended.

    One that is WAITING is tried at ``next_at_s``; else that is when it was over.
    """

    id: int
    hook: str
    seq: int
    word: str
    job_id: str | None
    body: str
    at_s: float
    state: str
    tries: int
    next_at_s: float
    answer: str


class Counts(NamedTuple):
    """Numbers of a hook's deliveries, and the answer to its last failed try, if one is known."""

    waiting: int
    delivered: int
    given_up: int
    error: str


class Deliveries:
    """The hooks, and a delivery for each event that one is to be told of.

    Usable from several threads. Every failure is a StoreError.
    """

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.tries: Counter[str] = Counter()  # of this process, by their results: TRIED

    # -- hooks ---------------------------------------------------------------------------------

    def hooks(self) -> list[Hook]:
        """The hooks, by name."""
        rows = self.store.read(
            "SELECT name, kind, target, news, private, secret, user, at_s, cursor FROM hook "
            "ORDER BY name"
        )
        return [
            Hook(name, kind, target, tuple(news.split()), bool(private), *rest)
            for name, kind, target, news, private, *rest in rows
        ]

    def add(self, hook: Hook) -> None:
        """Keep a hook, which is told of what happens from now on. StoreError if the name is taken.

        It is on disk when this returns.
        """
        values = hook._asdict() | {"on": " ".join(hook.on), "cursor": self.last()}
        with self.store.transaction(durable=True) as driver:
            driver.execute(
                "INSERT INTO hook (name, kind, target, news, private, secret, user, at_s, cursor) "
                "VALUES (:name, :kind, :target, :on, :private, :secret, :user, :at_s, :cursor)",
                values,
            )

    def remove(self, name: str) -> None:
        """Forget a hook and all of its deliveries."""
        with self.store.transaction(durable=True) as driver:
            driver.execute("DELETE FROM hook WHERE name = ?", (name,))
            driver.execute("DELETE FROM delivery WHERE hook = ?", (name,))

    # -- the log -------------------------------------------------------------------------------

    def last(self) -> int:
        """The number of the last event, 0 if there is none."""
        ((last,),) = self.store.read("SELECT max(seq) FROM event")
        return last or 0

    def news(self, after: int, kinds: Sequence[type[Event]]) -> tuple[list[tuple[int, Event]], int]:
        """The events of these kinds with numbers above ``after``, and up to which was looked.

        Looks at PAGE events at most.
        """
        until = min(after + PAGE, self.last())
        names = {kind.__name__ for kind in kinds}
        records = self.store.records(after, until, PAGE)
        wanted = [record for record in records if record[1] in names]
        return [(record[0], self.store.event(*record)) for record in wanted], until

    # -- deliveries ----------------------------------------------------------------------------

    def take(self, hook: str, items: Sequence[Item], cursor: int) -> None:
        """Keep deliveries of events up to number ``cursor``, all or none; known ones stay."""
        rows = [(hook, *item, WAITING, 0, item.at_s, "") for item in items]  # due at once
        with self.store.transaction(durable=False) as driver:
            driver.executemany(
                "INSERT OR IGNORE INTO delivery (hook, seq, word, job_id, body, at_s, state, "
                "tries, next_at_s, answer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            driver.execute("UPDATE hook SET cursor = ? WHERE name = ?", (cursor, hook))
            driver.execute(
                "DELETE FROM delivery WHERE hook = ? AND state != ? AND id <= "
                "(SELECT id FROM delivery WHERE hook = ? AND state != ? "
                "ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (hook, WAITING, hook, WAITING, KEPT),
            )

    def next(self, hook: str) -> Delivery | None:
        """The waiting delivery of a hook that is due first; None if none waits."""
        found = self.store.read(
            "SELECT id, hook, seq, word, job_id, body, at_s, state, tries, next_at_s, answer "
            "FROM delivery WHERE hook = ? AND state = ? ORDER BY next_at_s, seq LIMIT 1",
            *(hook, WAITING),
        )
        return Delivery(*found[0]) if found else None

    def note(self, delivery: Delivery) -> None:
        """Write down how a delivery stands now, unless its hook was removed."""
        told = (delivery.state, delivery.tries, delivery.next_at_s, delivery.answer, delivery.id)
        with self.store.transaction(durable=False) as driver:
            driver.execute(
                "UPDATE delivery SET state = ?, tries = ?, next_at_s = ?, answer = ? WHERE id = ?",
                told,
            )

    def num_waiting(self, hook: str) -> int:
        """Number of a hook's deliveries that wait."""
        ((number,),) = self.store.read(
            "SELECT count(*) FROM delivery WHERE hook = ? AND state = ?", hook, WAITING
        )
        return int(number)

    def counts(self, hook: str) -> Counts:
        """How many of a hook's deliveries stand how."""
        rows = self.store.read(
            "SELECT state, count(*) FROM delivery WHERE hook = ? GROUP BY state", hook
        )
        failed = self.store.read(
            "SELECT answer FROM delivery WHERE hook = ? AND state != ? AND tries > 0 "
            "ORDER BY tries DESC, id DESC LIMIT 1",
            *(hook, DELIVERED),
        )
        known = dict.fromkeys(STATES, 0) | dict(rows)
        return Counts(**known, error=failed[0][0] if failed else "")

    def list(self, hook: str | None, state: str | None, most: int) -> list[Delivery]:
        """The newest deliveries, of one hook and in one state if given, the newest last."""
        rows: list[Any] = self.store.read(
            "SELECT id, hook, seq, word, job_id, body, at_s, state, tries, next_at_s, answer "
            "FROM delivery WHERE (?1 IS NULL OR hook = ?1) AND (?2 IS NULL OR state = ?2) "
            "ORDER BY id DESC LIMIT ?3",
            *(hook, state, most),
        )
        return [Delivery(*row) for row in reversed(rows)]
