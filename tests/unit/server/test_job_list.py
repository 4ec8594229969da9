"""Lists of jobs by filters and in pages, against a list made without an index."""

import itertools
import time

import pytest

from rota.client.client import Client
from rota.folder import Folder
from rota.model.events import JobFinished, JobSubmitted
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.model.sweep import Sweep, SweepTrial
from rota.server import jobs
from support.served import StandInController, served

NUM_JOBS = 60
ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
TRIAL = SweepTrial(Sweep("search", "loss"), 3)


@pytest.fixture
def controller(cluster):
    """60 jobs; two thirds have ended, half of these within the hour."""
    now_s = time.time()
    for row in range(NUM_JOBS):
        spec = JobSpec(
            *(f"j{row}", 1, now_s - 1e5),
            name=f"name-{row % 4}",
            user=f"user-{row % 3}",
            vc=f"queue-{row % 2}",
            tags=("all", f"tag-{row % 5}"),
            trial=TRIAL if row % 10 == 0 else None,
        )
        cluster.apply(JobSubmitted(spec.submit_s, spec))
    for row in range(NUM_JOBS):
        if row % 3:
            finish_s = now_s - (60.0 if row % 2 else 5e4)
            cluster.apply(JobFinished(finish_s, row, ENDS[row % len(ENDS)]))
    return cluster.controller


def listed(http, **params):
    answer = http.get("/api/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_hand(state, everything, states, takes):
    """The ids that a list must have, looked for in all jobs."""
    return [
        spec.job_id
        for row, spec in enumerate(state.spec)
        if takes(spec)
        and (
            JobState(state.state[row]).name in states
            if states
            else everything
            or not JobState(state.state[row]).is_final
            or state.finish_s[row] > time.time() - jobs.RECENT_S
        )
    ]


FILTERS = {
    "": ({}, lambda spec: True),
    "queue": ({"queue": "queue-1"}, lambda spec: spec.vc == "queue-1"),
    "user": ({"user": "user-2"}, lambda spec: spec.user == "user-2"),
    "tag": ({"tag": "tag-4"}, lambda spec: "tag-4" in spec.tags),
    "name": ({"name": "name-3"}, lambda spec: spec.name == "name-3"),
    "sweep": ({"sweep": "search"}, lambda spec: spec.trial is not None),
    "none": ({"user": "nobody"}, lambda spec: False),
}
STATES = ([], ["PENDING"], ["FAILED"], ["CANCELLED", "PENDING", "SUCCEEDED"], ["RUNNING"])


@pytest.mark.parametrize("newest", [False, True])
def test_pages_together_are_the_list_whatever_is_asked_for(controller, http, newest):
    for (params, takes), states, everything in itertools.product(
        FILTERS.values(), STATES, (False, True)
    ):
        asked = params | {"newest": newest, "all": everything, "fields": "id"}
        if states:
            asked["state"] = ",".join(states)
        expected = by_hand(controller.state, everything, states, takes)
        if newest:
            expected.reverse()
        assert [job["id"] for job in listed(http, **asked)["jobs"]] == expected
        seen, cursor = [], {}
        while True:
            page = listed(http, **asked, limit=7, **cursor)
            assert len(page["jobs"]) <= 7
            seen += [job["id"] for job in page["jobs"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert seen == expected


def test_jobs_that_come_and_end_between_pages_move_no_others(cluster, controller, http):
    first = listed(http, limit=5, state="PENDING")
    for row in (0, 3, 30):
        cluster.apply(JobFinished(time.time(), row, JobState.SUCCEEDED))
    spec = JobSpec("new", 1, time.time())
    cluster.apply(JobSubmitted(spec.submit_s, spec))
    second = listed(http, limit=100, state="PENDING", cursor=first["cursor"])
    assert [job["id"] for job in first["jobs"]] == ["j0", "j3", "j6", "j9", "j12"]
    rest = [f"j{row}" for row in range(15, NUM_JOBS, 3) if row != 30]
    assert [job["id"] for job in second["jobs"]] == [*rest, "new"]
    ended = listed(http, state="SUCCEEDED", newest=True, limit=100, fields="id")["jobs"]
    assert {"j0", "j3", "j30"} <= {job["id"] for job in ended}


def test_a_job_that_ended_an_hour_ago_is_listed_no_longer(cluster, controller, http, monkeypatch):
    before = len(listed(http)["jobs"])
    monkeypatch.setattr(controller, "now_s", lambda: time.time() + jobs.RECENT_S)
    assert len(listed(http)["jobs"]) == NUM_JOBS // 3 < before


def test_jobs_are_chosen_by_id_whether_or_not_they_go_on(controller, http):
    asked = {"id": "j4, j2,j3,nobody", "fields": "id"}
    assert [job["id"] for job in listed(http, **asked)["jobs"]] == ["j2", "j3", "j4"]
    assert [job["id"] for job in listed(http, **asked, user="user-0")["jobs"]] == ["j3"]
    assert [job["id"] for job in listed(http, **asked, state="PENDING")["jobs"]] == ["j3"]
    page = listed(http, **asked, limit=2)
    assert [job["id"] for job in listed(http, **asked, cursor=page["cursor"])["jobs"]] == ["j4"]


def test_fields_are_those_of_a_summary(controller, http):
    (job,) = listed(http, limit=1, fields="state, id")["jobs"]
    assert job == {"state": "PENDING", "id": "j0"}
    (job,) = listed(http, limit=1)["jobs"]
    assert tuple(job) == jobs.SUMMARY_FIELDS


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"fields": "id,stat"}, "did you mean 'state'"),
        ({"limit": 0}, "limit: '0'"),
        ({"limit": 10001}, "limit: '10001'"),
        ({"cursor": "x"}, "cursor: 'x'"),
        ({"cursor": -1}, "cursor: '-1'"),
        ({"state": "RUNING"}, "did you mean RUNNING"),
        ({"user": "x" * 201}, "user: "),
        ({"id": "7," * 500}, "ask for 500 or fewer"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(http, params, fault):
    answer = http.get("/api/v1/jobs", params=params)
    assert answer.status_code == 422
    assert fault in answer.json()["detail"]


def test_jobs_that_wait_tell_their_place_in_the_policy_s_order(tmp_path, monkeypatch):
    made = []
    copies = ClusterState.copy

    def copy(state):
        made.append(state)
        return copies(state)

    folder = Folder(tmp_path).create()
    controller = StandInController(folder, policy="smallest-first")
    with served(folder, controller) as it, Client(folder=folder) as client:
        for gpus in (2, 2, 1, 2, 1):
            client.submit({"run": "true", "workdir": "/tmp", "resources": {"gpus": gpus}})
        it.do(controller.turn)
        monkeypatch.setattr(ClusterState, "copy", copy)
        places = {job["id"]: job["position"] for job in client.jobs()}
        assert places == {"3": None, "5": None, "1": 1, "2": 2, "4": 3}
        assert len(made) == 1
        assert client.job("4")["position"] == client.explain("4")["position"] == 3
        assert client.job_page(limit=1, fields=["position"]).jobs == [{"position": 1}]
        assert len(made) == 1
