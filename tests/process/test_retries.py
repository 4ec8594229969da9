"""Jobs that fail, wait, and are started anew, whatever becomes of the controller."""

import pytest

from .conftest import until

pytestmark = pytest.mark.process


def lines(show):
    return [each["line"] for each in show["story"]]


def test_a_job_is_retried_until_it_succeeds_and_each_attempt_is_told(cluster):
    run = 'echo x >> tries; test "$(wc -l < tries)" -ge 3 || exit 7'
    job = cluster.submit(run, retries={"max": 5, "on": [7], "backoff": 0.2})
    show = cluster.ends(job)
    assert (show["attempt"], show["exit_code"]) == (3, 0)
    assert show["retries"] == {"max": 5, "on": ["exit-7"], "backoff": 0.2, "used": 2}
    assert [line for line in lines(show) if line.startswith(("attempt", "retry"))] == [
        "attempt 1 failed: exit code 7",
        "retry 1 of 5 comes in 0.2 s",
        "attempt 2 failed: exit code 7",
        "retry 2 of 5 comes in 0.4 s",
    ]


def test_retries_end_and_other_failures_are_none_of_theirs(cluster):
    job = cluster.submit("exit 7", retries={"max": 1, "backoff": 0.1})
    show = cluster.ends(job, "FAILED")
    assert (show["attempt"], show["exit_code"], show["retries"]["used"]) == (2, 7, 1)
    other = cluster.submit("exit 7", retries={"max": 1, "on": ["out_of_memory"], "backoff": 0.1})
    assert cluster.ends(other, "FAILED")["attempt"] == 1
    words = "echo 'torch.OutOfMemoryError: CUDA out of memory'; exit 1"
    full = cluster.submit(words, retries={"max": 1, "on": ["out_of_memory"], "backoff": 0.1})
    assert cluster.ends(full, "FAILED")["attempt"] == 2


def test_the_next_controller_knows_which_retry_a_job_waits_for(cluster):
    run = "echo x >> tries; test -e mended || exit 3"
    job = cluster.submit(run, retries={"max": 2, "backoff": "1d"})
    until(lambda: cluster.show(job)["reason"] == "WAIT_BACKOFF", "it waits for its retry")
    cluster.kill_controller()
    cluster.up()
    show = cluster.show(job)
    assert (show["state"], show["reason"], show["retries"]["used"]) == (
        "PENDING",
        "WAIT_BACKOFF",
        1,
    )
    blocker = cluster.client.explain(job)["blockers"][0]
    assert blocker["rule"] == "WAIT_BACKOFF"
    assert "attempt 1 failed: exit code 3" in blocker["have"]
    (cluster.base / "mended").touch()
    cluster.client.suspend(job)
    cluster.client.resume(job)  # its owner need not wait
    assert cluster.ends(job)["attempt"] == 2
    assert (cluster.base / "tries").read_text() == "x\nx\n"
