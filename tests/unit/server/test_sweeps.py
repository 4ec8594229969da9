"""The routes of searches, in front of a real controller that runs nothing."""

import json
import math
import random
from functools import partial

import httpx
import pytest

from rota.errors import pip_install
from rota.model.events import (
    JobFinished,
    JobLaunched,
    MetricReported,
    NodeJoined,
    WorkerReported,
)
from rota.model.job import JobState
from rota.model.sweep import Report
from rota.server import sweepdriver, written
from support.served import controller_without_agents, served

FIELDS = {
    "name": "digits",
    "run": "python train.py --lr {lr}",
    "workdir": "/",
    "sweep": {
        "metric": "val_acc",
        "goal": "maximize",
        "space": {"lr": {"log": [0.0001, 0.1]}, "how": {"choice": ["s g d", "adam"]}},
        "algorithm": "random",
        "max_trials": 40,
    },
}
PARAMS = {"lr": 0.01, "how": "adam"}
HOUR = 3600.0


@pytest.fixture
def cluster(folder):
    with served(folder, controller_without_agents(folder)) as it:
        yield it


def submit(http, key=None, **fields):
    headers = {"Idempotency-Key": key} if key else {}
    return http.post("/api/v1/sweeps", json=FIELDS | fields, headers=headers)


def submit_trial(http, number, params=PARAMS, key=None, sweep="digits"):
    headers = {"Idempotency-Key": key} if key else {}
    body = {"number": number, "params": params}
    return http.post(f"/api/v1/sweeps/{sweep}/trials", json=body, headers=headers)


def show(http, name="digits", **params):
    return http.get(f"/api/v1/sweeps/{name}", params=params).raise_for_status().json()


def happens(cluster, kind, *fields):
    """Let an event have been told by an agent just now."""
    event = kind(cluster.controller.now_s(), *fields)
    cluster.do(partial(cluster.controller.journal.note, event))


def runs(cluster, row):
    """Let the trial have been launched, which the controller has ordered by now."""
    cluster.do(cluster.controller.turn)
    happens(cluster, JobLaunched, row, 1)


def reports(cluster, row, *values):
    told = tuple(Report(step, 1.0 + step, value, step == 1) for step, value in enumerate(values, 1))
    happens(cluster, MetricReported, row, told)


def test_a_search_is_taken_and_told_of(http):
    answer = submit(http, env={"TOKEN": "hunter2"})
    assert answer.status_code == 201
    begun = answer.json()
    assert (begun["name"], begun["state"], begun["outcome"]) == ("digits", "RUNNING", None)
    assert begun["request"]["sweep"]["max_trials"] == 40
    assert "hunter2" not in json.dumps(show(http))
    assert begun["request"]["env"] == {"TOKEN": ""}
    none = dict.fromkeys(("done", "running", "waiting", "failed", "stopped"), 0)
    assert begun["trials"] == none
    assert show(http)["trials"] == []
    assert show(http, "@last", brief=True) == show(http, brief=True)
    assert http.get("/api/v1/sweeps").json()["sweeps"] == [show(http, brief=True)]


def test_the_same_key_is_the_same_search(http):
    assert submit(http, "k").json()["name"] == "digits"
    assert submit(http, "k").json()["name"] == "digits"
    assert submit(http).json()["name"] == "digits-2"
    other = submit(http, "k", name="other")
    assert (other.status_code, other.json()["code"]) == (422, "JobFileError")
    assert submit(http, "a\tb").json()["detail"].startswith("Idempotency-Key")


def test_a_dry_run_takes_nothing_and_shows_a_trial(http):
    answer = http.post("/api/v1/sweeps?dry_run=true", json=FIELDS)
    assert answer.status_code == 200
    plan = answer.json()
    assert plan["trial"] == {
        "run": "python train.py --lr 0.0001",
        "params": {"lr": 0.0001, "how": "s g d"},
    }
    assert (plan["free_gpus"], plan["sweep"]["name"]) == (2, "digits")
    free = {"metric": "loss", "goal": "minimize", "algorithm": "manual"}
    plan = http.post("/api/v1/sweeps?dry_run=true", json=FIELDS | {"sweep": free}).json()
    assert plan["trial"] == {"run": "python train.py --lr {lr}", "params": {}}
    assert http.get("/api/v1/sweeps").json() == {"sweeps": [], "cursor": None}


