"""Hooks beside a controller: added, told, removed, through the API and the program."""

import json
import logging
import threading
from functools import partial

import pytest

from rota.client.client import Client, new_secret
from rota.errors import InputError, NotFoundError, TransitionError
from rota.folder import Folder
from rota.model.events import JobFinished, JobLaunched, NodeJoined
from rota.model.job import JobState
from rota.server.notify import routes, webhook
from rota.store.deliveries import Deliveries
from support.receivers import HANG, receiving
from support.served import controller_without_agents, served


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    return Folder().create()


@pytest.fixture
def noted(monkeypatch):
    """A semaphore that is released whenever the end of a try is written down."""
    it, note = threading.Semaphore(0), Deliveries.note

    def told(self, delivery):
        note(self, delivery)
        it.release()

    monkeypatch.setattr(Deliveries, "note", told)
    return it


@pytest.fixture
def patience(monkeypatch):
    """Tries end by their answers alone."""
    monkeypatch.setattr(webhook, "TIME_LIMIT_S", 600.0)


@pytest.fixture
def cluster(folder, noted, patience):
    with served(folder, controller_without_agents(folder)) as it:
        yield it


@pytest.fixture
def client(cluster, folder):
    with Client(folder=folder) as it:
        yield it


def happens(cluster, event):
    cluster.do(partial(cluster.controller.journal.note, event))
    cluster.do(cluster.controller.turn)


def fails(cluster, row):
    """Let a job have run and failed."""
    cluster.do(cluster.controller.turn)
    happens(cluster, JobLaunched(cluster.controller.now_s(), row, 1))
    happens(cluster, JobFinished(cluster.controller.now_s(), row, JobState.FAILED, 3, "exit 3"))


def joins(cluster, name="new"):
    happens(cluster, NodeJoined(cluster.controller.now_s(), name, 1))


def add(client, receiver, name="team", *on, **more):
    allowed = {"allow_private": True, "secret": receiver.secret} | more
    return client.add_hook(name, webhook=receiver.url, on=on, **allowed)


def test_a_job_tells_the_hook_that_its_job_file_names(cluster, client, noted):
    job = {"run": "true", "workdir": "/", "name": "digits"}
    job["notify"] = [{"on": ["failed", "succeeded"], "webhook": "team"}]
    with receiving() as receiver:
        with pytest.raises(InputError, match=r"notify.webhook: 'team' .* there is none"):
            client.submit(job)
        add(client, receiver)
        with pytest.raises(InputError, match=r"notify.command: 'team' .* there is none"):
            client.check(job | {"notify": [{"on": ["failed"], "command": "team"}]})
        with pytest.raises(InputError, match=r"notify.webhook: 'teem' .* did you mean team\?"):
            client.submit(job | {"notify": [{"on": ["failed"], "webhook": "teem"}]})
        client.submit(job)
        client.submit(job | {"notify": [{"on": ["cancelled"], "webhook": "team"}]})
        fails(cluster, 1)
        fails(cluster, 0)
        assert noted.acquire(timeout=60)
        (told,) = receiver.bodies()
    assert (told["event"], told["job"]["id"], told["job"]["exit_code"]) == ("failed", "1", 3)
    (delivery,) = client.deliveries(hook="team", state="delivered")
    assert (delivery["number"], delivery["job"]) == (told["number"], "1")
    assert (delivery["tries"], delivery["answer"]) == (1, "204")


def test_one_that_hangs_keeps_nobody_else_waiting_and_no_controller(cluster, client, noted):
    with receiving(HANG) as hanging, receiving() as receiver:
        add(client, hanging, "hanging", "node_joined")
        add(client, receiver, "team", "node_joined")
        for number in range(3):
            joins(cluster, f"n{number}")
            assert noted.acquire(timeout=60)
        assert hanging.entered.acquire(timeout=60)
        assert [body["node"] for body in receiver.bodies()] == ["n0", "n1", "n2"]
        assert [hook["delivered"] for hook in client.hooks()] == [0, 3]
        assert len(hanging.calls) == 1
        hanging.release.set()
        for _ in range(3):
            assert noted.acquire(timeout=60)
        assert [body["node"] for body in hanging.bodies()] == ["n0", "n1", "n2"]


def test_the_end_of_a_controller_waits_for_no_receiver_and_the_next_one_delivers(
    folder, noted, patience
):
    with receiving(HANG, 204) as receiver:
        with served(folder, controller_without_agents(folder)) as cluster:
            with Client(folder=folder) as client:
                add(client, receiver, "team", "node_joined")
            joins(cluster)
            assert receiver.entered.acquire(timeout=60)
        assert not [each for each in threading.enumerate() if each.name == "rota-notify"]
        assert not receiver.release.is_set()
        with served(folder, controller_without_agents(folder)):
            assert noted.acquire(timeout=60)
        first, second = receiver.bodies()
    assert first == second


