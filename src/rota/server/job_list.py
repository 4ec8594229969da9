"""Lists of jobs: chosen by state, queue, user, tag, name, search or id, page by page.

A long list is made piece by piece, so that the controller can decide meanwhile.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import Query

from rota.errors import InputError, did_you_mean
from rota.live.controller.job_index import JobIndex, Label, labels_of, walk
from rota.model.job import JobSpec, JobState
from rota.server import jobs
from rota.server.queue_order import QueueOrder

SLICE_S = 0.001  # of the controller's time, taken at once
MOST_AT_ONCE = 10_000  # jobs of a page
MOST_IDS = 500  # that a list is chosen by
MAX_WORDS = 200  # characters of a filter


class JobQuery(NamedTuple):
    """The jobs that a list is to have; None stands for any."""

    states: set[JobState] | None
    everything: bool
    labels: tuple[Label, ...]
    ids: tuple[str, ...] | None
    limit: int | None
    after: int | None  # the row of the last job of the page before
    newest_first: bool
    fields: tuple[str, ...] | None

    def takes(self, spec: JobSpec) -> bool:
        """True if a job is of the queue, user, tag, name and search that are asked for."""
        if not self.labels:
            return True
        told = labels_of(spec)
        return all(label in told for label in self.labels)


_Text = Annotated[str | None, Query(max_length=MAX_WORDS)]


async def job_query(
    state: _Text = None,
    all_: Annotated[bool, Query(alias="all")] = False,
    queue: _Text = None,
    user: _Text = None,
    tag: _Text = None,
    name: _Text = None,
    sweep: _Text = None,
    id_: Annotated[str | None, Query(alias="id", max_length=20 * MOST_IDS)] = None,
    limit: Annotated[int | None, Query(ge=1, le=MOST_AT_ONCE)] = None,
    cursor: Annotated[int | None, Query(ge=0, le=1 << 60)] = None,
    newest: bool = False,
    fields: Annotated[str | None, Query(max_length=2000)] = None,
) -> JobQuery:
    """The query of a call's parameters. Raises InputError."""
    asked = {"queue": queue, "user": user, "tag": tag, "name": name, "sweep": sweep}
    return JobQuery(
        jobs.parse_states(state),
        all_,
        tuple((key, value) for key, value in asked.items() if value is not None),
        _parse_ids(id_),
        *(limit, cursor, newest, _parse_fields(fields)),
    )


async def job_page(controller: Any, query: JobQuery, order: QueueOrder) -> dict[str, Any]:
    """The jobs, and the ``cursor`` of the next page, None if this one is the last."""
    state, told, last, next_row = controller.state, list[dict[str, Any]](), None, None
    positions = await order.positions()
    began_s = time.monotonic()
    for row in _rows(controller, query):
        if last is not None and (row < last) != query.newest_first:
            continue  # another job ended meanwhile, and rows have moved in their list
        last = row
        if query.takes(state.spec[row]):
            if query.limit is not None and len(told) == query.limit:
                return {"jobs": told, "cursor": str(next_row)}
            summary = jobs.summary(controller, row, positions)
            if query.fields is not None:
                summary = {name: summary[name] for name in query.fields}
            told.append(summary)
            next_row = row
        if time.monotonic() - began_s > SLICE_S:
            await asyncio.sleep(0)
            began_s = time.monotonic()
    return {"jobs": told, "cursor": None}


def _rows(controller: Any, query: JobQuery) -> Iterator[int]:
    index: JobIndex = controller.record.index
    order = {"newest_first": query.newest_first}
    if query.ids is not None:
        known = controller.record.rows
        rows = sorted({known[each] for each in query.ids if each in known})
        state = controller.state.state
        fits = [row for row in rows if query.states is None or state[row] in query.states]
        return walk(fits, query.after, **order)
    if query.states is not None or query.everything:
        return index.walk(query.states, query.labels, query.after, **order)
    lately = index.lately(controller.now_s() - jobs.RECENT_S)
    return walk(sorted([*index.going(), *lately]), query.after, **order)


def _parse_ids(text: str | None) -> tuple[str, ...] | None:
    ids = None if text is None else tuple(word.strip() for word in text.split(","))
    if ids is not None and len(ids) > MOST_IDS:
        raise InputError(f"id: {len(ids)} are too many at once; ask for {MOST_IDS} or fewer")
    return ids


def _parse_fields(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in jobs.SUMMARY_FIELDS:
            hint = did_you_mean(name, jobs.SUMMARY_FIELDS)
            raise InputError(
                f"fields: a job has no {name!r:.80}{hint}; it has {', '.join(jobs.SUMMARY_FIELDS)}"
            )
    return names
