"""Where no thread can be started, the server does its work all the same."""

import asyncio

import pytest

from rota.server.threads import in_thread
from support.shortage import start_no_threads


def test_a_call_is_made_at_once_where_no_thread_can_be_started(monkeypatch):
    start_no_threads(monkeypatch)
    assert asyncio.run(in_thread(lambda: 7)) == 7


def test_what_a_call_raises_comes_through():
    def fail():
        raise RuntimeError("of the call")

    with pytest.raises(RuntimeError, match="of the call"):
        asyncio.run(in_thread(fail))
