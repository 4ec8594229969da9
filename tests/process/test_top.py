"""``rota top`` on a real cluster: through Textual's pilot, and once on a real terminal."""

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from rota.cli.topapp import Log, Page, Question, Top
from rota.cli.topfeed import read
from rota.client.client import Client

from .conftest import DEADLINE_S, Cluster

pytestmark = pytest.mark.process

HOSTILE = "[bold red]x[/] \\033[31mred \\033]0;title\\007 \\342\\200\\256gnp"
PRINTS = f"printf '{HOSTILE}\\n'; printf '%0100000d\\n' 7; echo last; exec sleep 1000"


def screens(cluster: Cluster, story: Callable[[Pilot[None]], Coroutine[Any, Any, None]]) -> None:
    """Play a story on a terminal of 80 columns and 24 lines."""

    async def play() -> None:
        with Client(folder=cluster.folder) as client:
            app = Top(client, read(client))
            async with app.run_test(size=(80, 24)) as pilot:
                await story(pilot)

    asyncio.run(play())


async def shows(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    """Wait until the screen is so."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            pytest.fail(f"{what}: not within {DEADLINE_S:.0f} s")
        await pilot.pause(0.02)


def text_of(pilot: Pilot[None], selector: str) -> str:
    """What a part of the first screen says."""
    return str(pilot.app.screen_stack[0].query_one(selector, Static).content)


def cells_of(pilot: Pilot[None], job_id: str) -> list[str]:
    """The cells of a job, none if it is not listed."""
    table = pilot.app.screen_stack[0].query_one("#jobs", DataTable)
    keys = [key.value for key in table.rows]
    return [cell.plain for cell in table.get_row(job_id)] if job_id in keys else []


async def has_state(pilot: Pilot[None], job_id: str, state: str) -> None:
    """Wait until a job is shown in a state."""
    await shows(pilot, lambda: state in cells_of(pilot, job_id), f"job {job_id} is {state}")


async def choose(pilot: Pilot[None], job_id: str) -> None:
    """Move the cursor to a job."""
    table = pilot.app.screen.query_one("#jobs", DataTable)
    row = table.get_row_index(job_id)
    while table.cursor_row != row:
        await pilot.press("down" if table.cursor_row < row else "up")


@pytest.mark.live_path("top")
def test_jobs_are_followed_and_steered_by_keys(shared_cluster: Cluster) -> None:
    async def story(pilot: Pilot[None]) -> None:
        job_id = shared_cluster.submit(PRINTS, name="a" * 60)
        await has_state(pilot, job_id, "RUNNING")
        node = shared_cluster.node_names()[0]
        await shows(pilot, lambda: f"0:{job_id}" in text_of(pilot, "#nodes"), "its GPU")
        cells = cells_of(pilot, job_id)
        assert cells[1].endswith("~")
        assert cells[4] == f"{node}:0"[: len(cells[4])]
        assert "1/2 GPUs, 0 waiting" in text_of(pilot, "#heading")
        await choose(pilot, job_id)

        await pilot.press("l")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Log), "its log")
        log = pilot.app.screen.query_one(RichLog)
        await shows(pilot, lambda: "last" in [line.text.strip() for line in log.lines], "its lines")
        lines = [line.text for line in log.lines]
        assert lines[0].startswith("[bold red]x[/] \\x1b[31mred \\x1b]0;title\\x07 \\u202egnp")
        assert "0000" in lines[1]
        assert len(lines) < 50  # of each 16,384 of a hundred thousand digits a few are shown
        await pilot.press("escape")

        await pilot.press("w")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Page), "why")
        told = str(pilot.app.screen.query_one("#text", Static).content)
        assert told.startswith(f"job {job_id} is RUNNING")
        assert "ETA" in told
        await pilot.press("q")
        await pilot.press("i")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Page), "everything")
        told = str(pilot.app.screen.query_one("#text", Static).content)
        assert "\x1b" not in told
        assert max(map(cell_len, told.splitlines()[:2])) <= 80
        await pilot.press("escape")

        await pilot.press("s")
        await has_state(pilot, job_id, "SUSPENDED")
        await shows(pilot, lambda: "HELD_BY_USER" in cells_of(pilot, job_id), "why it waits")
        await pilot.press("r")
        await has_state(pilot, job_id, "RUNNING")
        await pilot.press("c")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Question), "the question")
        await pilot.press("n")
        assert not isinstance(pilot.app.screen, Question)
        assert shared_cluster.show(job_id)["state"] == "RUNNING"
        await pilot.press("c")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Question), "the question")
        await pilot.press("y")
        await has_state(pilot, job_id, "CANCELLED")
        await pilot.press("d")
        await shows(pilot, lambda: isinstance(pilot.app.screen, Page), "what has happened")
        told = str(pilot.app.screen.query_one("#text", Static).content)
        assert f"job {job_id}  submitted" in told

    screens(shared_cluster, story)


def test_an_outage_is_told_and_then_all_is_current_again(shared_cluster: Cluster) -> None:
    async def story(pilot: Pilot[None]) -> None:
        away = pilot.app.screen.query_one("#away", Static)
        await shows(pilot, lambda: not away.display, "it follows")
        shared_cluster.kill_controller()
        await shows(pilot, lambda: away.display, "the outage")
        assert "no controller answers since" in text_of(pilot, "#away")
        await pilot.press("q")  # leaving does not wait for it
        assert pilot.app.return_code == 0

    async def after(pilot: Pilot[None]) -> None:
        away = pilot.app.screen.query_one("#away", Static)
        await shows(pilot, lambda: not away.display, "it follows")
        shared_cluster.kill_controller()
        await shows(pilot, lambda: away.display, "the outage")
        await asyncio.to_thread(shared_cluster.up)
        job_id = shared_cluster.submit("exec sleep 1000")
        await shows(pilot, lambda: not away.display, "it is back")
        await has_state(pilot, job_id, "RUNNING")
        shared_cluster.client.cancel(job_id)
        await has_state(pilot, job_id, "CANCELLED")

    screens(shared_cluster, story)
    shared_cluster.up()
    screens(shared_cluster, after)


def test_on_a_terminal_without_colours_it_keeps_to_80_columns_and_24_lines(
    shared_cluster: Cluster,
) -> None:
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(inside)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment |= {"NO_COLOR": "1", "TERM": "xterm", "ROTA_HOME": str(shared_cluster.folder.path)}
    command = [sys.executable, "-m", "rota.cli.main", "top"]
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    said = b""

    def read_until(condition: Callable[[], object], what: str) -> None:
        nonlocal said
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            ready, _, _ = select.select([outside], [], [], 0.1)
            said += os.read(outside, 1 << 16) if ready else b""
            if time.monotonic() > end_s:
                pytest.fail(f"{what}: not within {DEADLINE_S:.0f} s: {said[-2000:]!r}")

    try:
        read_until(lambda: b"2 GPUs" in said and b"Quit" in said, "its first screen")
        job_id = shared_cluster.submit("true", name="on-a-tty")
        read_until(lambda: b"on-a-tty" in said, "the job")
        shared_cluster.ends(job_id)
        os.write(outside, b"q")
        read_until(lambda: process.poll() is not None, "its end")
    finally:
        process.kill()
        process.wait()
        after = termios.tcgetattr(inside)
        os.close(inside)
        os.close(outside)
    assert process.returncode == 0, said[-2000:]
    assert after == before
    assert b"\x1b[?1049l" in said
    styles = {part for each in re.findall(rb"\x1b\[([0-9;:]*)m", said) for part in each.split(b";")}
    assert styles <= {b"", b"0", b"1", b"2", b"3", b"4", b"7", b"39", b"49"}, styles
    places = [tuple(map(int, each)) for each in re.findall(rb"\x1b\[(\d+);(\d+)H", said)]
    assert places
    assert max(line for line, _ in places) <= 24
    assert max(column for _, column in places) <= 80
