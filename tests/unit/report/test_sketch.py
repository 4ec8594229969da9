"""Sketches: small, and true to the run."""

import pytest

from rota.model.cluster import parse_cluster
from rota.report.history import Moment
from rota.report.sketch import POINTS, SEVERAL, Piece, course, thinned_pieces


def moment(at_s, waiting, held, running, gpus=4):
    return Moment(at_s, waiting, held, running, gpus, 0, gpus - held)


def test_a_course_averages_over_equal_spans():
    found = course([moment(0, 2, 4, 2), moment(10, 0, 1, 1), moment(30, 0, 0, 0)], points=3)
    assert found.at_s == [0, 10, 20]
    assert found.waiting_jobs == [2, 0, 0]
    assert found.used == [0.5, 0.25, 0.25]


def test_a_span_with_several_moments_is_weighed_by_time():
    moments = [moment(0, 4, 0, 0), moment(1, 0, 4, 4), moment(4, 0, 0, 0)]
    found = course(moments, points=1)
    assert found.waiting_jobs == [pytest.approx(1.0)]
    assert found.used == [pytest.approx(0.75)]


def test_the_course_of_nothing_is_empty():
    assert course([]).at_s == course([moment(5, 0, 0, 0)]).at_s == []


def test_a_cluster_without_gpus_uses_none_of_them():
    assert course([moment(0, 1, 0, 0, 0), moment(1, 1, 0, 0, 0)], points=1).used == [0.0]


def test_few_pieces_stay_as_they_are():
    pieces = [Piece(0, 0.0, 1.0, 7), Piece(0, 1.0, 2.0, 8)]
    assert thinned_pieces(pieces, 2) == pieces


def test_many_short_pieces_become_few_that_cover_the_same_time():
    pieces = [Piece(gpu, float(i), i + 1.0, i % 2) for gpu in (0, 1) for i in range(1000)]
    long = Piece(2, 0.0, 900.0, 5)
    thin = thinned_pieces([*pieces, long], 100)
    assert len(thin) <= 100
    assert long in thin
    for gpu in (0, 1):
        mine = sorted(piece for piece in thin if piece.gpu == gpu)
        assert (mine[0].start_s, mine[-1].end_s) == (0.0, 1000.0)
        assert {piece.row for piece in mine} == {SEVERAL}


def test_turns_of_one_job_stay_its_own_when_merged():
    thin = thinned_pieces([Piece(0, float(i), i + 0.5, 3) for i in range(100)], 10)
    assert {piece.row for piece in thin} == {3}


def test_a_run_is_sketched(entry):
    (drawn,) = entry("gandiva").sketches
    assert len(drawn.jct_s) == 20
    assert len(drawn.course.at_s) == POINTS
    assert drawn.gpu_names[4] == "node1:0"
    assert len(drawn.gpu_names) == sum(node.num_gpus for node in parse_cluster("2x4"))
    busy_s = sum(piece.end_s - piece.start_s for piece in drawn.pieces)
    assert busy_s == pytest.approx(26_940)
    assert {spec.job_id for spec in drawn.specs.values()} == {str(i) for i in range(20)}
