"""The demo's progress: one line, drawn again on a terminal, and rare plain ones elsewhere."""

import io

from rich.console import Console

from rota.demo.screen import PLAIN_EVERY_S, ProgressLine
from rota.demo.workload import MIX


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def job(training, state, step=0):
    return {"name": training.name, "state": state, "progress": {"step": step}}


def line_on(console, clock):
    return ProgressLine(console, "gandiva", MIX, clock)


def halfway():
    first, *others = MIX
    return [
        job(first, "RUNNING", first.steps // 2),
        *(job(each, "SUSPENDED", each.steps // 2) for each in others),
    ]


def test_the_line_tells_how_much_is_done_how_long_the_rest_takes_and_who_runs():
    clock = Clock()
    line = line_on(Console(file=io.StringIO()), clock)
    clock.now_s += 5.0  # for which the cluster starts
    line.text([])
    clock.now_s += 20.0
    assert line.text(halfway()) == (
        "gandiva [#######.......]  50%  25 s, 20 s left  0/5 done  long-mlp"
    )


def test_jobs_that_have_ended_are_wholly_done_whatever_steps_they_took():
    clock = Clock()
    line = line_on(Console(file=io.StringIO()), clock)
    clock.now_s += 33.0
    jobs = [job(each, "SUCCEEDED", 1) for each in MIX]
    assert line.text(jobs) == "gandiva [##############] 100%  33 s  5/5 done"


def test_jobs_that_were_cut_off_are_not_done():
    clock = Clock()
    line = line_on(Console(file=io.StringIO()), clock)
    jobs = [job(each, "CANCELLED", each.steps // 2) for each in MIX]
    assert " 50%" in line.text(jobs)
    assert line.text(jobs).endswith("0/5 done")


def test_nothing_is_foretold_of_how_long_it_takes_before_a_part_is_done():
    line = line_on(Console(file=io.StringIO()), Clock())
    assert line.text([]) == "gandiva [..............]   0%  0 s  0/5 done"


def test_a_job_that_takes_more_steps_than_usual_is_never_more_than_done():
    line = line_on(Console(file=io.StringIO()), Clock())
    jobs = [job(each, "RUNNING", 9 * each.steps) for each in MIX]
    assert "100%" in line.text(jobs)


def test_without_a_terminal_a_plain_line_comes_every_few_seconds():
    clock, written = Clock(), io.StringIO()
    with line_on(Console(file=written), clock) as line:
        for _ in range(100):
            line.show(halfway())
            clock.now_s += PLAIN_EVERY_S / 50
    lines = written.getvalue().splitlines()
    assert len(lines) == 2
    assert all(text.startswith("gandiva [#######.......]") for text in lines)


def test_on_a_terminal_one_line_is_drawn_again_and_leaves_nothing():
    written = io.StringIO()
    clock = Clock()
    console = Console(file=written, force_terminal=True, width=40, legacy_windows=False)
    with line_on(console, clock) as line:
        for _ in range(30):
            clock.now_s += 0.25
            line.show(halfway())
    screen = written.getvalue()
    assert screen.count("gandiva [") >= 30
    # However narrow the terminal is, no drawing takes a second line: nothing moves further up.
    assert "\x1b[2A" not in screen
    assert screen.count("\n") <= 1
    screen.encode("ascii")
