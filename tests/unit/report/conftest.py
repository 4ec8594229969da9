import pytest

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.report.comparison import Entry
from rota.report.history import History
from rota.report.metrics import summarise
from rota.report.sketch import sketch
from rota.testing.builders import simulation, twenty_jobs


@pytest.fixture(scope="session")
def entry():
    """Makes the entry of a policy that ran twenty jobs on eight GPUs, with its sketch."""

    def entry(name, label=None, point=None, runs=1, oracle=False):
        simulated = simulation(twenty_jobs(), create(name), "2x4")
        simulated.state.log = []
        state, decisions = simulated.run()
        nodes = parse_cluster("2x4")
        history = History(state.log, nodes)
        summary = summarise(state, decisions=decisions, policy=name, needs_duration=oracle)
        summary |= history.figures() | {"cpu_s": 0.5}
        drawn = sketch(state, history, nodes, with_gpus=True)
        return Entry(label or name, point or {}, [summary] * runs, [drawn] * runs)

    return entry


@pytest.fixture
def made():
    """Makes an entry of runs of which their average JCTs and what else is given are known."""

    def made(policy, *jct, point=None, **more):
        summaries = [{"needs_duration": False, "avg_jct_s": value, **more} for value in jct]
        return Entry(policy, point or {}, summaries, [])

    return made
