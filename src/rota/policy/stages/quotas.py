"""Quotas: GPUs that each queue (virtual cluster) may count on, and may lend while it idles."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rota.model.view import View

OTHERS = "*"  # in a quota: every queue that is not named


class Quotas(NamedTuple):
    """GPUs by queue; ``equal`` splits the cluster evenly over the queues that have active jobs.

    A queue that is not named has what ``*`` has, or nothing. With ``borrow`` jobs beyond their
    queue's quota run on what the jobs within theirs leave; without it they wait.
    """

    gpus: tuple[tuple[str, int], ...] = ()
    equal: bool = False
    borrow: bool = True

    def split(
        self, view: View, order: Sequence[int], kept: Collection[int], *, in_line: bool
    ) -> tuple[list[int], list[int]]:
        """The rows of ``order`` within their queue's quota, and those beyond it, each in order.

        Rows of ``kept`` count first, for they hold their GPUs whatever comes. ``in_line``: in each
        queue nobody passes one that is beyond the quota.
        """
        left = self._left(view, kept)
        spec, num_gpus = view.spec, view.num_gpus
        others = dict(self.gpus).get(OTHERS, 0)
        within: list[int] = []
        beyond: list[int] = []
        closed: set[str] = set()
        for row in order:
            queue = spec[row].vc
            if row in kept or num_gpus[row] > view.total_gpus:  # the job uses no quota
                within.append(row)
            elif queue not in closed and num_gpus[row] <= left.setdefault(queue, others):
                left[queue] -= num_gpus[row]
                within.append(row)
            else:
                beyond.append(row)
                if in_line:
                    closed.add(queue)
        return within, beyond

    def of(self, view: View, queue: str) -> int:
        """GPUs of a queue's quota, used or not; 0 for a queue that has none."""
        named = self._by_queue(view)
        return named.get(queue, named.get(OTHERS, 0))

    def queues(self) -> tuple[str, ...]:
        """The queues that are named, if no other has a quota; else none."""
        names = tuple(name for name, _ in self.gpus)
        return () if OTHERS in names else names

    def _by_queue(self, view: View) -> dict[str, int]:
        if not self.equal:
            return dict(self.gpus)
        queues = sorted({view.spec[row].vc for row in view.active})
        each, over = divmod(view.total_gpus, len(queues) or 1)
        return {queue: each + (i < over) for i, queue in enumerate(queues)}

    def _left(self, view: View, kept: Collection[int]) -> dict[str, int]:
        spec, named = view.spec, self._by_queue(view)
        others = named.pop(OTHERS, 0)
        for row in kept:
            queue = spec[row].vc
            named[queue] = named.get(queue, others) - view.num_gpus[row]
        return named


def parse_quotas(text: str) -> Quotas | None:
    """``no``, ``equal``, or GPUs by queue such as ``vision=8;nlp=4;*=2``. Raises ValueError."""
    if text in ("no", ""):
        return None
    if text == "equal":
        return Quotas(equal=True)
    gpus: dict[str, int] = {}
    for part in text.split(";"):
        queue, equals, count = part.rpartition("=")
        queue = queue.strip()
        if not equals or not (count.strip().isascii() and count.strip().isdigit()):
            raise ValueError(f"{part!r} is not QUEUE=GPUS; write for example vision=8;nlp=4")
        if len(count.strip()) > 7 or queue in gpus:
            raise ValueError(f"{part!r} names a queue twice, or too many GPUs")
        gpus[queue] = int(count)
    return Quotas(tuple(gpus.items()))
