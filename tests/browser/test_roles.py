"""A role that is lowered while pages are open: buttons follow, and what is refused says so."""

import pytest

from .conftest import until

VERBS = ("Suspend", "Cancel")


@pytest.fixture
def job(cluster):
    """A training that runs; every action is allowed again after the test."""
    job = cluster.submit("roles")
    cluster.until_state(job, "RUNNING")
    yield job
    cluster.allow(None)
    cluster.client.cancel(job)


def test_buttons_follow_a_role_that_is_lowered_and_raised(seen, cluster, job):
    page = seen.open(f"/job/{job}")
    suspend, cancel = (page.get_by_role("button", name=f"{verb} job") for verb in VERBS)
    until(lambda: suspend.is_enabled() and cancel.is_enabled(), "both are allowed")
    cluster.allow("read suspend")
    until(cancel.is_disabled, "cancel is not allowed any more")
    assert suspend.is_enabled()
    cluster.allow(None)
    until(cancel.is_enabled, "cancel is allowed again")


def test_a_command_that_the_role_forbids_meanwhile_is_refused_in_words(seen, cluster, job):
    page = seen.open(f"/job/{job}")
    page.get_by_role("button", name=f"Cancel job {job}").click()
    cluster.allow("read")
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("status").get_by_text("does not allow you to cancel").wait_for()
    assert cluster.state(job) == "RUNNING"
