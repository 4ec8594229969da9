"""What an agent takes from a worker's account of its model, and keeps."""

import asyncio
import json
import logging
import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attempts import attempt_in

from rota.folder import Folder
from rota.live.agent import attempt_report as account
from rota.live.agent import ending
from rota.live.wire import COMPUTING, EVALUATING, WAITING
from rota.live.wire.clock import boottime_s
from rota.live.wire.messages import planned_of
from rota.live.wire.places import STRIDE
from rota.train.pulse import Pulse

SIZES = {"model_bytes": 400, "largest_tensor_bytes": 100}


class Kept:
    """An attempt of two ranks in a folder, and what its controller heard."""

    def __init__(self, folder):
        self.folder, self.heard = folder, []
        record = {"job_id": "5", "attempt": 2, "suspension": "process"}
        record |= {"slots": 2, "members": [0, 1], "generation": 0, "max_world": 1}
        record |= {"movable": True, "visible": None, "gpus": [0, 1]}
        self.attempt = attempt_in(folder, record, self.heard.append)
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


PLAN = {"batch": 32, "step_s": [0.5, 0.25], "idle": [0.0, 0.625]}


def test_a_plan_of_layers_is_passed_on_once_and_kept_for_the_next_agent(kept):
    kept.attempt.heard(0, {"type": "planned", **PLAN, "other": 1})
    kept.attempt.joined(0, None, {"suspended": False, "planned": PLAN})
    kept.attempt.heard(1, {"type": "planned", **PLAN, "batch": 16})
    assert kept.heard == [{"type": "planned", "job_id": "5", "attempt": 2, **PLAN}]
    assert kept.attempt.planned_report() == kept.heard[0]
    assert json.loads((kept.folder / "attempt.json").read_text())["planned"] == PLAN


def test_idle_parts_are_told_in_the_order_of_the_gpus(kept):
    kept.attempt.record.gpus = [3, 1]  # of ranks 0 and 1
    kept.attempt.heard(0, {"type": "planned", **PLAN})
    assert [message["idle"] for message in kept.heard] == [[0.625, 0.0]]
    kept.attempt.record.gpus = [1, 3]
    kept.attempt.done(7)
    assert [message["type"] for message in kept.heard[1:]] == ["done", "planned"]
    assert kept.heard[-1]["idle"] == [0.0, 0.625]


def test_a_plan_for_other_ranks_waits_until_these_are_there(kept):
    kept.attempt.heard(0, {"type": "planned", **PLAN, "idle": [0.0]})
    assert (kept.heard, kept.attempt.planned_report()) == ([], None)
    kept.attempt.record.gpus = [0]
    kept.attempt.done(7)
    assert kept.heard[-1]["idle"] == [0.0]


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "batch": st.none() | st.integers() | st.floats(),
                "step_s": st.lists(st.none() | st.floats() | st.text(), max_size=3),
                "idle": st.lists(st.floats() | st.text(), max_size=3) | st.floats(),
            },
        ).filter(lambda told: planned_of(told) is None),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_no_plan_is_left_out_with_one_warning(garbage):
    with tempfile.TemporaryDirectory() as folder, warnings() as told:
        kept = Kept(Path(folder))
        for wrong in garbage:
            kept.attempt.heard(0, {"type": "planned", **wrong})
            kept.attempt.joined(0, None, {"suspended": False, "planned": wrong})
        assert kept.heard == []
        kept.attempt.heard(0, {"type": "planned", **PLAN})
    assert [message["batch"] for message in kept.heard] == [32]
    assert told == ["job 5: a plan of layers that is no plan is left out"]


@contextmanager
def warnings():
    """The warnings that agents log meanwhile."""
    told, handler = [], logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    account.log.addHandler(handler)
    try:
        yield told
    finally:
        account.log.removeHandler(handler)


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


@pytest.mark.parametrize(
    ("code", "grace_s", "words"),
    [
        (0, 60.0, ""),
        (-15, 60.0, ""),
        (3, 60.0, "it ended with exit code 3 after SIGTERM"),
        (-11, 60.0, "it was killed by SIGSEGV after SIGTERM"),
        (-9, 60.0, "it was killed when its grace of 1m was over"),
        (-9, 0.0, "it was killed at once"),
    ],
)
def test_how_a_program_ends_that_is_asked_to_is_told(kept, code, grace_s, words):
    kept.attempt.stopping, kept.attempt.grace_s = True, grace_s
    for index in (0, 1):
        exit_ = {"code": code, "at_s": 2.0}
        (kept.folder / f"rank{index}.exit").write_text(json.dumps(exit_))
        kept.attempt.ranks[index].read_exit()
    kept.attempt.check_end()
    (ended,) = kept.heard
    assert (ended["exit_code"], ended["message"]) == (code, words)


