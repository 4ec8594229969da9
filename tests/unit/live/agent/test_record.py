"""What an agent writes down of an attempt is what the agent after it reads."""

import json

import pytest

from rota.live.agent.method import CHECKPOINT, Method
from rota.live.agent.record import VERSION, Checkpoint, Vacated, json_of, record_from

OF_BEFORE = {  # as agents wrote it before records had a version
    "job_id": "5",
    "attempt": 2,
    "launch": "a1 1.0",
    "name": "train",
    "program": {"run": "python train.py", "workdir": "/", "env": {}, "processes": "gpu"},
    "gpus": [2],
    "slots": 3,
    "members": [2],
    "leaders": [0, 2],
    "generation": 4,
    "max_world": 4,
    "adapt": None,
    "visible": [0, 1, 2],
    "movable": True,
    "suspension": "boundary",
    "method": ["cuda-checkpoint", "it asked for that"],
    "launched_s": 100.5,
    "boot_id": "boot",
    "secret": "ab",
    "lives": {"2": 1},
    "suspended_s": 200.5,
    "stays": False,
    "frozen": False,
    "keeps": None,
    "checkpoint": {"gpus": [2], "moves": True},
    "vacated": {"arenas": {"2": "/dev/shm/a"}, "bytes": 7, "step": 3, "at_s": 201.0},
    "batch": None,
}


def test_a_record_of_an_agent_of_before_is_taken_over():
    record = record_from(OF_BEFORE)
    assert record.version == VERSION
    assert record.vacated == Vacated({"2": "/dev/shm/a"}, 7, 201.0, step=3)
    assert record.checkpoint == Checkpoint([2], moves=True)
    assert record.method == Method(CHECKPOINT, "it asked for that")
    assert (record.suspended_s, record.leaders, record.lives) == (200.5, [0, 2], {"2": 1})


def test_a_record_is_read_as_it_was_written():
    record = record_from(OF_BEFORE)
    assert record_from(json.loads(json.dumps(json_of(record)))) == record


def test_the_fields_that_the_controller_reads_are_always_written():
    least = {name: OF_BEFORE[name] for name in ("job_id", "attempt", "slots", "members", "gpus")}
    least |= {"max_world": 1, "movable": False, "visible": None, "suspension": "process"}
    assert json_of(record_from(least)).keys() >= {"version", "members", "gpus", "slots", "leaders"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"slots": "3"}, r"slots"),
        ({"members": [0, None]}, r"members\[1\]"),
        ({"vacated": {"arenas": {}, "bytes": None}}, r"vacated"),
        ({"version": VERSION + 1}, "version: 2 is not known here; it must be 1"),
    ],
)
def test_a_record_that_no_agent_writes_is_refused_by_the_field(change, what):
    with pytest.raises(ValueError, match=what):
        record_from(OF_BEFORE | change)


@pytest.mark.parametrize("raw", [None, [], "record", 5])
def test_what_is_no_object_is_no_record(raw):
    with pytest.raises(ValueError, match="must be an object"):
        record_from(raw)
