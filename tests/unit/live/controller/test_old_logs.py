"""Logs of other versions: they are read, or refused with one clear error and left as they are.

``first_log.jsonl`` is what the first version with a live cluster wrote, before events had half of
their present fields: three jobs that took turns; one ended, one was cancelled, one suspended by its
owner when the cluster was shut down.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rota import __version__
from rota.errors import StoreError
from rota.folder import Folder
from rota.live.controller.record import Record
from rota.model.job import JobState
from rota.policy.registry import create
from rota.request.jobfile import parse_job
from rota.store.events import EventStore

from .test_loop import controlled

FIRST_LOG = Path(__file__).with_name("first_log.jsonl")


def records():
    return [json.loads(line) for line in FIRST_LOG.read_text().splitlines()]


def write_log(home, lines):
    """A state folder whose log has these records, as that version left it."""
    folder = Folder(home).create()
    EventStore(folder.database).close()
    with closing(sqlite3.connect(folder.database)) as database:
        rows = [(record.pop("type"), json.dumps(record)) for record in map(dict, lines)]
        database.executemany("INSERT INTO event (type, body) VALUES (?, ?)", rows)
        database.execute("INSERT INTO controller_life DEFAULT VALUES")
        database.commit()
    return folder


def content(folder):
    with closing(sqlite3.connect(folder.database)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("policy", ["gandiva", "fifo", "tiresias"])
def test_the_log_of_the_first_version_is_gone_on_with(tmp_path, policy):
    lines = records()
    lines[1]["name"] = "n"  # the node that the controller of these tests has
    write_log(tmp_path, lines)

    async def scenario():
        async with controlled(tmp_path, create(policy)) as controller:
            states = [JobState(state).name for state in controller.state.state]
            assert states == ["SUCCEEDED", "HELD", "CANCELLED"]
            assert [spec.name for spec in controller.state.spec] == ["short", "train", "other"]
            assert controller.record.progress(1)["step"] == 55
            assert controller.state.epoch == 2
            assert await controller.jobs.resume(1)
            job = parse_job({"run": "true"}, workdir="/")
            assert await controller.jobs.submit(job, user="me", key=None, body_hash="") == 3
            controller.turn()
            assert controller.state.decision_seq > 17, "the policy takes it up"

    asyncio.run(scenario())


def changed(number, **fields):
    def change(lines):
        lines[number - 1] |= fields

    return change


@pytest.mark.parametrize(
    ("change", "number", "why"),
    [
        (changed(8, type="JobTeleported"), 8, "'JobTeleported' is not a kind of event"),
        (changed(8, colour="red"), 8, "a JobLaunched is not as this version writes them"),
        (lambda lines: lines[7].pop("attempt"), 8, "a JobLaunched is not as this version"),
        (changed(9, outcome="DISSOLVED"), 9, "a JobFinished is not as this version"),
        (lambda lines: lines[3]["spec"].update(colour="red"), 4, "a JobSubmitted is not as"),
        (lambda lines: lines[5]["command"].update(type="Teleport"), 6, "a CommandSent is not as"),
        (changed(8, row=1), 8, "a JobLaunched can't follow what was before it"),
        (changed(2, num_gpus=0), 6, "a CommandSent can't follow what was before it"),
    ],
    ids=[
        "an unknown event",
        "an unknown field",
        "a missing field",
        "an unknown outcome",
        "an unknown field of a job",
        "an unknown command",
        "an event out of place",
        "a command without GPUs for it",
    ],
)
def test_what_this_version_does_not_know_is_refused_and_left_as_it_is(
    tmp_path, change, number, why
):
    lines = records()
    change(lines)
    folder = write_log(tmp_path, lines)
    before = content(folder)
    with closing(EventStore(folder.database)) as store, pytest.raises(StoreError) as refusal:
        Record(store, folder)
    said = str(refusal.value)
    assert said.startswith(
        f"{folder.database}: event {number} can't be read by this version of Rota, {__version__}: "
    )
    assert why in said
    assert "use the version that wrote the log or a newer one" in said
    assert content(folder) == before
