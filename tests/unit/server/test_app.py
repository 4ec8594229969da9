"""The API's answers, over a real socket."""

import errno
import json
import os
from getpass import getuser

import httpx
import pytest

from rota.live.agent.log_pieces import LONGEST_LINE
from rota.model.events import JobFinished, JobSubmitted
from rota.model.job import JobSpec, JobState
from rota.policy.registry import create
from support.served import StandInController, controller_without_agents, served

JOB = {"run": "python train.py", "workdir": "/tmp"}


def submit(http, key=None, **fields):
    headers = {"Idempotency-Key": key} if key else {}
    return http.post("/api/v1/jobs", json=JOB | fields, headers=headers)


def test_a_submitted_job_is_created_and_shown(http):
    answer = submit(http, name="first", env={"A": "secret-value"}, time_limit="1h")
    assert answer.status_code == 201
    assert (answer.json()["id"], answer.json()["state"]) == ("1", "PENDING")
    shown = http.get("/api/v1/jobs/1").json()
    assert (shown["name"], shown["run"], shown["workdir"]) == ("first", JOB["run"], "/tmp")
    assert shown["time_limit_s"] == 3600
    assert shown["env"] == ["A"]
    assert "secret-value" not in json.dumps(shown)
    assert [event["line"] for event in shown["story"]] == ["submitted"]


def test_the_same_key_is_the_same_job(http):
    assert submit(http, key="k").json()["id"] == submit(http, key="k").json()["id"] == "1"
    assert len(http.get("/api/v1/jobs").json()["jobs"]) == 1


def test_a_key_is_refused_for_another_job(http):
    submit(http, key="k")
    answer = submit(http, key="k", priority=9)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "InputError"


@pytest.mark.parametrize("key", ["x" * 201, "tab\tkey"])
def test_a_key_that_cannot_be_stored_is_refused(http, key):
    assert submit(http, key=key).status_code == 422


def test_a_dry_run_takes_nothing(http):
    answer = http.post("/api/v1/jobs", params={"dry_run": "true"}, json=JOB)
    assert answer.status_code == 200
    assert answer.json()["job"]["run"] == JOB["run"]
    assert http.get("/api/v1/jobs").json()["jobs"] == []


def test_a_plan_says_where_a_job_would_start_and_takes_nothing(http):
    told = http.post("/api/v1/plans", json=JOB).json()
    assert (told["start"], told["gpus"]) == ("now", [{"node": "here", "gpus": [0]}])
    assert (told["job"]["run"], told["policy"]) == (JOB["run"], "fifo")
    assert http.get("/api/v1/jobs").json()["jobs"] == []


def test_a_plan_says_who_is_in_the_way_and_why_a_job_would_wait(folder):
    with served(folder, StandInController(folder, policy="smallest-first")) as cluster:
        token = folder.token.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=cluster.url, headers=headers, trust_env=False) as http:
            submit(http, name="wide", resources={"gpus": 2})
            cluster.do(cluster.controller.turn)
            narrow = http.post("/api/v1/plans", json=JOB).json()
            wide = http.post("/api/v1/plans", json=JOB | {"resources": {"gpus": 2}}).json()
    assert (narrow["start"], narrow["after"]) == ("after", ["1"])
    (displaced,) = narrow["displaces"]
    assert (displaced["name"], displaced["how"], displaced["then"]) == ("wide", "suspended", [])
    assert displaced["gpus"] == [{"node": "here", "gpus": [0, 1]}]
    assert (wide["start"], wide["gpus"], wide["displaces"]) == ("waits", [], [])
    assert wide["verdict"]["reason"] == "WAIT_RESOURCES"


def test_a_plan_of_a_real_controller_leaves_it_as_it_is(folder):
    """It decides on a copy: no event, no id is used up."""
    controller = controller_without_agents(folder)
    with served(folder, controller) as cluster:
        token = folder.token.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=cluster.url, headers=headers, trust_env=False) as http:
            told = http.post("/api/v1/plans", json=JOB).json()
            assert told["start"] == "now"
            assert submit(http).json()["id"] == "1"


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_a_job_that_never_fits_is_told_so(http, dry_run):
    fields = JOB | {"resources": {"gpus": 99}}
    answer = http.post("/api/v1/jobs", params={"dry_run": dry_run}, json=fields)
    assert answer.status_code == 422
    assert answer.json()["code"] == "NeverFitsError"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"run": 1}', b'{"run": "x", "workdir": "relative"}',
     b'{"run": "x", "workdir": "/", "qeue": 1}', b"[" * 100_000, b"\xff\xfe", b"1e999999"],
)  # fmt: skip
def test_a_malformed_job_is_a_problem(http, body):
    answer = http.post("/api/v1/jobs", content=body)
    assert answer.status_code == 422
    assert answer.json()["code"] in ("InputError", "JobFileError")
    assert answer.json()["detail"]


