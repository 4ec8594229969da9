"""Webhooks of a real cluster whose controller is killed."""

import pytest

from support.receivers import HANG, receiving

from .conftest import until


@pytest.mark.process
def test_what_a_killed_controller_had_to_tell_the_next_one_tells(cluster):
    """Killed while a message is on its way, and while events come that nobody has told of yet."""
    with receiving(HANG, 204) as receiver:
        cluster.client.add_hook("team", webhook=receiver.url, on=["started"], allow_private=True)
        notify = [{"on": ["succeeded"], "webhook": "team"}]
        first = cluster.submit("true", notify=notify)
        assert receiver.entered.acquire(timeout=120)  # of the start, and of nothing more
        cluster.ends(first)
        second = cluster.submit("true", notify=notify)
        cluster.ends(second)
        cluster.kill_controller()
        cluster.up()
        until(lambda: [hook["delivered"] for hook in cluster.client.hooks()] == [4], "all are told")
        told = [(body["event"], body["job"]["id"]) for body in receiver.bodies()]
    news = {(event, job) for event in ("started", "succeeded") for job in (first, second)}
    assert set(told) == news
    assert told.count(("started", first)) > 1  # the one that was on its way comes again
    assert len({body["id"] for body in receiver.bodies()}) == len(news)
