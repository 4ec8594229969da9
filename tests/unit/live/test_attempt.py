"""What an agent takes from a worker's account of its model, and keeps."""

import asyncio
import json
import os
import subprocess

import pytest

from rota.folder import Folder
from rota.live.agent import account, ending
from rota.live.agent.attempt import Attempt
from rota.live.wire.clock import boottime_s

SIZES = {"model_bytes": 400, "largest_tensor_bytes": 100}


class Kept:
    """An attempt of two ranks in a folder, and what its controller heard."""

    def __init__(self, folder):
        self.folder, self.heard = folder, []
        record = {"job_id": "5", "attempt": 2, "suspension": "process"}
        record |= {"slots": 2, "members": [0, 1], "generation": 0, "max_world": 1}
        record |= {"movable": True, "visible": None, "gpus": [0, 1]}
        self.attempt = Attempt(record, folder, self.heard.append)
        self.attempt.save()

    def written(self):
        return json.loads((self.folder / "attempt.json").read_text()).get("model")


@pytest.fixture
def kept(tmp_path):
    folder = Folder(tmp_path).attempt("here", "5", 2)
    folder.mkdir(parents=True)
    return Kept(folder)


def test_the_sizes_that_rank_0_tells_are_passed_on_and_kept_for_the_next_agent(kept):
    kept.attempt.heard(0, {"type": "model", **SIZES})
    assert kept.heard == [{"type": "model", "job_id": "5", "attempt": 2, **SIZES}]
    assert kept.attempt.model_report() == kept.heard[0]
    assert kept.written() == SIZES


def test_sizes_come_by_the_hello_too_and_are_passed_on_once(kept):
    hello = {"suspended": False, "model": SIZES}
    kept.attempt.joined(0, None, hello)
    kept.attempt.joined(0, None, hello)
    kept.attempt.heard(0, {"type": "model", **SIZES})
    assert [message["type"] for message in kept.heard] == ["model"]


def test_other_ranks_and_workers_without_sizes_tell_nothing(kept):
    kept.attempt.heard(1, {"type": "model", **SIZES})
    kept.attempt.joined(0, None, {"suspended": False})
    kept.attempt.joined(0, None, {"suspended": False, "model": None})
    assert (kept.heard, kept.attempt.model_report(), kept.written()) == ([], None, None)


@pytest.mark.parametrize(
    "sizes", [{}, {"model_bytes": 4}, {"model_bytes": 4, "largest_tensor_bytes": 5}]
)
def test_sizes_that_no_model_has_are_passed_over(kept, sizes):
    kept.attempt.heard(0, {"type": "model", **sizes})
    kept.attempt.joined(0, None, {"suspended": False, "model": sizes})
    assert kept.heard == []


def test_a_program_that_never_stops_telling_is_not_heard_for_ever(kept, monkeypatch):
    monkeypatch.setattr(account, "MAX_MODEL_REPORTS", 5)
    for size in range(1, 100):
        kept.attempt.heard(0, {"type": "model", "model_bytes": size, "largest_tensor_bytes": 1})
    assert len(kept.heard) == 5


def test_a_full_disk_does_not_keep_sizes_from_the_controller(kept, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.attempt, "save", full)
    kept.attempt.heard(0, {"type": "model", **SIZES})
    assert len(kept.heard) == 1


REPORT = {"type": "report", "step": 9, "total": 9, "metrics": {}, "at_s": 1.0}


def over(kept):
    """Both ranks have ended, and their shims have written that down."""
    for index in (0, 1):
        (kept.folder / f"rank{index}.exit").write_text('{"code": 0, "at_s": 2.0}')
        kept.attempt.ranks[index].read_exit()


def test_the_last_report_comes_with_the_end_however_late_it_is_read(kept):
    async def story():
        kept.attempt.ranks[0].writer = writer = object()
        over(kept)
        kept.attempt.check_end()
        assert kept.heard == []
        kept.attempt.heard(0, REPORT)
        kept.attempt.left(0, writer)
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    asyncio.run(story())
    assert [message["type"] for message in kept.heard] == ["ended"]
    assert kept.heard[0]["progress"]["step"] == 9


@pytest.mark.parametrize("more", ["", "\n", '{"step": 9', "[]\n", '{"step": -1, "at_s": 1.0}\n'])
def test_the_next_agent_knows_the_last_report_that_is_whole(kept, more):
    with open(kept.folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(REPORT | {"step": 8}) + "\n" + json.dumps(REPORT) + "\n" + more)
    assert kept.attempt.last_report() == {"step": 9, "total": 9, "metrics": {}, "at_s": 1.0}


def test_where_nothing_was_reported_there_is_no_last_report(kept):
    assert kept.attempt.last_report() == {}


def test_after_a_reboot_whoever_has_the_pids_of_an_attempt_is_left_alone(kept):
    async def story():
        kept.attempt.adopt()
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        pids = {"shim": other.pid, "worker": other.pid, "boottime_s": boottime_s()}
        for index in (0, 1):
            (kept.folder / f"rank{index}.pid").write_text(json.dumps(pids))
        kept.attempt.record["boot_id"] = "of another boot"
        asyncio.run(story())
        assert other.poll() is None
        other.kill()
    (lost,) = kept.heard
    assert (lost["type"], lost["started"], lost["rebooted"]) == ("lost", True, True)
    assert "at_s" not in lost, "nobody knows when"


def test_an_attempt_that_ended_before_the_machine_was_rebooted_has_ended(kept):
    over(kept)
    kept.attempt.record["boot_id"] = "of another boot"

    async def story():
        kept.attempt.adopt()
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    asyncio.run(story())
    assert [message["type"] for message in kept.heard] == ["ended"]


@pytest.mark.parametrize("newer", [False, True])
def test_what_is_newer_than_the_attempt_is_a_checkpoint(kept, tmp_path, newer):
    checkpoint = Folder(tmp_path).checkpoints("5") / "a"
    checkpoint.parent.mkdir(parents=True)
    for file, at_s in ((checkpoint, 110.0 if newer else 90.0), (kept.folder / "rank0.pid", 100.0)):
        file.touch()
        os.utime(file, (at_s, at_s))
    kept.attempt.ending.lose("on purpose")
    assert kept.heard[0]["checkpointed"] == newer
    assert kept.heard[0]["at_s"] > 0, "this agent saw it"


def test_a_connection_that_stays_open_does_not_keep_an_attempt_from_ending(kept, monkeypatch):
    async def story():
        kept.attempt.ranks[0].writer = object()
        over(kept)
        kept.attempt.check_end()
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(ending, "LAST_WORDS_S", 0.01)
    asyncio.run(story())
    assert [message["type"] for message in kept.heard] == ["ended"]


def test_a_program_that_cuts_its_batches_anew_for_ever_is_not_heard_for_ever(kept, monkeypatch):
    monkeypatch.setattr(account, "MAX_SHARD_REPORTS", 5)
    kept.attempt.elastic = object()
    kept.attempt.tell_registration = lambda: kept.heard.append(kept.attempt.shards)
    for shards in [*range(1, 50), 5]:
        kept.attempt.note_shards({"type": "elastic", "shards": shards})
    assert kept.heard == [1, 2, 3, 4, 5]