def test_jobs_are_listed_by_state(http, cluster):
    submit(http)
    submit(http)
    submit(http)
    cluster.do(cluster.controller.turn)

    def ids(**params):
        return [job["id"] for job in http.get("/api/v1/jobs", params=params).json()["jobs"]]

    assert ids() == ["1", "2", "3"]
    assert ids(state="pending") == ["3"]
    assert ids(state="RUNNING,PENDING") == ["1", "2", "3"]
    answer = http.get("/api/v1/jobs", params={"state": "RUNING"})
    assert answer.status_code == 422
    assert "RUNNING" in answer.json()["detail"]


def test_jobs_that_ended_long_ago_are_listed_on_request(http, cluster):
    cluster.apply(
        JobSubmitted(1.0, JobSpec("1", 1, 1.0)), JobFinished(2.0, 0, JobState.SUCCEEDED, 0)
    )
    assert http.get("/api/v1/jobs").json()["jobs"] == []
    assert len(http.get("/api/v1/jobs", params={"all": "true"}).json()["jobs"]) == 1


def test_a_loss_that_is_no_number_is_null(http, cluster):
    submit(http)
    report = {"step": 3, "total": 10, "step_time_s": 2.0, "loss": float("nan"), "metrics": {}}
    cluster.do(lambda: cluster.controller.reports.update({0: report}))
    job = http.get("/api/v1/jobs/1").json()
    assert job["progress"]["loss"] is None
    assert job["eta_s"] == [14.0, 28.0]


@pytest.mark.parametrize(
    ("adaptation", "eta_s"),
    [
        ({"size": 50}, [20.0, 40.0]),  # 10 steps of the present batch are left
        (None, [40.0, 80.0]),  # 20 of the mean one
        ({"size": 0}, [40.0, 80.0]),
        ({"size": "50"}, [40.0, 80.0]),
        ({"size": 10**400}, [40.0, 80.0]),
        ("absurd", [40.0, 80.0]),
    ],
    ids=str,
)
def test_time_to_go_is_told_by_samples_where_batches_vary(http, cluster, adaptation, eta_s):
    submit(http)
    report = {"step": 20, "total": None, "samples": 500, "total_samples": 1000}
    report |= {"step_time_s": 2.0, "adaptation": adaptation}
    cluster.do(lambda: cluster.controller.reports.update({0: report}))
    assert http.get("/api/v1/jobs/1").json()["eta_s"] == eta_s


def test_time_to_go_is_unknown_before_the_first_step(http, cluster):
    submit(http)
    report = {"step": 0, "total": None, "samples": 0, "total_samples": 1000, "step_time_s": None}
    cluster.do(lambda: cluster.controller.reports.update({0: report}))
    assert http.get("/api/v1/jobs/1").json()["eta_s"] is None


def test_steering_is_accepted_and_can_be_repeated(http, cluster):
    submit(http)
    for verb, state in (("suspend", "HELD"), ("resume", "PENDING"), ("cancel", "CANCELLED")):
        for repeat in range(2):
            answer = http.post(f"/api/v1/jobs/1/{verb}")
            assert (answer.status_code, answer.json()["state"]) == (202, state)
            assert answer.json()["changed"] is (repeat == 0)


def test_who_asks_is_who_the_call_says_and_else_the_owner_of_the_controller(http, cluster):
    submit(http)
    http.post("/api/v1/jobs", json=JOB, headers={"Rota-User": "bob"})
    assert [spec.user for spec in cluster.controller.state.spec] == [getuser(), "bob"]
    http.post("/api/v1/jobs/1/cancel", headers={"Rota-User": "%C3%A4nne"})
    lines = [event["line"] for event in http.get("/api/v1/jobs/1/events").json()["events"]]
    assert "asked to stop by änne (CANCELLED)" in lines


@pytest.mark.parametrize("user", ["", "x" * 65, "%0A", "a%1Bb"])
def test_a_name_that_would_play_tricks_is_refused(http, user):
    answer = http.post("/api/v1/jobs", json=JOB, headers={"Rota-User": user})
    assert answer.status_code == 422
    assert "Rota-User" in answer.json()["detail"]


