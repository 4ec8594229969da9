"""A job's page without a browser: when it reads what the job's document tells."""

import asyncio
from types import SimpleNamespace

import pytest

from rota.errors import UnreachableError

page = pytest.importorskip("rota.ui.pages.job")


def test_what_changes_right_after_a_reading_is_read_once_that_is_allowed_again():
    asked, again = [], []

    async def call(ask):
        asked.append(ask)
        raise UnreachableError("nobody there")

    async def change_twice():
        await shown.update()
        assert (len(asked), again) == (1, [])
        await shown.update()

    reader = SimpleNamespace(jobs={}, call=call, curves=SimpleNamespace(of=lambda job_id: {}))
    shown = page._JobPage(SimpleNamespace(reader=reader, again=again.append), "1")
    asyncio.run(change_twice())
    assert len(asked) == 1
    assert again == [shown._read_s + page.REREAD_S]
