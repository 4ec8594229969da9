"""Who held which GPUs when, as told by events."""

import json

from rota.ui import holds as room
from rota.ui.holds import Holds, Piece
from rota.ui.pages.timeline import whole


def place(node, *gpus):
    return [{"node": node, "gpus": list(gpus)}]


def launched(holds, job, at_s, allocation, command="Launch"):
    sent = {"command": command, "allocation": allocation}
    holds.apply("CommandSent", at_s, job, sent)
    event = "JobLaunched" if command == "Launch" else "JobResumed"
    holds.apply(event, at_s + 1, job, {})


def pieces(holds, job):
    return [piece for _, piece in holds.of_job(job)]


def test_a_piece_lasts_from_the_confirmed_start_to_the_confirmed_stop():
    holds = Holds()
    holds.apply("NodeJoined", 0.0, None, {"name": "a", "num_gpus": 2})
    launched(holds, "1", 10.0, place("a", 0, 1))
    assert pieces(holds, "1") == [Piece(0, "1", 11.0, None), Piece(1, "1", 11.0, None)]
    holds.apply("JobSuspended", 21.0, "1", {"stopped_s": 20.0})
    launched(holds, "1", 30.0, place("a", 1), "Resume")
    holds.apply("JobFinished", 40.0, "1", {})
    assert pieces(holds, "1") == [
        Piece(0, "1", 11.0, 20.0),
        Piece(1, "1", 11.0, 20.0),
        Piece(1, "1", 31.0, 40.0),
    ]


def test_a_resize_ends_pieces_and_begins_others_and_a_lost_node_ends_them():
    holds = Holds()
    for name in ("a", "b"):
        holds.apply("NodeJoined", 0.0, None, {"name": name, "num_gpus": 2})
    launched(holds, "1", 0.0, place("a", 0))
    launched(holds, "2", 0.0, place("b", 0))
    holds.apply("CommandSent", 5.0, "1", {"command": "Resize", "allocation": place("a", 0, 1)})
    holds.apply("JobResized", 6.0, "1", {"allocation": place("a", 0, 1)})
    holds.apply("NodeLost", 9.0, None, {"name": "a"})
    assert [piece.end_s for piece in pieces(holds, "1")] == [6.0, 9.0, 9.0]
    assert [piece.end_s for piece in pieces(holds, "2")] == [None]


def test_those_who_follow_get_what_has_changed_and_nothing_twice():
    holds = Holds()
    launched(holds, "1", 0.0, place("a", 0))
    pieces, change = holds.since(0)
    assert [number for number, _ in pieces] == [0] and change == holds.change
    assert holds.since(change) == ([], change)
    holds.apply("JobFinished", 5.0, "1", {})
    launched(holds, "2", 6.0, place("a", 0))
    assert [(number, piece.end_s) for number, piece in holds.since(change)[0]] == [
        (0, 5.0),
        (1, None),
    ]


def test_the_oldest_pieces_are_forgotten(monkeypatch):
    monkeypatch.setattr(room, "MOST_PIECES", 20)
    monkeypatch.setattr(room, "FORGOTTEN", 5)
    holds = Holds()
    for number in range(100):
        launched(holds, str(number), 10.0 * number, place("a", 0))
        holds.apply("JobFinished", 10.0 * number + 5, str(number), {})
    assert len(holds.job_of) <= 20 and holds.job_of[-1] == "99"
    assert {len(holds.gpu_of), len(holds.start_s), len(holds.end_s)} == {len(holds.job_of)}
    assert holds.since(0)[0][-1][0] == 99 and len(holds.changes) <= 40


def test_pages_load_all_pieces_or_those_of_a_job_with_its_gpus_alone():
    holds = Holds()
    launched(holds, "1", 0.0, place("a", 0))
    launched(holds, "2", 5.0, place("b", 2))
    holds.apply("JobFinished", 8.12345, "2", {})
    columns = {
        "number": [0, 1],
        "gpu": [0, 1],
        "job": ["1", "2"],
        "start_s": [1.0, 6.0],
        "end_s": [None, 8.123],
    }
    told = json.loads(whole(holds, "", 9.0))
    assert told["pieces"] == columns and told["gpus"] == [["a", 0], ["b", 2]]
    assert told["change"] == holds.change == 3
    told = json.loads(whole(holds, "2", 9.0))
    assert told["gpus"] == [["b", 2]]
    assert told["pieces"] == {name: [0 if name == "gpu" else c[1]] for name, c in columns.items()}
    assert json.loads(whole(holds, "3", 9.0))["pieces"]["job"] == []