def test_a_job_that_has_ended_cannot_be_resumed(http):
    submit(http)
    http.post("/api/v1/jobs/1/cancel")
    answer = http.post("/api/v1/jobs/1/resume")
    assert answer.status_code == 409
    assert answer.json()["code"] == "TransitionError"
    assert "can't be resumed: it ended as CANCELLED at 20" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["", "/explain", "/events", "/logs"])
@pytest.mark.parametrize("job_id", ["7", "%2e%2e", "..%2f..%2ftoken", "a%00b", "%250a", "1;x=1"])
def test_a_job_that_is_not_there_is_a_problem(http, path, job_id):
    answer = http.get(f"/api/v1/jobs/{job_id}{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "NotFoundError"


def test_explain_names_the_blockers(http, cluster):
    for _ in range(3):
        submit(http)
    cluster.do(cluster.controller.turn)
    verdict = http.get("/api/v1/jobs/3/explain").json()
    assert set(verdict) == {
        "job_id", "state", "reason", "sentence", "blockers", "would_start_if", "awaited",
        "position",
        "turns",
        "sharing",
        "resizing",
        "warnings",
        "trials",
        "history",
        "data_wait",
        "cpus",
        "filling",
        "burst",
        "flow",
        "eta",
    }  # fmt: skip
    assert verdict["blockers"][0]["held_by"] == ["1", "2"]
    assert verdict["history"][0]["at_s"] == 1.0


def test_unknown_routes_and_methods_are_problems(http):
    nothing = http.get("/nothing").json()
    assert nothing["code"] == "NotFoundError"
    assert nothing["detail"] == "there is nothing at '/nothing'; /openapi.json lists what there is"
    deletion = http.delete("/api/v1/jobs/1")
    assert (deletion.status_code, deletion.json()["code"]) == (405, "ServerError")
    assert deletion.json()["detail"] == "DELETE can't be used at '/api/v1/jobs/1'; it takes GET"


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        ({"offset": -1}, "offset: '-1' can't be used; it should be greater than or equal to 0"),
        ({"rank": 10**9}, "rank: '1000000000' can't be used; it should be less than or equal to "),
        ({"process": "first"}, "process: 'first' can't be used; it should be a valid integer"),
    ],
)
def test_parameters_that_can_not_be_used_are_named_with_value_and_fix(http, params, detail):
    answer = http.get("/api/v1/jobs/1/logs", params=params)
    assert (answer.status_code, answer.json()["code"]) == (422, "InputError")
    assert answer.json()["detail"].startswith(detail)


def test_an_unexpected_failure_is_a_problem_without_details(http, cluster):
    def broken():
        raise ZeroDivisionError("secret")

    cluster.controller.record.nodes = broken
    answer = http.get("/api/v1/nodes")
    assert answer.status_code == 500
    assert answer.json()["code"] == "ServerError"
    assert "secret" not in answer.text


def test_the_rest_answers(http):
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"ready": True, "nodes": 1}
    assert http.get("/version").json()["api"] == "v1"
    assert http.get("/api/v1/nodes").json()["nodes"][0]["name"] == "here"
    fifo = {"name": "fifo", "settings": {}, "desired_nodes": None, "error": None, "fallback": None}
    assert http.get("/api/v1/policies").json()["policies"] == [fifo]
    assert "/api/v1/jobs" in http.get("/openapi.json").json()["paths"]


def test_settings_of_the_policy_are_told_as_they_are_given(http, cluster):
    cluster.controller.policy_settings = {"nodes": (0, 16), "utility": (0.35, 0.65), "wait_s": 60.0}
    [policy] = http.get("/api/v1/policies").json()["policies"]
    assert policy["settings"] == {"nodes": "0,16", "utility": "0.35,0.65", "wait_s": "60"}


