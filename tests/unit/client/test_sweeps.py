"""The client's calls about searches, against a real controller that runs nothing."""

import asyncio
import math
import threading

import pytest

from rota.client import client as module
from rota.client.client import Client
from rota.errors import InputError, JobFileError, NotFoundError, TransitionError
from rota.request.sweepfile import parse_sweep
from support.served import controller_without_agents, served

FIELDS = {
    "name": "digits",
    "run": "python train.py --lr {lr}",
    "workdir": "/",
    "sweep": {
        "metric": "loss",
        "goal": "minimize",
        "space": {"lr": {"range": [0, 1]}},
        "algorithm": "manual",
    },
}


@pytest.fixture
def cluster(folder):
    with served(folder, controller_without_agents(folder)) as it:
        yield it


def test_a_search_from_its_fields_or_as_a_request(client):
    begun = client.submit_sweep(FIELDS)
    other = client.submit_sweep(parse_sweep(FIELDS, workdir="/"))
    assert (begun["name"], other["name"]) == ("digits", "digits-2")
    assert begun["request"] == other["request"]
    assert [sweep["name"] for sweep in client.sweeps()] == ["digits", "digits-2"]
    assert client.sweep("@last")["name"] == "digits-2"
    assert client.sweep("digits", brief=True) | {"warnings": []} == begun


def test_the_same_key_is_the_same_search(client):
    assert client.submit_sweep(FIELDS, key="k") == client.submit_sweep(FIELDS, key="k")
    with pytest.raises(JobFileError, match="Idempotency-Key"):
        client.submit_sweep(FIELDS | {"name": "other"}, key="k")


def test_checking_takes_nothing(client):
    assert client.check_sweep(FIELDS)["trial"]["run"] == "python train.py --lr 0.0"
    with pytest.raises(JobFileError, match=r"sweep\.goal"):
        client.check_sweep(FIELDS | {"sweep": FIELDS["sweep"] | {"goal": "up"}})
    assert client.sweeps(everything=True) == []


def test_trials_are_started_and_stopped(client):
    client.submit_sweep(FIELDS)
    jobs = [
        client.submit_trial("digits", {"lr": 0.5}),
        client.submit_trial("digits", {"lr": 0.5}),
        client.submit_trial("digits", {"lr": 0.25}, key="k"),
        client.submit_trial("digits", {"lr": 0.25}, key="k"),
        client.submit_trial("digits", {"lr": 0.125}, number=7),
        client.submit_trial("digits", {"lr": 1}, number=7),
    ]
    names = [f"digits.{number}" for number in (0, 1, 2, 2, 7, 7)]
    assert [job["name"] for job in jobs] == names
    assert [client.stop_trial("digits", 7, "enough")["changed"] for _ in range(2)] == [True, False]
    whole = client.sweep("digits")
    told = whole["trials"][3]
    alone = client.trial("digits", 7)
    assert alone == told | {"cursor": alone["cursor"]}
    assert client.sweep("digits", since=whole["cursor"])["trials"] == []
    assert client.trial("digits", 7, since=alone["cursor"])["known"] == 0
    assert (told["number"], told["params"], told["why"]) == (7, {"lr": 0.125}, "enough")
    for call in (
        lambda: client.stop_trial("digits", 8, "enough"),
        lambda: client.trial("digits", 8),
    ):
        with pytest.raises(NotFoundError, match="no trial 8"):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_what_json_has_no_word_for_is_refused_before_it_is_sent(client, value):
    client.submit_sweep(FIELDS)
    with pytest.raises(InputError, match="can't be sent as JSON"):
        client.submit_trial("digits", {"lr": value})


def test_the_first_end_counts(client):
    client.submit_sweep(FIELDS)
    assert client.end_sweep("digits", "DONE", "all trials have ended")["changed"] is True
    assert client.end_sweep("digits", "FAILED")["changed"] is False
    assert client.cancel_sweep("@last")["changed"] is False
    told = client.sweep("digits")
    assert (told["outcome"], told["message"]) == ("DONE", "all trials have ended")
    with pytest.raises(TransitionError, match="takes no more trials"):
        client.submit_trial("digits", {"lr": 0.5})


@pytest.mark.parametrize(
    "wait",
    [
        lambda client: client.wait_sweep("@last"),
        lambda client: asyncio.run(client.wait_sweep_async("@last")),
    ],
)
def test_waiting_ends_with_the_search(client, folder, monkeypatch, wait):
    client.submit_sweep(FIELDS)
    looked, call = threading.Event(), client._call

    def noted(method, path, **more):
        answer = call(method, path, **more)
        if path == "/sweeps/digits":  # the stream is there: @last was read before
            looked.set()
        return answer

    monkeypatch.setattr(client, "_call", noted)

    def end():
        looked.wait()
        with Client(folder=folder) as other:
            other.submit_sweep(FIELDS)  # which is the newest from now on
            other.cancel_sweep("digits")

    thread = threading.Thread(target=end)
    thread.start()
    ended = wait(client)
    thread.join()
    assert (ended["name"], ended["outcome"], ended["trials"]) == ("digits", "CANCELLED", [])


def test_waiting_is_given_up_after_a_while(client):
    client.submit_sweep(FIELDS)
    with pytest.raises(TimeoutError, match="sweep digits has not ended after 0"):
        client.wait_sweep("digits", timeout_s=0)
    with pytest.raises(TimeoutError, match="sweep digits has not ended after 0"):
        asyncio.run(client.wait_sweep_async("digits", timeout_s=0))


def test_a_search_is_asked_for_again_only_when_something_has_happened(client, monkeypatch):
    client.submit_sweep(FIELDS)
    looks, asked = client.follow_sweep("digits"), []
    first = next(looks)
    monkeypatch.setattr(module, "DRIVER_S", math.inf)
    assert next(looks) == first  # the stream is there
    monkeypatch.setattr(client, "_sweep", lambda *args, **more: asked.append(args) or ended)
    ended = client.cancel_sweep("digits")
    assert list(looks) == [ended]
    assert len(asked) == 1


def test_following_tells_how_it_stands_until_it_has_ended(client):
    client.submit_sweep(FIELDS)
    looks = client.follow_sweep("digits")
    assert next(looks)["trials"]["waiting"] == 0
    client.cancel_sweep("digits")
    assert [told["outcome"] for told in looks] == ["CANCELLED"]


@pytest.mark.parametrize("name", ["../jobs", "a/b", "", "%2e%2e", "\x1b[31m", "digits?brief=true"])
def test_a_name_that_is_none_is_not_found(client, name):
    with pytest.raises(NotFoundError):
        client.sweep(name)
