"""A cluster that is watched through three restarts: by Prometheus, a receiver of traces, in logs.

Its story is lived through once; the tests look at what was told of it.
"""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rota.live.controller.counts import Counts, ProcessCounts
from rota.model.state.state import ClusterState
from rota.report.gauges import standing
from rota.server.exposition import render
from rota.server.metrics import COUNTER, GAUGE, METRICS, Snapshot
from support.otlp import Receiver, receiver
from support.prometheus import PROMETHEUS, needs_prometheus

from .conftest import Cluster, until

DEPLOY = Path(__file__).parents[2] / "deploy"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Observed(NamedTuple):
    """What is known of the cluster at the end of its story."""

    cluster: Cluster
    traces: Receiver
    scrapes: list[Samples]
    replayed: Samples
    prometheus: str  # where it answers; "" if there is none
    jobs: dict[str, str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def counters(text: str) -> Samples:
    """The samples of the counters and histograms that go on after a restart."""
    found = {}
    for family in text_string_to_metric_families(text):
        described = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
        if described.kind != GAUGE and not described.restarts:
            for each in family.samples:
                found[each.name, tuple(sorted(each.labels.items()))] = each.value
    return found


def scrape(cluster: Cluster) -> Samples:
    url = json.loads(cluster.folder.server.read_text())["url"]
    token = cluster.folder.token.read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{url}/metrics", headers=headers, trust_env=False)
    assert answer.status_code == 200
    return counters(answer.text)


def replay(events: list[Any]) -> Samples:
    state = ClusterState()
    counts = Counts(state)
    state.observers.append(counts.note)
    for event in events:
        state.apply(event)
    jobs = ([], [], [], [])
    stands = (standing(state), {}, {}, {}, {})
    nothing = (False, False, (0, 0, 0), *stands, jobs, [], frozenset[str](), {}, {})
    text, _ = render(Snapshot(counts, ProcessCounts(), "", *nothing), "")
    return counters(text.decode())


def settled(cluster: Cluster) -> tuple[Samples, Samples]:
    """A scrape, and the counters of the log's replay at the same moment."""
    while True:
        before = cluster.events()
        scraped = scrape(cluster)
        if len(cluster.events()) == len(before):
            return scraped, replay(before)


def live(cluster: Cluster) -> tuple[dict[str, str], list[Samples]]:
    """The story: its jobs by what they do, and a scrape before and after each restart."""
    jobs = {"trains": cluster.train("trained", "--steps", 10**6, "--until")}
    jobs["ends"] = cluster.submit('echo "$TRACEPARENT" > parent; echo "$OTEL_SDK_DISABLED"')
    cluster.ends(jobs["ends"])
    cluster.until_step_advances("trained")
    scrapes = [scrape(cluster)]
    cluster.kill_controller()
    scrapes.append(scrape(cluster.up()))
    jobs["fails"] = cluster.submit("exit 3")
    cluster.ends(jobs["fails"], "FAILED")
    cluster.client.suspend(jobs["trains"])
    cluster.until_state(jobs["trains"], "SUSPENDED")
    scrapes.append(scrape(cluster))
    cluster.kill_controller()
    scrapes.append(scrape(cluster.up()))
    cluster.client.resume(jobs["trains"])
    cluster.until_state(jobs["trains"], "RUNNING")
    scrapes.append(scrape(cluster))
    assert cluster.process is not None
    cluster.process.send_signal(signal.SIGINT)
    cluster.process.wait()
    scrapes.append(scrape(cluster.up()))
    (cluster.base / "trained" / "enough").touch()
    cluster.ends(jobs["trains"])
    return jobs, scrapes


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    base, port = tmp_path_factory.mktemp("observed"), free_port()
    options = ("--port", str(port), "--log-format", "json")
    cluster = Cluster(base, "fifo-backfill", options=options)
    prometheus, watcher = "", None
    with receiver() as traces:
        cluster.environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
            "OTEL_SERVICE_NAME": "rota-under-test",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        try:
            cluster.up()
            if PROMETHEUS:
                prometheus, watcher = watch(cluster, base, port)
            jobs, scrapes = live(cluster)
            last, replayed = settled(cluster)
            yield Observed(cluster, traces, [*scrapes, last], replayed, prometheus, jobs)
        finally:
            if watcher is not None:
                watcher.kill()
                watcher.wait()
            cluster.close()


def watch(cluster: Cluster, base: Path, port: int) -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start a Prometheus with the configuration that Rota ships, looking more often."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["scrape_interval"] = "200ms"
    job["scrape_timeout"] = "200ms"
    job["authorization"]["credentials_file"] = str(cluster.folder.token)
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["rule_files"] = [str(DEPLOY / "prometheus/rota-alerts.yml")]
    config["global"] = {"evaluation_interval": "200ms"}
    (base / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [PROMETHEUS, f"--config.file={base / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={base / 'tsdb'}", f"--web.listen-address={address}"]
    with open(base / "prometheus.log", "wb") as log:
        return f"http://{address}", subprocess.Popen(command, stdout=log, stderr=log)  # type: ignore[arg-type]


def ask(prometheus: str, path: str, **query: str) -> Any:
    answer = httpx.get(f"{prometheus}/api/v1/{path}", params=query, trust_env=False)
    assert answer.status_code == 200, (query, answer.text)
    return answer.json()["data"]


def value(prometheus: str, query: str) -> float | None:
    """What an instant query of one series finds."""
    found = ask(prometheus, "query", query=query)["result"]
    return float(found[0]["value"][1]) if found else None


def test_counters_go_on_through_restarts_and_equal_those_of_the_logs_replay(observed):
    assert observed.scrapes[-1] == observed.replayed
    ended = {labels: n for (name, labels), n in observed.replayed.items() if "jobs_ended" in name}
    queue = ("queue", "(none)")
    assert ended == {(queue, ("state", "SUCCEEDED")): 2, (queue, ("state", "FAILED")): 1}
    assert observed.replayed["rota_suspend_seconds_count", ()] == 1
    assert observed.replayed["rota_resume_seconds_count", ()] == 1
    for before, after in zip(observed.scrapes, observed.scrapes[1:], strict=False):
        assert {key: n for key, n in before.items() if after.get(key, 0) < n} == {}


@needs_prometheus
def test_prometheus_sees_the_cluster_and_no_counter_that_goes_back(observed):
    everything = "sum(rota_jobs_ended_total)"
    until(lambda: value(observed.prometheus, everything) == 3, "Prometheus has scraped the end")
    goes_on = [k for k, d in METRICS.items() if d.kind == COUNTER and not d.restarts]
    resets = {name: value(observed.prometheus, f"max(resets({name}[1h]))") for name in goes_on}
    assert {name for name, number in resets.items() if number} == set()
    assert resets["rota_jobs_ended_total"] == 0
    began = "count(count_over_time(process_start_time_seconds[1h]))"
    assert value(observed.prometheus, began) == 1
    busy = (
        "rota_node_memory_used_bytes > 0 and rota_node_memory_used_bytes < rota_node_memory_bytes"
    )
    until(lambda: value(observed.prometheus, busy), "an agent has told of its machine")
    assert value(observed.prometheus, "rota_node_cores_busy >= 0") is not None


@needs_prometheus
def test_prometheus_takes_the_alert_rules_and_answers_each_query_of_the_board(observed):
    (group,) = ask(observed.prometheus, "rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} >= {"RotaDown", "RotaPolicyFailing"}
    until(
        lambda: all(
            rule["health"] == "ok"
            for rule in ask(observed.prometheus, "rules")["groups"][0]["rules"]
        ),
        "each rule has been evaluated",
    )
    board = json.loads((DEPLOY / "grafana/rota-board.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            ask(observed.prometheus, "query", query=target["expr"])


def test_a_jobs_life_is_one_trace_of_which_its_own_spans_can_be_children(observed):
    traces, spans = observed.traces, {}

    def all_told() -> bool:
        for span in traces.spans("job"):
            about = {each.key: each.value.string_value for each in span.attributes}
            spans[about["rota.job.id"]] = span, about
        return spans.keys() == set(observed.jobs.values())

    until(all_told, "the lives of all jobs are told")
    assert len(traces.spans("job")) == 3
    span, about = spans[observed.jobs["trains"]]
    assert about["rota.job.state"] == "SUCCEEDED"
    names = [child.name for child in traces.children(span)]
    assert [name for name in names if name != "first step"] == [
        *("wait", "start", "run"),
        *("suspension", "run"),
    ]
    assert "first step" in names
    span, _ = spans[observed.jobs["ends"]]
    told = (observed.cluster.base / "parent").read_text().strip()
    assert told == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    assert traces.services == {"rota-under-test"}


def test_a_decision_is_one_trace(observed):
    decisions = observed.traces.spans("decision")
    assert decisions
    for decision in decisions:
        children = observed.traces.children(decision)
        assert [child.name for child in children] == ["snapshot", "policy", "commit"]
        assert children[0].start_time_unix_nano == decision.start_time_unix_nano
        assert children[-1].end_time_unix_nano == decision.end_time_unix_nano


def test_logs_have_a_json_object_a_line(observed):
    folder = observed.cluster.folder
    (agent_log,) = folder.path.glob("nodes/*/agent.log")
    for file, process in ((folder.controller_log, "controller"), (agent_log, "agent")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            assert {"time", "level", "logger", "message", "fields"} <= line.keys()
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
            assert line["fields"]["process"] == process
