"""Jobs that wait for others, on a real cluster."""

import pytest

from rota.errors import InputError

from .conftest import until

pytestmark = pytest.mark.process


def test_a_job_starts_when_those_that_it_waits_for_have_ended_also_after_a_restart(cluster):
    gate = "until test -e go; do sleep 0.05; done"
    first = cluster.submit(gate, name="prepare")
    second = cluster.submit("test -e go && exit 3", depends_on=["prepare"])
    third = cluster.submit("true", depends_on=[{"job": int(second), "when": "failed"}, "prepare"])
    blocker = cluster.client.explain(third)["blockers"][0]
    assert (blocker["rule"], blocker["held_by"]) == ("WAIT_DEPENDENCY", [second, first])
    cluster.kill_controller()
    cluster.up()
    assert cluster.show(second)["reason"] == "WAIT_DEPENDENCY"
    (cluster.base / "go").touch()
    cluster.ends(first)
    assert cluster.ends(second, "FAILED")["depends_on"] == [{"job": first, "when": "succeeded"}]
    ended = cluster.ends(third)
    assert ended["first_start_s"] >= cluster.show(second)["finish_s"]


def test_a_job_that_waits_in_vain_is_cancelled_and_says_why(cluster):
    first = cluster.submit("exec sleep 1000", name="prepare")
    second = cluster.submit("true", depends_on=["prepare"])
    third = cluster.submit("true", depends_on=[second])
    cluster.client.cancel(first)
    message = cluster.ends(second, "CANCELLED")["message"]
    assert message == (
        f"job {first} (prepare) ended as CANCELLED, and this job waits for its success"
    )
    until(lambda: cluster.show(third)["state"] == "CANCELLED", "those that wait for it follow")
    with pytest.raises(InputError, match="ended as CANCELLED"):
        cluster.submit("true", depends_on=["prepare"])
    with pytest.raises(InputError, match=r"depends_on: 'prepar' .* \(did you mean 'prepare'"):
        cluster.submit("true", depends_on=["prepar"])
