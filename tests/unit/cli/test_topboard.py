"""What ``rota top`` shows, as text: cut to its place, and free of tricks."""

import pytest
from rich.cells import cell_len

from rota.cli.topboard import (
    KEPT_LINES,
    MOST_ENDED,
    MOST_JOBS,
    NARROW,
    Board,
    Snapshot,
    cut,
)
from rota.client.events import Connected, Disconnected, Line, Logged, Progress, Resync

HOSTILE = (
    "[bold red]x[/] \x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u65e5\u672c\u8a9e " + "y" * 10**6
)
ETA = NARROW[-1]
POLICY = {"name": "gandiva", "error": None}


def job(job_id, state="RUNNING", gpus=(("node", (0,)),), **more):
    told = {
        "id": str(job_id),
        "name": "train",
        "user": "ann",
        "state": state,
        "reason": "NONE" if gpus else "WAIT_RESOURCES",
        "queue": "",
        "num_gpus": 1,
        "gpus": [{"node": name, "gpus": list(held)} for name, held in gpus],
        "run_s": 10.0,
        "progress": {},
        "eta_s": None,
        "message": "",
        "exit_code": None,
        "finish_s": None,
        "position": None,
    }
    return told | more


def board(*jobs, seq=10, nodes=(), turns=(), **gauges):
    told = {"held_gpus": 1, "gpus": 2, "waiting_jobs": 1, "fragmentation": 0.5, "preemptions": 3}
    it = Board()
    it.take(Snapshot(jobs, nodes, (POLICY,), told | gauges, turns, seq))
    return it


def event(seq, kind="JobLaunched", job_id="1", lines=(), **data):
    return Logged(
        seq, 0.0, kind, job_id, data, tuple(Line(job_id, each) for each in lines), str(seq)
    )


def test_what_others_write_is_cut_and_can_not_play_tricks():
    told = cut(HOSTILE, 40)
    assert cell_len(told) == 40
    assert told.startswith("[bold red]x[/] \\x1b[31mred\\x1b]0;titl")
    assert "\\u202e" in cut(HOSTILE, 70)
    for width in range(30):
        assert cell_len(cut("\u65e5\u672c\u8a9e" * 9, width)) <= max(1, width)


@pytest.mark.parametrize("width", [80, 81, 100, 140, 300])
def test_columns_fill_the_terminal_and_cells_their_columns(width):
    hostile = job(123456, name=HOSTILE, user=HOSTILE, message=HOSTILE, queue=HOSTILE)
    it = board(hostile, job(2, gpus=((HOSTILE, range(99)),)))
    columns = it.columns(width)
    assert sum(size for _, size in columns) == width - 1  # the scroll bar
    rows = it.rows(columns, 0.0)
    assert rows["123456"][0] == "123456"
    for cells in rows.values():
        assert all(cell_len(cell) < size for cell, (_, size) in zip(cells, columns, strict=True))
    assert ("USER" in [name for name, _ in columns]) == (width > 100)


def test_a_line_says_how_the_cluster_stands():
    told = board().heading(0.0, 200).partition("  ")[2]
    assert told == "gandiva, 1/2 GPUs, 1 waiting, fragmentation 50%, 3 preemptions"
    assert "fragmentation -," in board(fragmentation=None).heading(0.0, 200)
    assert len(board().heading(0.0, 30)) == 30


def test_nodes_tell_who_holds_each_gpu():
    nodes = [
        {"name": "b", "alive": False},
        {"name": "a", "alive": True, "holders": [["3"]], "fillers": [{"id": "4"}]},
        {"name": "long", "alive": True, "connected": False, "holders": [["1", "2"], []]},
    ]
    for node in nodes:
        node |= {"closed": None}
    assert board(nodes=nodes).gpu_lines(80) == [
        "a     0:3(+4)",
        "long  away  0:1+2  1:-",
        "b     lost",
    ]
    assert Board().gpu_lines(80) == ["no node yet"]


def test_jobs_with_gpus_come_first_then_those_that_wait_then_the_last_that_ended():
    ended = [job(n, "FAILED", (), finish_s=float(n), exit_code=3) for n in range(100, 200)]
    waits = [job(1, "PENDING", (), position=2), job(3, "PENDING", (), position=1)]
    it = board(*waits, *ended, job(2))
    assert [each["id"] for each in it.listed()][:5] == ["2", "3", "1", "199", "198"]
    assert len(it.listed()) == 3 + MOST_ENDED
    columns = it.columns(80)
    cells = dict(zip([name for name, _ in columns], it.rows(columns, 0.0)["199"], strict=True))
    assert (cells["STATE"], cells["WHY"]) == ("FAILED", "exit 3")
    many = board(*(job(n, "PENDING", ()) for n in range(MOST_JOBS + 7)))
    assert len(many.listed()) == MOST_JOBS
    assert many.left_out() == "7 more jobs wait: rota ps"


def test_turns_tell_who_runs_how_long_and_who_is_next():
    turns = {"nodes": ["n"], "running": [["1"], ["2", "3"]], "waiting": [["4"]], "ends_s": 90.0}
    assert board(turns=[turns]).turn_lines(30.0, 80) == ["n: 1 2+3 now, for 1m00s; then 4"]


def test_events_after_what_was_read_call_for_reading_again():
    it = board(job(1))
    assert not it.note(event(9, lines=["submitted"]), 0.0)  # from before
    assert it.note(event(11), 0.0)
    assert not it.note(event(11), 0.0)  # the same again
    assert not it.note(event(12, "WorkerReported"), 0.0)
    assert it.note(Resync(20, "20"), 0.0)
    assert not it.note(Connected(5, "5"), 0.0)


def test_progress_is_shown_at_once():
    it = board(job(1))
    assert not it.note(Progress("1", {"step": 5, "total": 10}), 0.0)
    assert not it.note(Progress("unknown", {}), 0.0)
    assert it.rows(it.columns(80), 0.0)["1"][5] == "50% 5/10"


@pytest.mark.parametrize(
    ("eta_s", "text"),
    [
        ([0.0, 99.4], "0s-99s"),
        ([100.0, 5999.0], "2m-100m"),
        ([6000.0, 35999.0], "1.7h-10.0h"),
        ([36000.0, 359999.0], "10h-100h"),
        ([360000.0, 1e8], "4.2d-1157d"),
    ],
)
def test_etas_are_short(eta_s, text):
    it = board(job(1, eta_s=eta_s))
    assert it.rows(it.columns(200), 0.0)["1"][NARROW.index(ETA) + 1] == cut(text, ETA.width - 1)


def test_an_outage_is_told_until_the_controller_is_back_and_then_all_is_read_again():
    it = board(job(1))
    assert it.away is not None
    assert not it.note(Connected(10, "10"), 0.0)
    assert it.away is None
    assert not it.note(Disconnected("refused"), 0.0)
    assert it.away is not None and it.away.endswith("tried again: refused")
    assert it.note(Connected(10, "10"), 0.0)
    assert it.away is None


def test_the_last_lines_of_what_has_happened_are_kept():
    it = board()
    for seq in range(1, 2 * KEPT_LINES):
        it.note(event(seq, lines=[f"line {seq} {HOSTILE}"]), 0.0)
    it.note(event(10**6, "NodeJoined", None, name="n2"), 0.0)
    told = it.happened(2, 80)
    assert told[1].endswith("  NodeJoined n2")
    assert f"  job 1  line {2 * KEPT_LINES - 1} [bold red]" in told[0]
    assert all(cell_len(line) <= 80 for line in told)
    assert len(it.happened(10**6, 80)) == KEPT_LINES