@pytest.mark.parametrize("asked", [True, False])
def test_ranks_that_were_asked_to_end_keep_their_grace_when_another_has_ended(kept, asked):
    kept.attempt.stopping = asked
    (kept.folder / "rank0.exit").write_text(json.dumps({"code": -15, "at_s": 2.0}))
    kept.attempt.ranks[0].read_exit()
    killed = []
    kept.attempt.kill_ranks = lambda *_: killed.append(True)
    kept.attempt.ranks[1].shim = os.getpid()
    kept.attempt.check_end()
    assert killed == ([] if asked else [True])


@pytest.mark.parametrize(
    ("asked", "code", "is_killed"),
    [(False, -9, True), (True, -15, False), (False, 0, False), (False, 1, False)],
)
def test_ranks_of_other_nodes_follow_an_end_and_no_loss(kept, asked, code, is_killed):
    kept.attempt.stopping = asked
    kept.attempt.record.gpus = [STRIDE, STRIDE + 1]
    (kept.folder / "rank0.exit").write_text(json.dumps({"code": code, "at_s": 2.0}))
    kept.attempt.ranks[0].read_exit()
    kept.attempt._settled(None, None, "a member ended", 0)
    assert (kept.attempt.record.killed is not None) == is_killed


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
        kept.attempt.record.boot_id = "of another boot"
        asyncio.run(story())
        assert other.poll() is None
        other.kill()
    (lost,) = kept.heard
    assert (lost["type"], lost["started"], lost["rebooted"]) == ("lost", True, True)
    assert "at_s" not in lost, "nobody knows when"


def test_an_attempt_that_ended_before_the_machine_was_rebooted_has_ended(kept):
    over(kept)
    kept.attempt.record.boot_id = "of another boot"

    async def story():
        kept.attempt.adopt()
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    asyncio.run(story())
    assert [message["type"] for message in kept.heard] == ["ended"]


@pytest.mark.parametrize("first", ["killed", "ended"])
def test_a_gang_whose_agent_died_before_all_ranks_were_forked_never_started(kept, first):
    """The first rank was; the next agent has to kill it, or it has come to an end meanwhile."""
    with subprocess.Popen(["true"], start_new_session=True) as shim:
        pass
    pids = {"shim": shim.pid, "worker": shim.pid, "boottime_s": boottime_s()}
    (kept.folder / "rank0.pid").write_text(json.dumps(pids))
    if first == "ended":
        (kept.folder / "rank0.exit").write_text('{"code": 0, "at_s": 2.0}')

    async def story():
        kept.attempt.adopt()
        while kept.attempt.ended is None:
            await asyncio.sleep(0.001)

    asyncio.run(story())
    (lost,) = kept.heard
    assert (lost["type"], lost["error"], lost["started"]) == ("lost", "it never started", False)


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
    kept.attempt.record.max_world = 4
    kept.attempt.tell_registration = lambda: kept.heard.append(kept.attempt.shards)
    for shards in [*range(1, 50), 5]:
        kept.attempt.note_shards({"type": "elastic", "shards": shards})
    assert kept.heard == [1, 2, 3, 4, 5]


class Connection:
    """A worker's connection, which keeps what it is told."""

    def __init__(self):
        self.told, self.open = [], True

    def is_closing(self):
        return not self.open

    def write(self, line):
        self.told.append(json.loads(line)["type"])

    def close(self):
        self.open = False


HELLO = {"suspended": False, "model": None}


def suspension(kept):
    return [(m["suspension"], m["why"]) for m in kept.heard if m["type"] == "registered"][-1]


def test_a_second_session_of_a_rank_takes_the_place_of_none(kept):
    first, other, beside = Connection(), Connection(), Connection()
    kept.attempt.state = "running"
    kept.attempt.joined(0, first, HELLO)
    kept.attempt.joined(1, other, HELLO)
    assert suspension(kept) == ("boundary", "all its ranks use rota.train")
    kept.attempt.joined(0, beside, HELLO)
    kind, why = suspension(kept)
    assert kind == "process"
    assert why.startswith("rank 0 has several sessions of rota.train at once; ")
    assert kept.attempt.ranks[0].writer is first
    kept.attempt.pausing.suspend(1)
    assert (first.told, other.told, beside.told) == (["resume"], ["resume"], [])
    assert kept.attempt.state == "suspended"
    assert kept.attempt.record.frozen
    kept.attempt.left(0, beside)
    assert suspension(kept) == ("boundary", "all its ranks use rota.train")


def test_who_had_a_session_beside_another_comes_anew_when_that_is_over(kept):
    first, beside = Connection(), Connection()
    kept.attempt.state = "running"
    kept.attempt.joined(1, Connection(), HELLO)
    kept.attempt.joined(0, first, HELLO)
    kept.attempt.joined(0, beside, HELLO)
    kept.attempt.left(0, first)
    assert not beside.open
    kept.attempt.left(0, beside)
    assert not kept.attempt.cooperates
    kept.attempt.joined(0, again := Connection(), HELLO)
    assert kept.attempt.cooperates
    assert kept.attempt.ranks[0].writer is again