def test_hooks_are_kept_with_the_same_name_once(cluster, client, monkeypatch):
    with receiving() as receiver:
        added = add(client, receiver, "team", "failed", "node_joined")
        assert (added["kind"], added["on"]) == ("webhook", ["failed", "node_joined"])
        add(client, receiver, "team", "failed", "node_joined")
        assert len(client.hooks()) == 1
        with pytest.raises(TransitionError, match=r"a hook team already; .* rota notify remove"):
            add(client, receiver, "team", "failed")
        monkeypatch.setattr(routes, "MOST_HOOKS", 1)
        with pytest.raises(TransitionError, match="there can be no more"):
            add(client, receiver, "other")
        assert client.remove_hook("team")["name"] == "team"
        for call in (client.remove_hook, client.test_hook):
            with pytest.raises(NotFoundError, match="rota notify list"):
                call("team")
        with pytest.raises(NotFoundError, match="write a hook's name"):
            client.test_hook("..")
        with pytest.raises(NotFoundError, match="no hook 'team'"):
            client.deliveries(hook="team")
        with pytest.raises(InputError, match="state: 'late'"):
            client.deliveries(state="late")


def test_a_removed_hook_is_told_nothing_more_and_a_new_one_nothing_of_before(
    cluster, client, noted
):
    with receiving(HANG) as receiver, receiving() as other:
        add(client, receiver, "team", "node_joined")
        joins(cluster, "n0")
        assert receiver.entered.acquire(timeout=60)
        client.remove_hook("team")
        add(client, other, "team", "node_joined")
        joins(cluster, "n1")
        assert noted.acquire(timeout=60)
        assert [body["node"] for body in other.bodies()] == ["n1"]
        assert len(receiver.calls) == 1


def test_no_secret_is_shown_or_logged(cluster, client, noted, folder, rota, caplog):
    with receiving(204, 500) as receiver, caplog.at_level(logging.DEBUG):
        add(client, receiver, "team", "node_joined")
        joins(cluster)
        assert noted.acquire(timeout=60)
        assert not client.test_hook("team")["arrived"]
        told = json.dumps([client.hooks(), client.deliveries()])
        told += "".join(rota("notify", verb, "-o", "json")[1] for verb in ("list", "show"))
    assert '"target": "http://127.0.0.1:' in told
    for text in (told, caplog.text):
        assert "s3cret-path" not in text
        assert receiver.secret not in text


@pytest.fixture
def rota(capsys):
    """Run the program: its exit code, stdout, stderr."""
    from rota.cli.main import main

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(args))
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def test_the_program_adds_tries_lists_and_removes(cluster, rota, noted, tmp_path):
    with receiving(204, 503) as receiver:
        allowed = ("--webhook", receiver.url, "--allow-private")
        code, out, error = rota("notify", "add", "team", "--on", "node_joined, failed", *allowed)
        assert (code, out.startswith("whsec_")) == (0, True)
        assert "try it with: rota notify test team" in error
        assert rota("notify", "test", "team") == (0, "hook team: it has arrived (204)\n", "")
        assert receiver.bodies()[0]["event"] == "test"
        assert rota("notify", "test", "team")[:2] == (1, "hook team: it has not arrived (503)\n")
        joins(cluster)
        assert noted.acquire(timeout=60)
        header, line = rota("notify", "list")[1].splitlines()
        assert header.split()[:4] == ["HOOK", "KIND", "TARGET", "ON"]
        assert line.split()[3:] == ["node_joined,failed", "1", "0", "0", "503"]
        header, line = rota("notify", "show", "team", "--state", "waiting")[1].splitlines()
        assert line.split()[1:6] == ["team", "node_joined", "-", "waiting", "1"]
        assert rota("notify", "show", "-o", "csv")[1].startswith("NUMBER,HOOK,EVENT")
        secret = tmp_path / "secret"
        secret.write_text(new_secret() + "\n")
        more = ("notify", "add", "own", *allowed, "--secret-file", str(secret))
        assert rota(*more)[:2] == (0, "")
        removed = "hook team: removed; 1 deliveries were waiting\n"
        assert rota("notify", "remove", "team") == (0, removed, "")
        assert rota("notify", "remove", "team", "own")[:2] == (1, "hook own: removed\n")


def test_the_program_refuses_what_does_not_go_together(cluster, rota):
    assert rota("notify", "add", "team")[0] == 2
    assert rota("notify", "add", "team", "--webhook", "https://x", "--command", "y")[0] == 2
    code, _, error = rota("notify", "add", "team", "--command", "it", "--allow-private")
    assert (code, "are for a --webhook" in error) == (2, True)


def test_a_command_is_one_that_the_owner_has_put_there(cluster, client, folder, noted):
    with pytest.raises(InputError, match="notify/pager can't be used"):
        client.add_hook("page", command="pager")
    folder.commands.mkdir(mode=0o700)
    program = folder.commands / "pager"
    program.write_text('#!/bin/sh\ncat >> "$(dirname "$0")/told"\n')
    program.chmod(0o700)
    client.add_hook("page", command="pager", on=["node_joined"])
    joins(cluster)
    assert noted.acquire(timeout=60)
    assert json.loads((folder.commands / "told").read_text())["node"] == "new"
    (hook,) = client.hooks()
    assert (hook["kind"], hook["target"], hook["delivered"]) == ("command", "pager", 1)