def test_searches_are_listed_in_pages(http):
    for _ in range(5):
        submit(http)
    seen, page = [], {"cursor": 0}
    while page["cursor"] is not None:
        params = {"limit": 2, "cursor": page["cursor"]}
        page = http.get("/api/v1/sweeps", params=params).json()
        assert len(page["sweeps"]) <= 2
        seen += [sweep["name"] for sweep in page["sweeps"]]
    every = http.get("/api/v1/sweeps").json()["sweeps"]
    assert seen == [sweep["name"] for sweep in every]
    assert len(seen) == 5


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_a_search_whose_trials_never_fit_is_told_so(http, dry_run):
    fields = FIELDS | {"resources": {"gpus": 3}}
    answer = http.post("/api/v1/sweeps", params={"dry_run": dry_run}, json=fields)
    assert (answer.status_code, answer.json()["code"]) == (422, "NeverFitsError")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"sweep": FIELDS["sweep"] | {"algorithm": "tpee"}}, "tpe"),
        ({"sweep": FIELDS["sweep"] | {"space": {}}}, "sweep.space"),
        ({"sweep": None}, "sweep"),
        ({"name": "a\x1b[31m"}, "name"),
        ({"workdir": "here"}, "workdir"),
    ],
)
def test_a_malformed_search_is_a_problem(http, fields, word):
    answer = submit(http, **fields)
    assert (answer.status_code, answer.json()["code"]) == (422, "JobFileError")
    assert word in answer.json()["detail"]
    assert "\x1b" not in answer.json()["detail"]


def test_without_optuna_only_searches_that_need_none_are_taken(http, monkeypatch):
    monkeypatch.setattr(sweepdriver, "find_spec", lambda name: None)
    answer = submit(http)
    assert (answer.status_code, answer.json()["code"]) == (422, "InputError")
    assert pip_install("sweep") in answer.json()["detail"]
    for algorithm in ("manual", "grid"):
        block = FIELDS["sweep"] | {"algorithm": algorithm, "space": {"lr": {"choice": [1, 2]}}}
        assert submit(http, sweep=block, run="python train.py").status_code == 201


