"""The demo as a user sees it, cut short; and that it leaves nothing behind, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .conftest import until

ROOT = Path(__file__).parents[2]


def start(tmp_path):
    command = [sys.executable, "-m", "rota.demo", "--steps", "5", "--report"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, str(tmp_path / "demo.html")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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


def test_it_runs_all_policies_and_leaves_a_report_and_no_process(tmp_path):
    demo = start(tmp_path)
    output, _ = demo.communicate()
    assert demo.returncode == 0, output
    assert "Averages over the jobs" in output
    for policy in ("gandiva", "tiresias", "fifo"):
        assert f"{policy}: all done" in output
    assert "Plotly.newPlot(" in (tmp_path / "demo.html").read_text()
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("rota-demo-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_no_process_when_it_is_stopped_in_the_middle(tmp_path, number):
    demo = start(tmp_path)
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
