"""The message that a hook is sent: JSON that begins with an id by which repetitions are known."""

import json
import secrets
from typing import Any

from rota.model.events import Event
from rota.model.job import JobSpec
from rota.model.news import news_of
from rota.store.deliveries import Hook, Item

ID_CHARACTERS = 12  # of the log's identity


def item_for(
    hook: Hook, seq: int, event: Event, spec: JobSpec | None, identity: str
) -> Item | None:
    """The message to ``hook`` of an event; None if neither it nor the job's user asked for that.

    ``spec`` is the job that the event is about, ``identity`` that of the log.
    """
    news = news_of(event, spec)
    wanted = {*hook.on}
    for notice in spec.notices if spec is not None else ():
        if (notice.hook, notice.kind) == (hook.name, hook.kind):
            wanted.update(notice.on)
    if wanted.isdisjoint(news.words):
        return None
    body = {"id": f"{identity[:ID_CHARACTERS]}-{seq}", "number": seq, "event": news.word}
    body |= {"at_s": event.at_s, "text": news.sentence, **news.facts}
    job_id = None if spec is None else spec.job_id
    return Item(seq, news.word, job_id, _text(body), event.at_s)


def test_body(hook: str, user: str, now_s: float) -> str:
    """The message by which a hook is tried."""
    body = {"id": f"test-{secrets.token_hex(8)}", "number": None, "event": "test", "at_s": now_s}
    return _text(body | {"text": f"{user or 'somebody'} tries the hook {hook}"})


def id_of(body: str) -> str:
    """The id in what a hook is sent."""
    return str(json.loads(body)["id"])


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))