class TestTrials:
    @pytest.fixture(autouse=True)
    def search(self, http):
        submit(http).raise_for_status()

    def test_one_is_a_job_and_its_number_is_taken_once(self, http):
        answer = submit_trial(http, 5)
        assert answer.status_code == 201
        assert (answer.json()["id"], answer.json()["name"]) == ("1", "digits.5")
        again = submit_trial(http, 5, PARAMS | {"lr": 0.02})
        assert (again.status_code, again.json()["id"]) == (201, "1")
        (trial,) = show(http)["trials"]
        assert (trial["number"], trial["job_id"], trial["params"]) == (5, "1", PARAMS)
        assert sum(show(http, brief=True)["trials"].values()) == 1

    def test_without_a_number_it_is_the_next_and_the_same_key_the_same(self, http):
        names = [submit_trial(http, None).json()["name"] for _ in range(2)]
        names += [submit_trial(http, None, key="k").json()["name"] for _ in range(2)]
        assert names == ["digits.0", "digits.1", "digits.2", "digits.2"]
        other = submit_trial(http, None, PARAMS | {"lr": 0.02}, key="k")
        assert (other.status_code, other.json()["code"]) == (422, "JobFileError")

    @pytest.mark.parametrize(
        ("number", "params", "word"),
        [
            (0, {"lr": 0.01}, "how"),
            (0, PARAMS | {"lr": 7}, "params.lr"),
            (0, PARAMS | {"learning": 7}, "learning"),
            (0, [1], "params"),
            (0, PARAMS | {"lr": math.nan}, "params.lr"),
            (-1, PARAMS, "number"),
            ("1", PARAMS, "number"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, http, number, params, word):
        body = json.dumps({"number": number, "params": params})  # NaN as Python writes it
        answer = http.post("/api/v1/sweeps/digits/trials", content=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "JobFileError")
        assert word in answer.json()["detail"]
        assert show(http)["trials"] == []

    def test_what_it_reports_is_told_and_what_is_no_number_is_null(self, http, cluster):
        submit_trial(http, 0).raise_for_status()
        submit_trial(http, 1).raise_for_status()
        runs(cluster, 0)
        reports(cluster, 0, 0.5, 0.75, None, 0.625)
        told = show(http)
        assert told["trials"][0]["curve"] == [
            [1, 2.0, 0.5],
            [2, 3.0, 0.75],
            [3, 4.0, None],
            [4, 5.0, 0.625],
        ]
        assert told["trials"][0]["value"] == 0.75
        one = http.get("/api/v1/sweeps/digits/trials/0").json()
        assert one["curve"] == told["trials"][0]["curve"]
        best = {"number": 0, "value": 0.75, "at_s": 3.0, "params": PARAMS}
        assert told["best"] == show(http, brief=True)["best"] == best
        assert show(http, brief=True)["trials"]["running"] == 2
        reports(cluster, 0, 0.25)  # it begins anew, and what it said before counts no more
        assert show(http, brief=True)["best"]["value"] == 0.25

    def test_one_that_the_search_stops_says_why(self, http, cluster):
        submit_trial(http, 0).raise_for_status()
        path, why = "/api/v1/sweeps/digits/trials/0/stop", "it is not among the best third"
        first, second = (http.post(path, json={"why": why}) for _ in range(2))
        assert (first.status_code, first.json()["changed"]) == (202, True)
        assert (second.status_code, second.json()["changed"]) == (202, False)
        runs(cluster, 0)
        happens(cluster, JobFinished, 0, JobState.CANCELLED)
        (trial,) = show(http)["trials"]
        assert (trial["state"], trial["why"]) == ("CANCELLED", why)
        assert show(http, brief=True)["trials"]["stopped"] == 1

    @pytest.mark.parametrize("body", [{}, {"why": 1}, {"why": "x" * 3000}, {"reason": "x"}, []])
    def test_one_is_not_stopped_without_a_reason(self, http, body):
        submit_trial(http, 0).raise_for_status()
        answer = http.post("/api/v1/sweeps/digits/trials/0/stop", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "JobFileError")

    def test_those_of_each_kind_are_counted(self, http, cluster):
        for number in range(4):
            submit_trial(http, number).raise_for_status()
        runs(cluster, 0)
        reports(cluster, 0, 0.5)
        happens(cluster, JobFinished, 0, JobState.SUCCEEDED)
        happens(cluster, JobLaunched, 1, 1)
        happens(cluster, JobFinished, 1, JobState.FAILED, 1, "it crashed")
        counts = show(http, brief=True)["trials"]
        assert (counts["done"], counts["failed"]) == (1, 1)
        assert counts["running"] + counts["waiting"] == 2
        assert show(http)["trials"][1]["message"] == "it crashed"


class TestEnds:
    @pytest.fixture(autouse=True)
    def search(self, http):
        submit(http).raise_for_status()
        submit_trial(http, 0).raise_for_status()

    def test_cancelling_stops_the_trials_and_can_be_repeated(self, http):
        first, second = (http.post("/api/v1/sweeps/digits/cancel") for _ in range(2))
        assert (first.status_code, first.json()["changed"]) == (202, True)
        assert (second.status_code, second.json()["changed"]) == (202, False)
        told = show(http)
        assert (told["state"], told["outcome"]) == ("ENDED", "CANCELLED")
        assert told["trials"][0]["state"] in ("CANCELLED", "STOPPING")

    def test_the_first_end_counts(self, http):
        body = {"outcome": "TARGET", "message": "trial 0 reached 0.95"}
        assert http.post("/api/v1/sweeps/digits/end", json=body).json()["changed"] is True
        body = {"outcome": "DONE", "message": "all trials have ended"}
        assert http.post("/api/v1/sweeps/digits/end", json=body).json()["changed"] is False
        told = show(http)
        assert (told["outcome"], told["message"]) == ("TARGET", "trial 0 reached 0.95")
        late = submit_trial(http, 1)
        assert (late.status_code, late.json()["code"]) == (409, "TransitionError")
        assert submit_trial(http, 0).json()["id"] == "1", "one that is there is no new one"

    @pytest.mark.parametrize(
        "body", [{}, {"outcome": "WON"}, {"outcome": "DONE", "message": 1}, {"result": "DONE"}, 7]
    )
    def test_an_end_that_is_none_is_refused(self, http, body):
        answer = http.post("/api/v1/sweeps/digits/end", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "JobFileError")
        assert show(http)["state"] == "RUNNING"

    def test_those_that_ended_long_ago_are_listed_on_request(self, http, cluster, monkeypatch):
        http.post("/api/v1/sweeps/digits/cancel").raise_for_status()
        assert len(http.get("/api/v1/sweeps").json()["sweeps"]) == 1
        now_s = cluster.controller.now_s
        monkeypatch.setattr(cluster.controller, "now_s", lambda: now_s() + HOUR + 60)
        assert http.get("/api/v1/sweeps").json()["sweeps"] == []
        assert len(http.get("/api/v1/sweeps?all=true").json()["sweeps"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/sweeps/digitz"),
        ("POST", "/api/v1/sweeps/digitz/cancel"),
        ("POST", "/api/v1/sweeps/digitz/end"),
        ("POST", "/api/v1/sweeps/digitz/trials"),
        ("POST", "/api/v1/sweeps/digitz/trials/0/stop"),
        ("POST", "/api/v1/sweeps/digits/trials/0/stop"),
        ("GET", "/api/v1/sweeps/digits/trials/0"),
        ("GET", "/api/v1/sweeps/%1b%5b31m"),
    ],
)
def test_what_is_not_there_is_a_problem(http, method, path):
    submit(http).raise_for_status()
    bodies = {"end": {"outcome": "DONE"}, "stop": {"why": "x"}, "trials": {"params": PARAMS}}
    answer = http.request(method, path, json=bodies.get(path.split("/")[-1]))
    assert (answer.status_code, answer.json()["code"]) == (404, "NotFoundError")
    assert "\x1b" not in answer.json()["detail"]
    if "digitz" in path:
        assert "did you mean 'digits'?" in answer.json()["detail"]


def test_a_driver_that_fails_is_told_of_where_it_matters(http, cluster):
    submit(http).raise_for_status()
    submit(http, name="over").raise_for_status()
    http.post("/api/v1/sweeps/over/cancel").raise_for_status()
    assert show(http)["driver_error"] is None
    cluster.driver.error = "the driver of searches ended with status 1"
    assert show(http)["driver_error"] == cluster.driver.error
    assert show(http, "over")["driver_error"] is None


def test_a_new_controller_knows_the_searches(folder):
    def client(cluster):
        headers = {"Authorization": f"Bearer {folder.token.read_text().strip()}"}
        return httpx.Client(base_url=cluster.url, headers=headers, trust_env=False)

    with served(folder, controller_without_agents(folder)) as cluster, client(cluster) as http:
        submit(http, "k").raise_for_status()
        submit_trial(http, 0).raise_for_status()
        before = show(http)
    with served(folder, controller_without_agents(folder)) as cluster, client(cluster) as http:
        assert cluster.controller.record.searches.is_any_open
        after = show(http)
        assert submit(http, "k").json()["name"] == "digits"
        assert submit_trial(http, 0).json()["id"] == "1"
        assert len(show(http)["trials"]) == 1
    same = ("name", "request", "submit_s", "state")
    assert [after[key] for key in same] == [before[key] for key in same]
    assert [trial["params"] for trial in after["trials"]] == [PARAMS]


def test_long_answers_are_written_trial_by_trial(http, monkeypatch):
    """Whoever writes one at a time lets the controller decide in between."""
    submit(http).raise_for_status()
    for number in range(3):
        submit_trial(http, number).raise_for_status()
    at_once, encode = [], written.ENCODE
    monkeypatch.setattr(written, "ENCODE", lambda value: at_once.append(value) or encode(value))
    told = show(http)
    assert [trial["number"] for trial in told["trials"]] == [0, 1, 2]
    assert [trial for trial in at_once if isinstance(trial, dict) and "curve" in trial]
    assert not any(isinstance(value, list) for value in at_once)


def take(known, told):
    """What a client makes of what is new."""
    for trial in told["trials"]:
        curve = known.setdefault(trial["number"], {"curve": []})["curve"][: trial["known"]]
        known[trial["number"]] = trial | {"curve": [*curve, *trial["curve"]], "known": 0}
    return told["cursor"]


def test_what_is_told_bit_by_bit_comes_to_the_same_as_all_of_it(http, cluster):
    """Also of training that goes back; and the best value is that of what counts by then."""
    submit(http)
    for number in range(3):
        submit_trial(http, number, key=str(number))
    rng = random.Random(3)
    clients = [({}, None) for _ in range(3)]
    for _ in range(120):
        row = rng.randrange(3)
        curve = show(http)["trials"][row]["curve"]
        begin = rng.randint(1, len(curve) + 1) if rng.random() < 0.2 else len(curve) + 1
        values = [rng.choice([None, rng.random()]) for _ in range(rng.randint(1, 3))]
        told = tuple(
            Report(step, 1.0 * step, value, step == begin)
            for step, value in enumerate(values, begin)
        )
        happens(cluster, MetricReported, row, told)
        which = rng.randrange(3)
        known, cursor = clients[which]
        more = {} if cursor is None else {"since": cursor}
        clients[which] = known, take(known, show(http, **more))
        whole = show(http)["trials"]
        assert list(known.values()) == whole
        one = http.get(f"/api/v1/sweeps/digits/trials/{row}", params=more).json()
        assert one["known"] + len(one["curve"]) == len(whole[row]["curve"])
        assert one["curve"] == whole[row]["curve"][one["known"] :]
        for trial in whole:
            found = [value for _, _, value in trial["curve"] if value is not None]
            assert trial["value"] == max(found, default=None)


def test_of_what_has_not_changed_nothing_is_told_again(http, cluster):
    submit(http)
    submit(http, name="other")
    for number in range(2):
        submit_trial(http, number, key=str(number))
    reports(cluster, 0, 0.1, 0.2)
    cluster.do(cluster.controller.turn)  # what follows from all of that is known now
    first = show(http)
    assert show(http, brief=True)["cursor"] == first["cursor"]
    assert show(http, since=first["cursor"])["trials"] == []
    submit_trial(http, 0, key="of the other", sweep="other")
    reports(cluster, 2, 0.5)
    assert show(http)["cursor"] == first["cursor"], "it is of another search"
    http.post("/api/v1/sweeps/digits/trials/1/stop", json={"why": "it is behind"})
    cluster.do(cluster.controller.turn)
    then = show(http, since=first["cursor"])
    assert [trial["number"] for trial in then["trials"]] == [1]
    assert then["trials"][0]["why"] == "it is behind"
    assert show(http, since=then["cursor"])["trials"] == []


@pytest.mark.parametrize("cursor", ["", "1", "a.b.c", "0.1.1", "9.9.9", "1.-1.0", "\u0663.1.1"])
def test_who_knows_nothing_of_this_controller_s_is_told_all(http, cluster, cursor):
    submit(http)
    submit_trial(http, 0)
    reports(cluster, 0, 0.1)
    assert show(http, since=cursor)["trials"] == show(http)["trials"]


def test_news_of_searches_is_told_and_none_of_what_is_not_theirs(http, cluster):
    heard = []
    cluster.controller.record.searches.on_news = lambda: heard.append(1)

    def news(act):
        heard.clear()
        act()
        return bool(heard)

    job = {"name": "job", "run": "true", "workdir": "/"}
    assert news(lambda: submit(http))
    assert news(lambda: submit_trial(http, 0))
    assert news(lambda: reports(cluster, 0, 0.1))
    assert not news(lambda: happens(cluster, WorkerReported, 0, {"at_s": 1.0}))
    assert not news(lambda: http.post("/api/v1/jobs", json=job))
    assert news(lambda: happens(cluster, NodeJoined, "another", 2, "cpu"))
    end = {"outcome": "DONE", "message": ""}
    assert news(lambda: http.post("/api/v1/sweeps/digits/end", json=end))
    assert not news(lambda: happens(cluster, NodeJoined, "one more", 2, "cpu"))
