"""The demo as a user sees it, cut short; and that it leaves nothing behind, however it ends."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .conftest import until

ROOT = Path(__file__).parents[2]


def start(tmp_path, *options, output=subprocess.PIPE, steps=5):
    command = [sys.executable, "-m", "rota.demo", "--steps", str(steps), "--report"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", "TERM": "xterm"}
    return subprocess.Popen(
        [*command, str(tmp_path / "demo.html"), *options],
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def written_to(terminal):
    """All that is written to a terminal until nobody has it any more."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the last one has closed it
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def processes_of(tmp_path):
    """Every process that was started by a demo whose folders lie in ``tmp_path``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get("TMPDIR") == str(tmp_path)
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_default_policy_runs_behind_one_line_and_the_result_comes_before_the_table(tmp_path):
    terminal, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as output:
        demo = start(tmp_path, output=output)
    told = written_to(terminal)
    os.close(terminal)
    assert demo.wait() == 0, told
    before, result = told.rsplit("\x1b[2K", 1)  # the line is gone when the result comes
    assert "\rgandiva [" in before.replace("\x1b[2K", "")
    order = ["gandiva, the default, ran:", "fifo, foretold:", "The simulator foretold", "Averages"]
    places = [result.index(words) for words in order]
    assert places == sorted(places)
    for row in ("gandiva, as it ran", "tiresias, foretold", "fifo-backfill, foretold"):
        assert result.count(row) == 1
    assert "Plotly.newPlot(" in (tmp_path / "demo.html").read_text()
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("rota-demo-*")) == []


@pytest.mark.parametrize(("number", "options"), [(signal.SIGINT, []), (signal.SIGTERM, ["--full"])])
def test_it_leaves_no_process_when_it_is_stopped_in_the_middle(tmp_path, number, options):
    demo = start(tmp_path, *options)
    try:
        until(lambda: len(processes_of(tmp_path)) >= 5, "its trainings run")
        demo.send_signal(number)
        demo.communicate()
        until(lambda: processes_of(tmp_path) == [], "its processes are gone")
    finally:
        for process in processes_of(tmp_path):
            process.kill()
    assert demo.returncode != 0
    assert list(tmp_path.glob("rota-demo-*")) == []
