"""The figures of a simulated run, over the log of a live cluster."""

import json
from itertools import takewhile
from pathlib import Path

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import StopRequested, joined
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.report.history import History, Moment
from rota.report.lately import entries_of, gpu_use, report, window
from rota.report.latelypage import lately_page
from rota.report.metrics import summarise
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.store.codec import decode
from rota.testing.builders import job, trace

LOGS = Path(__file__).parents[2] / "contract" / "logs"


def run(*jobs):
    """A finished simulation, with its log."""
    simulation = Simulation(trace(*jobs), parse_cluster("1x2"), create("fifo"), FREE)
    simulation.state.log = []
    nodes = list(simulation.state.nodes)
    state, _ = simulation.run()
    return state, nodes


JOBS = (
    job(1, 2, lasts=100, user="ann", vc="vision"),
    job(2, 1, at=10, lasts=100, user="bob"),
    job(3, 1, at=20, lasts=50, user="ann"),
)


def told_of(state, nodes, *args):
    return report(state, [*(joined(0.0, node) for node in nodes), *state.log], *args)


def test_the_figures_are_those_of_a_simulated_run():
    state, nodes = run(*JOBS)
    told = told_of(state, nodes, 200.0)
    summary = summarise(state, decisions=0, policy="fifo")
    for key in (
        "finished",
        "avg_jct_s",
        "median_jct_s",
        "p95_jct_s",
        "avg_queue_s",
        "avg_slowdown",
    ):
        assert told["all"][key] == summary[key]
    assert told["all"]["gpu_utilisation"] == pytest.approx(summary["gpu_utilisation"])
    assert told["ended"] == {"SUCCEEDED": 3} and told["going"] == {}


def test_users_and_queues_have_figures_of_their_own():
    state, nodes = run(*JOBS)
    told = told_of(state, nodes, 200.0)
    assert list(told["users"]) == ["ann", "bob"]
    assert told["users"]["ann"]["finished"] == 2
    assert told["users"]["ann"]["gpu_hours"] == pytest.approx(250 / 3600)
    assert told["users"]["bob"]["avg_jct_s"] == pytest.approx(190)
    assert list(told["queues"]) == ["vision", "(none)"]


def test_a_period_has_the_jobs_that_still_went_on():
    state, nodes = run(*JOBS)
    told = told_of(state, nodes, 300.0, 120.0)
    assert told["jobs"] == 2
    # Of 180 s on two GPUs, one job ran for 80 s and the other for 30 s.
    assert told["all"]["gpu_utilisation"] == pytest.approx(110 / 360)
    assert told["all"]["max_waiting_jobs"] == 0


def test_jobs_that_have_not_ended_are_told_apart():
    lines = (LOGS / "gandiva_pack.jsonl").read_text().splitlines()
    events = [decode(json.loads(line)) for line in lines]
    log = list(takewhile(lambda event: not isinstance(event, StopRequested), events))
    state = ClusterState()
    for event in log:
        state.apply(event)
    told = report(state, log, max(event.at_s for event in log) + 1)
    assert told["ended"] == {}
    assert sum(told["going"].values()) == told["jobs"] == 2
    assert told["all"]["avg_jct_s"] is None
    assert told["all"]["gpu_hours"] > 0


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_recorded_log_can_be_told_and_drawn(path):
    log = [decode(json.loads(line)) for line in path.read_text().splitlines()]
    state = ClusterState()
    for event in log:
        state.apply(event)
    now_s = max(event.at_s for event in log)
    for since_s in (None, now_s - 5.0):
        told = json.loads(json.dumps({"policy": "fifo"} | report(state, log, now_s, since_s)))
        assert "By user" in lately_page(told, "all jobs")
        assert entries_of(told, "users")[0].policy == "all"


def test_nothing_is_a_report_too():
    told = report(ClusterState(), [], 10.0)
    assert (told["jobs"], told["users"], told["jct_s"]) == (0, {}, [])
    assert "By user" in lately_page({"policy": "fifo"} | told, "no job")


def moment(at_s, held=0, gpus=2):
    return Moment(at_s, 0, held, held, gpus, 0, gpus - held)


def test_a_window_begins_and_ends_as_things_stood():
    moments = [moment(0.0, 1), moment(10.0, 2), moment(20.0, 0)]
    assert window(moments, 5.0, 30.0) == [
        moment(5.0, 1),
        moment(10.0, 2),
        moment(20.0, 0),
        moment(30.0, 0),
    ]
    assert gpu_use(window(moments, 5.0, 30.0))["gpu_allocation"] == pytest.approx(25 / 50)
    assert window(moments, 25.0, 30.0) == [moment(25.0), moment(30.0)]
    assert window([], 5.0, 30.0) == []
    assert gpu_use([]) == {"gpu_allocation": None, "gpu_utilisation": None}
    assert History([]).moments == []
