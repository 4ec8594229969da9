"""What the demo runs, and what it prints of it, with runs that are made up."""

import argparse
import io
from math import inf

import pytest
from rich.console import Console

from rota.demo import __main__ as demo
from rota.demo.busy import RunDelay
from rota.demo.cluster import JobRecord, Run
from rota.demo.story import print_story, write_report
from rota.demo.workload import MIX
from rota.report.timeline import Segment, Switches, Timeline


def in_order():
    """Each training runs for ten seconds, in order of arrival, on all slots."""
    timeline, jobs = Timeline(()), []
    timeline.num_gpus = 2
    for row, training in enumerate(MIX):
        begin_s = 10.0 * row
        timeline.submit_s.append(0.0)
        timeline.finish_s[row] = begin_s + 10.0
        timeline.segments.append(Segment(row, ((0, 0), (0, 1)), begin_s, begin_s + 10.0))
        timeline.switches[row] = Switches([], [], [0.1])
        told = {"at_s": begin_s + 10.0, "step": 100, "step_time_s": 0.09, "loss": 1.0}
        told |= {"metrics": {training.metric: training.target}, "first_100_s": begin_s + 10.0}
        jobs.append(JobRecord(training.name, told, [told]))
    return Run(timeline, jobs)


@pytest.mark.parametrize("full", [False, True], ids=["a minute", "full"])
def test_the_default_policy_runs_and_by_the_full_demo_two_more(monkeypatch, tmp_path, full):
    ran = []

    def run(console, home, policy, settings, trainings, jobs, waiting, check, until_s):
        ran.append((policy, until_s < inf))
        return in_order()

    monkeypatch.setattr(demo, "run", run)
    options = argparse.Namespace(full=full, quantum=1.0, steps=None)
    written = io.StringIO()
    console = Console(file=written, width=100)
    waiting = RunDelay(tmp_path, lambda: 0.0)
    compared = demo.measure(console, tmp_path, options, waiting, lambda: None)
    live = ["gandiva", "tiresias", "fifo"] if full else ["gandiva"]
    assert ran == [(policy, not full) for policy in live]
    print_story(console, compared, "Busy machine.")
    told = written.getvalue()
    places = [told.index(words) for words in ("Busy machine.", "gandiva, the default", "Averages")]
    assert places == sorted(places)
    for policy in ("gandiva", "tiresias", "fifo", "fifo-backfill"):
        assert (f"{policy}, as it ran" in told) == (policy in live)
        assert f"{policy}, foretold" in told
    assert ("Turns (gandiva)" in told) == full
    write_report(tmp_path / "demo.html", compared, None)
    assert "Plotly.newPlot(" in (tmp_path / "demo.html").read_text()
