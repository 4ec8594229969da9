"""Curves of jobs: their past from the log, restarts, and reports that come twice."""

from rota.client.events import Line, Logged, Progress
from rota.ui.curves import MOST_CURVES, MOST_POINTS, Curves
from rota.ui.reader import Reader


def report(step, at_s, loss=None):
    return {"step": step, "at_s": at_s, "loss": float(step) if loss is None else loss}


def logged(seq, told):
    lines: tuple[Line, ...] = ()
    data = {"progress": told}
    return Logged(seq, told["at_s"], "WorkerReported", "1", data, lines, f"x-{seq}")


def test_a_curve_begins_with_what_the_log_has_and_goes_on_with_the_news():
    reader = Reader(lambda: None)
    for seq, step in enumerate((1, 50, 100)):
        reader._take(logged(seq, report(step, step + 0.5)))
    reader._take(Progress("1", report(120, 120.5)))
    reader._take(logged(3, report(110, 110.5)))  # written before, and told after the news
    assert reader.curves.of("1") == {"loss": [(1, 1), (50, 50), (100, 100), (120, 120)]}


def test_a_job_that_begins_again_begins_its_curve_again():
    curves = Curves()
    for step, at_s in ((1, 1.0), (9, 9.0), (2, 11.0), (3, 12.0)):
        curves.add("1", report(step, at_s))
    assert curves.of("1") == {"loss": [(2, 2), (3, 3)]}


def test_what_is_no_number_is_left_out_and_no_more_is_kept_than_is_shown():
    curves = Curves()
    curves.add("1", report("x", 1.0, loss=1.0))
    curves.add("1", report(1, 1.0, loss=float("nan")))
    assert curves.of("1") == {}
    for step in range(3 * MOST_POINTS):
        curves.add("2", report(step, step + 1.0))
    found = curves.of("2")["loss"]
    assert len(found) <= MOST_POINTS
    assert (found[0][0], found[-1][0]) == (0, 3 * MOST_POINTS - 1)
    for number in range(MOST_CURVES):
        curves.add(f"j{number}", report(1, 1.0))
    assert curves.of("2") == {}
