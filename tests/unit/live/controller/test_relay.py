import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.controller.record import Record
from rota.live.controller.relay import migration, pass_on, pass_piece_on
from rota.live.wire import pack
from rota.model.job import JobState as S
from rota.store.events import EventStore
from support.driven import cluster_with_a_job_that_is, cluster_with_a_job_that_leaves

FETCH = {"type": "fetch", "node": "node0", "job_id": "the-job", "attempt": 1, "want": "state"}
FETCHED = {"type": "fetched", "node": "node1", "job_id": "the-job", "attempt": 1, "wait": True}


@pytest.fixture
def record(tmp_path):
    """The job of row 0 is on its way from node0 to node1."""
    store = EventStore(tmp_path / "rota.db")
    made = Record(store, Folder(tmp_path))
    made.state = cluster_with_a_job_that_is(S.MIGRATING).state
    made.rows = {"the-job": 0}
    for node in ("node0", "node1"):
        made.outboxes.open(node, None)
    yield made
    store.close()


def heard(record, node):
    outbox, found = record.outboxes.queues[node], []
    while not outbox.empty():
        found.append(outbox.get_nowait())
    return found


def test_a_question_goes_to_the_node_where_the_state_lies_with_who_asks(record):
    assert migration(record, 0) == ("node0", "node1")
    pass_on(record, "node1", FETCH)
    assert heard(record, "node0") == [FETCH | {"asker": "node1"}]
    assert heard(record, "node1") == []


def test_a_state_that_is_sent_to_wait_elsewhere_is_fetched_likewise(record):
    record.state = cluster_with_a_job_that_leaves().state
    assert migration(record, 0) == ("node0", "node1")


def test_answers_and_pieces_go_to_the_node_that_asked(record):
    pass_on(record, "node0", FETCHED)
    frame = pack({**FETCHED, "file": "0.arena"}, b"bytes\n of it")
    pass_piece_on(record, "node0", frame)
    assert heard(record, "node1") == [FETCHED, frame]


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("node0", FETCH | {"node": "node1"}),
        ("node1", FETCH | {"attempt": 2}),
        ("node1", FETCH | {"job_id": "other"}),
        ("node1", FETCH | {"node": "node9"}),
    ],
)
def test_whoever_asks_for_what_does_not_move_is_told_so(record, sender, message):
    pass_on(record, sender, message)
    (answer,) = heard(record, sender)
    assert "any more" in answer["error"]
    assert not heard(record, "node0")
    assert not heard(record, "node1")


def test_what_nobody_asks_for_any_more_is_not_passed_on(record):
    record.state = cluster_with_a_job_that_is(S.SUSPENDED).state
    pass_on(record, "node0", FETCHED)
    pass_piece_on(record, "node0", pack(FETCHED, b"x"))
    assert not heard(record, "node1")


def test_an_asker_is_told_that_the_other_node_is_away(record):
    record.outboxes.close("node0", record.outboxes.queues["node0"])
    pass_on(record, "node1", FETCH)
    (answer,) = heard(record, "node1")
    assert answer["away"]


def test_a_frame_without_a_line_is_refused(record):
    with pytest.raises(AgentError, match="not a piece"):
        pass_piece_on(record, "node0", b"\0" * 100)