def test_a_session_whose_process_has_ended_makes_room_although_a_child_holds_it(kept):
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept.attempt.state = "running"
    kept.attempt.joined(1, Connection(), HELLO)
    kept.attempt.joined(0, Connection(), HELLO, ended.pid)
    kept.attempt.joined(0, Connection(), HELLO, os.getpid())
    assert suspension(kept)[0] == "boundary"


def test_while_it_pauses_a_second_session_has_it_stopped_where_it_is(kept):
    first, other = Connection(), Connection()
    kept.attempt.state = "running"
    kept.attempt.record.launched_s = 0.0

    async def story():
        kept.attempt.joined(0, first, HELLO)
        kept.attempt.joined(1, other, HELLO)
        kept.attempt.pausing.suspend(1)
        assert kept.attempt.state == "suspending"
        kept.attempt.joined(0, Connection(), HELLO)

    asyncio.run(story())
    assert first.told == other.told == ["pause", "resume"]
    assert kept.attempt.state == "suspended"
    assert kept.attempt.record.frozen


def test_a_job_whose_other_processes_have_device_memory_stays_on_its_gpus(kept, monkeypatch):
    attempt, rank = kept.attempt, kept.attempt.ranks[0]
    attempt.record.visible, attempt.record.suspension = [0, 1], "boundary"
    monkeypatch.setattr(rank, "below", lambda spared: {41})
    for holders, movable in (({7}, True), ({7, 41}, False)):
        attempt.holders = lambda holders=holders: holders
        attempt.state = "suspending"
        attempt.pausing.has_left(1.0)
        told = [m for m in kept.heard if m["type"] == "registered"][-1]
        assert (told["movable"], told["portable"]) == (movable, movable)
        assert ("device memory" in told["why"]) is not movable


def test_of_a_program_that_reports_without_end_the_last_reports_are_kept(kept, monkeypatch):
    report = {"type": "report", "at_s": 1.0, "samples": 0, "metrics": {}}
    monkeypatch.setattr(account, "MOST_METRICS_BYTES", 1000)
    for step in range(200):
        kept.attempt.heard(0, report | {"step": step})
    file = kept.folder / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in file.read_text().splitlines()]
    assert steps == list(range(steps[0], 200))
    assert 300 < file.stat().st_size <= 1000


def test_processes_that_can_not_be_stopped_are_told(kept):
    kept.attempt.state = "suspending"
    kept.attempt.ranks[1].unstopped = 2
    kept.attempt.pausing.has_left(1.0)
    assert "; 2 of its processes can't be stopped: another user's" in suspension(kept)[1]


def test_a_suspension_that_is_asked_for_again_meanwhile_is_answered_once(kept):
    """The controller repeats its command to an agent whose connection was lost."""
    first, other = Connection(), Connection()
    kept.attempt.state = "running"

    async def story():
        kept.attempt.joined(0, first, HELLO)
        kept.attempt.joined(1, other, HELLO)
        kept.attempt.pausing.suspend(7)
        kept.attempt.pausing.suspend(8)
        for rank in (0, 1):
            kept.attempt.heard(rank, {"type": "suspended", "step": 3, "stopped_s": 1.0})

    asyncio.run(story())
    assert first.told == ["pause"]
    answers = [m for m in kept.heard if "command_id" in m]
    assert [(m["type"], m["command_id"]) for m in answers] == [("done", 8)]


def test_times_of_steps_that_can_not_be_are_left_out_with_one_warning(kept, caplog):
    report = {"type": "report", "at_s": 1.0, "step": 3, "metrics": {}, "loss": 0.5}
    sound = {"steps": 4, "step_s": 0.5, "wait_s": 0.2, "since_s": 0.5, "workers": 2}
    for wait_s in (0.75, -1.0, float("nan")):
        phases = {"train": sound | {"wait_s": wait_s}}
        kept.attempt.heard(0, report | {"phases": phases})
        assert kept.attempt.progress == {"at_s": 1.0, "step": 3, "metrics": {}, "loss": 0.5}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("job 5: ")
    assert "phases.train.wait_s: 0.75 s is more than the whole step's 0.5 s" in line
    kept.attempt.heard(0, report | {"phases": {"train": sound}})
    assert kept.attempt.progress["phases"] == {"train": sound}


def test_the_phase_of_a_job_is_that_of_the_pulse_of_its_first_rank(kept):
    assert kept.attempt.phase is None, "it has no session"
    pulse = Pulse(str(kept.folder / "rank0.pulse"))
    for phase, told in ((WAITING, "train"), (EVALUATING, "evaluate"), (COMPUTING, "train")):
        pulse.enter(phase)
        assert kept.attempt.phase == told
