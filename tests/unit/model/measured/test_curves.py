"""Which reports of a trial count when its training goes back."""

from rota.model.measured.curves import ToldCurves
from rota.model.sweep import Report


def told(curves):
    return [(report.step, report.value) for report in curves.reports(0)]


def noted(*parts):
    curves = ToldCurves()
    for attempt, *reports in parts:
        curves.note(
            0, attempt, [Report(step, 0.0, value, *first) for step, value, *first in reports]
        )
    return curves


def test_reports_follow_one_another_also_within_a_step():
    assert told(noted((1, (1, 0.1, True), (1, 0.2)), (1, (2, 0.3)))) == [
        (1, 0.1),
        (1, 0.2),
        (2, 0.3),
    ]


def test_another_attempt_replaces_what_came_at_or_after_its_step():
    first = (1, (10, 0.1, True), (20, 0.2), (30, 0.3))
    assert told(noted(first, (2, (20, 0.25, True)))) == [(10, 0.1), (20, 0.25)]
    assert told(noted(first, (2, (40, 0.4, True)))) == [*((10 * i, i / 10) for i in range(1, 5))]
    assert told(noted(first, (2, (0, 0.0, True)))) == [(0, 0.0)]


def test_another_process_of_the_attempt_that_does_a_step_again_replaces_it():
    first = (1, (10, 0.1, True), (20, 0.2))
    assert told(noted(first, (1, (20, 0.25, True)))) == [(10, 0.1), (20, 0.25)]
    assert told(noted(first, (1, (30, 0.3, True)))) == [(10, 0.1), (20, 0.2), (30, 0.3)]


def test_a_process_that_counts_no_steps_goes_on_within_its_attempt_and_begins_anew_with_another():
    first = (1, (0, 0.1, True), (0, 0.2))
    assert told(noted(first, (1, (0, 0.3, True)))) == [(0, 0.1), (0, 0.2), (0, 0.3)]
    assert told(noted(first, (2, (0, 0.3, True)))) == [(0, 0.3)]


def test_steps_that_go_back_in_one_process_replace_those_after():
    assert told(noted((1, (10, 0.1, True), (20, 0.2), (15, 0.3)))) == [(10, 0.1), (15, 0.3)]


def test_what_was_heard_counts_replaced_reports_of_the_attempt():
    curves = noted((1, (10, 0.1, True), (20, 0.2)), (1, (20, 0.3, True)))
    assert curves.heard(0, 1) == 3
    assert curves.heard(0, 2) == 0
    curves.note(0, 2, [Report(20, 0.0, 0.5, True)])
    assert (curves.heard(0, 1), curves.heard(0, 2)) == (0, 1)


def test_values_are_those_that_are_numbers_and_new_ones_show():
    curves = noted((1, (1, 0.1, True), (2, None), (3, 0.3)))
    assert list(curves.curve(0, 5.0)) == [0.1, 0.3]
    curves.note(0, 1, [Report(4, 0.0, 0.4)])
    assert list(curves.curve(0, 5.0)) == [0.1, 0.3, 0.4]
    assert list(curves.curve(7, 5.0)) == []


def test_it_is_known_which_reports_were_there_before_and_are_the_same():
    curves = noted((1, (10, 0.1, True), (20, 0.2)), (1, (30, 0.3)), (2, (20, 0.25, True)))
    assert (curves.notes, [curves.known(0, notes) for notes in range(4)]) == (3, [0, 1, 1, 2])
    assert curves.known(1, 3) == 0
