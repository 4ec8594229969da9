"""What is printed of failed starts while a command waits."""

import pytest

from rota.cli.failedstarts import FailedStarts, last_failure
from rota.client.events import Connected, Line, Logged


def logged(kind, job_id, line="", **data):
    lines = (Line(job_id, line),) if line else ()
    return Logged(1, 100.0, kind, job_id, data, lines, "log-1")


LAUNCH = logged("CommandSent", "1", command="Launch", command_id=7)
FAILED = logged("CommandFailed", "1", "launch failed: \x1b no", command_id=7, retry_at_s=105.0)


def test_each_failed_start_is_told_with_its_reason_and_when_it_is_tried_again(capsys):
    tell = FailedStarts("1")
    for event in (Connected(1, ""), LAUNCH, FAILED, FAILED._replace(job_id="2")):
        assert tell(event) is False
    assert capsys.readouterr().err == ("job 1: launch failed: \\x1b no; it is tried again in 5 s\n")
    tell(logged("AttemptLost", "1", "attempt 1 failed: exit code 3; retry 1 of 2 comes in 5 s"))
    told = capsys.readouterr().err
    assert told == "job 1: attempt 1 failed: exit code 3; retry 1 of 2 comes in 5 s\n"


def test_other_commands_that_fail_are_no_failed_starts(capsys):
    tell = FailedStarts("1")
    tell(logged("CommandSent", "1", command="Resize", command_id=7))
    tell(FAILED)
    tell(logged("CommandFailed", "1", command_id=8, retry_at_s=0.0))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("sweep", "told"), [("s", 1), ("other", 0)])
def test_failed_starts_of_a_sweep_are_those_of_its_jobs(capsys, sweep, told):
    tell = FailedStarts(sweep=sweep)
    tell(logged("JobSubmitted", "5", sweep=None))
    tell(logged("JobSubmitted", "1", sweep={"name": "s", "number": 0}))
    for event in (FAILED, FAILED._replace(job_id="5")):
        tell(event)
    assert capsys.readouterr().err.count("\n") == told


def test_the_last_failure_of_a_job_that_was_waited_for_before_is_told():
    story = [{"line": each} for each in ("launch failed: a", "launch failed: b", "suspended")]
    assert last_failure({"id": "3", "story": story}) == "job 3: launch failed: b"
    assert last_failure({"id": "3", "story": []}) == "job 3: the last try failed"