class TestLogs:
    def piece(self, http, **params):
        return http.get("/api/v1/jobs/1/logs", params=params).json()

    def test_there_is_nothing_before_the_start(self, http):
        submit(http)
        piece = self.piece(http)
        assert (piece["text"], piece["attempt"], piece["complete"]) == ("", 0, False)

    def test_pieces_join_to_the_whole_also_amid_characters(self, http, cluster):
        submit(http)
        cluster.do(cluster.controller.turn)
        whole = "schön\n☃ snow 🎿\n" * 3
        cluster.write_log(0, whole.encode())
        text, offset = "", 0
        while True:
            piece = self.piece(http, offset=offset, limit=5)
            if piece["next_offset"] == offset:
                break
            text, offset = text + piece["text"], piece["next_offset"]
        assert text == whole
        assert not piece["complete"]

    def test_half_a_character_waits_for_its_other_half_until_the_end(self, http, cluster):
        submit(http)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"a\xe2\x98")
        assert self.piece(http)["text"] == "a"
        assert self.piece(http)["next_offset"] == 1
        cluster.apply(JobFinished(cluster.controller.now_s(), 0, JobState.FAILED, 1))
        piece = self.piece(http, offset=1)
        assert (piece["text"], piece["next_offset"], piece["complete"]) == ("\ufffd", 3, True)
        assert self.piece(http, offset=3)["complete"]

    @pytest.mark.parametrize(
        ("lines", "text"), [(0, ""), (1, "c\n"), (2, "b\nc\n"), (99, "a\nb\nc\n")]
    )
    def test_the_last_lines(self, http, cluster, lines, text):
        submit(http)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"a\nb\nc\n")
        assert self.piece(http, tail=lines)["text"] == text

    def test_the_tail_of_a_long_log_and_of_one_without_a_last_newline(self, http, cluster):
        submit(http)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"x" * 200_000 + b"\n" + b"y" * 70_000 + b"\nend")
        assert self.piece(http, tail=1)["text"] == "end"
        assert self.piece(http, tail=2)["text"] == "y" * LONGEST_LINE + "\nend"
        assert self.piece(http, tail=6)["text"] == "y" * 70_000 + "\nend"

    @pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
    def test_what_a_job_put_in_its_place_is_not_read(self, http, cluster, folder, kind):
        import os

        submit(http)
        cluster.do(cluster.controller.turn)
        path = cluster.log_path(0)
        if kind == "link":
            path.symlink_to(folder.token)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        answer = http.get("/api/v1/jobs/1/logs")
        assert answer.status_code == 500
        assert folder.token.read_text().strip() not in answer.text


def test_an_ending_tells_who_has_yet_to_end(http, cluster):
    submit(http)
    cluster.do(cluster.controller.turn)
    left = {"jobs": [{"id": "1", "name": "train", "node": "here"}], "agents": ["here"]}
    assert http.get("/api/v1/shutdown").json() == {"ending": False} | left
    answer = http.post("/api/v1/shutdown")
    assert (answer.status_code, answer.json()) == (202, {"ending": True} | left)
    assert http.get("/api/v1/shutdown").json()["ending"] is True
    assert cluster.controller.life == ["start", "end_jobs"]


def test_nodes_are_closed_and_opened(folder):
    with served(folder, controller_without_agents(folder)) as cluster:
        headers = {"Authorization": f"Bearer {folder.token.read_text().strip()}"}
        url = f"{cluster.url}/api/v1/nodes"
        with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
            answer = http.post("/here/cordon")
            assert answer.status_code == 202
            assert (answer.json()["closed"], answer.json()["changed"]) == ("cordoned", True)
            assert http.post("/here/cordon").json()["changed"] is False
            told = http.post("/here/drain", json={"within_s": 60}).json()
            assert told["closed"] == "drained"
            assert told["drain_by_s"] > cluster.controller.now_s()
            for body in ({"within_s": -1}, {"within_s": "soon"}, {"by": 3}, []):
                assert http.post("/here/drain", json=body).status_code == 422
            assert http.post("/there/enable").status_code == 404
            told = http.post("/here/enable").json()
            assert (told["closed"], told["drain_by_s"], told["changed"]) == (None, None, True)


def test_a_lack_of_descriptors_is_a_problem_with_the_fix(monkeypatch, http):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("rota.server.app.explain", fail)
    number = submit(http).json()["id"]
    answer = http.get(f"/api/v1/jobs/{number}/explain")
    assert answer.status_code == 503
    assert answer.json()["code"] == "ShortageError"
    assert "raise ulimit -n" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("quotas", "queue", "warning"),
    [
        ("vision=1;nlp=1", "vison", "queue 'vison' has no quota (did you mean 'vision'?); "),
        ("vision=1;nlp=1", None, "the job names no queue; "),
        ("vision=1;nlp=1", "nlp", None),
        ("vision=1;*=1", "vison", None),
        ("equal", "vison", None),
    ],
)
def test_a_queue_without_a_quota_is_told_if_others_have_one(cluster, http, quotas, queue, warning):
    cluster.controller._policy = create("fifo", {"quotas": quotas})
    asked = JOB | ({} if queue is None else {"queue": queue})
    told = [] if warning is None else [f"{warning}queues with a quota: vision, nlp"]
    for params in ({"dry_run": True}, {}):
        assert http.post("/api/v1/jobs", params=params, json=asked).json()["warnings"] == told
