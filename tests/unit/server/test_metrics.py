"""What a scrape tells: names, types and labels as declared, text that stays text, few series."""

import asyncio
import subprocess
import time

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from rota.errors import StoreFullError
from rota.model.events import JobSubmitted, NodeJoined
from rota.model.job import JobSpec
from rota.report.gauges import gauges, standing
from rota.server.exposition import MOST_CHARS, render
from rota.server.metrics import METRICS, MOST_NODES, Metrics
from support.prometheus import PROMTOOL, needs_prometheus
from support.served import StandInController, controller_without_agents

HOSTILE = '</pre><script>alert(1)</script>"} 1\n# HELP x\\\x1b[31m\u202e'


@pytest.fixture
def controller(folder):
    it = StandInController(folder)
    it.telemetry.vitals["here"] = {
        "cores_busy": 1.5,
        "memory_bytes": 100,
        "memory_used_bytes": 60,
        "gpus": [{"busy": 0.25, "memory_used_bytes": 7}, {"busy": None, "memory_used_bytes": None}],
    }
    it.record.outboxes.open("here", None)
    it.record.heard_s["here"] = it.now_s()
    return it


def submit(controller, *queues):
    for number, queue in enumerate(queues, len(controller.state.spec)):
        spec = JobSpec(str(number + 1), 1, controller.now_s(), vc=queue, duration_s=None)
        controller.state.apply(JobSubmitted(spec.submit_s, spec))


def scrape(controller):
    """The families of a scrape by name, as a reader of the format finds them."""
    text, _ = render(Metrics(controller).snapshot(), "")
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def samples(families, name):
    """The samples of a metric, by the values of its labels in the order of their names."""
    return {
        tuple(value for _, value in sorted(each.labels.items())): each.value
        for each in families[name].samples
    }


def test_metrics_are_told_as_declared(controller):
    submit(controller, "team", "team", "")
    controller.turn()
    told = scrape(controller)
    assert told.keys() <= {name.removesuffix("_total") for name in METRICS}
    for name, family in told.items():
        full = name if name in METRICS else f"{name}_total"
        described = METRICS[full]
        assert (family.type, family.documentation) == (described.kind, described.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(described.labels), name
    assert samples(told, "rota_jobs_submitted") == {("team",): 2, ("(none)",): 1}
    assert samples(told, "rota_running_jobs") == {("team",): 2}
    assert samples(told, "rota_pending_jobs") == {("(none)", "WAIT_RESOURCES"): 1}
    assert samples(told, "rota_gpu_allocated_ratio") == {(): 1.0}
    assert samples(told, "rota_nodes") == {("connected",): 1, ("silent",): 0, ("lost",): 0}
    assert samples(told, "rota_gpu_busy_ratio") == {("0", "here"): 0.25}
    assert samples(told, "rota_gpu_memory_used_bytes") == {("0", "here"): 7}
    assert samples(told, "rota_node_cores_busy") == {("here",): 1.5}


def test_shares_and_fragmentation_are_those_of_the_gauges(controller):
    submit(controller, "team", "team", "")
    controller.turn()
    big = JobSpec("9", 1000, controller.now_s(), vc="team", duration_s=None)
    controller.state.apply(JobSubmitted(big.submit_s, big))
    told, found = scrape(controller), gauges(standing(controller.state))
    shares = {(name,): each["share"] for name, each in found["queues"].items()}
    assert samples(told, "rota_queue_share") == shares
    assert sum(shares.values()) == found["held_gpus"] / found["gpus"] > 0
    free = {(): found["fragmentation"]} if found["free_gpus"] else {}
    assert samples(told, "rota_fragmentation_ratio") == free


def test_queues_tell_the_part_that_is_theirs_and_how_much_of_their_time_trained(controller):
    submit(controller, "team", "other", "")
    controller.turn()
    state, now_s = controller.state, controller.now_s()
    told = scrape(controller)
    assert samples(told, "rota_queue_fair_share") == {
        ("team",): 1 / 3,
        ("other",): 1 / 3,
        ("(none)",): 1 / 3,
    }
    controller.queue_weight = {"team": 2.0, "other": 1.0, "": 1.0}.__getitem__
    assert samples(scrape(controller), "rota_queue_fair_share") == {
        ("team",): 0.5,
        ("other",): 0.25,
        ("(none)",): 0.25,
    }
    controller.quota = lambda row: int(state.spec[row].vc == "team")
    for row, (ran_s, overhead_s, lost_s) in enumerate([(8.0, 2.0, 3.0), (4.0, 0.0, 0.0)]):
        state.service_s[row], state.since_s[row] = ran_s, -1.0
        state.overhead_s[row], state.lost_s[row] = overhead_s, lost_s
    told = scrape(controller)
    assert state.service(0, now_s) == 8.0
    assert samples(told, "rota_goodput_ratio") == {("team",): 0.5, ("other",): 1.0}
    assert samples(told, "rota_queue_fair_share")["team",] == 0.5
    assert samples(told, "rota_queue_fair_share")["other",] == 0.0


def test_tries_to_tell_hooks_are_counted_by_their_results(controller):
    controller.deliveries.tries["failed"] += 2
    told = samples(scrape(controller), "rota_deliveries")
    assert told == {("delivered",): 0, ("failed",): 2, ("given_up",): 0}


def test_text_of_users_stays_text(controller):
    submit(controller, HOSTILE, "half \ud800", "x" * 5000)
    controller.state.apply(NodeJoined(1.0, HOSTILE, 1, "cpu", HOSTILE))
    told = scrape(controller)
    assert samples(told, "rota_jobs_submitted") == {
        (HOSTILE[:MOST_CHARS],): 1,
        ("half ?",): 1,
        ("x" * MOST_CHARS,): 1,
    }
    assert (HOSTILE[:MOST_CHARS], HOSTILE[:MOST_CHARS]) in samples(told, "rota_node_gpus")


def test_nodes_beyond_a_limit_have_no_series_of_their_own(controller):
    for number in range(MOST_NODES + 5):
        controller.state.apply(NodeJoined(1.0, f"n{number}", 1, "cpu"))
    told = scrape(controller)
    assert len(samples(told, "rota_node_gpus")) == MOST_NODES
    assert samples(told, "rota_nodes")[("silent",)] == MOST_NODES + 5


def test_a_scrape_takes_the_controllers_loop_little_time_and_copies_what_changes(controller):
    submit(controller, "a")
    snapshot = Metrics(controller).snapshot()
    submit(controller, "a", "b")
    text, _ = render(snapshot, "")
    assert b'rota_jobs_submitted_total{queue="a"} 1.0' in text
    assert b'queue="b"' not in text


def test_open_metrics_is_told_to_whoever_asks_for_it(http):
    answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert "rota_decisions" in names


def test_what_is_not_on_disk_yet_is_not_counted(folder, monkeypatch):
    async def scenario():
        controller = controller_without_agents(folder)
        metrics = Metrics(controller)
        spec = JobSpec("1", 1, time.time())
        assert not metrics.snapshot().counts.submitted

        def full(events, **how):
            raise StoreFullError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(controller.record.store, "append", full)
            controller.journal.note(JobSubmitted(spec.submit_s, spec))
            assert not metrics.snapshot().counts.submitted
        controller.journal.try_again()
        assert metrics.snapshot().counts.submitted == {("(none)",): 1}
        controller.record.store.close()

    asyncio.run(scenario())


@needs_prometheus
def test_prometheus_itself_finds_no_fault_with_names_and_types(http, cluster):
    submit(cluster.controller, "team", HOSTILE)
    cluster.do(cluster.controller.turn)
    text = http.get("/metrics").content
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
