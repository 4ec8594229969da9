"""Power cuts, clocks that are set, and state folders that go: what jobs keep through them."""

UNTIL_ENOUGH = "until [ -e enough ]; do sleep 0.05; done"


def test_a_wall_clock_that_is_set_ends_no_job_by_its_time_limit(cluster):
    """It is set while neither the controller nor the agent is there to see it."""
    job = cluster.submit(UNTIL_ENOUGH, time_limit="30m")
    started_s = cluster.until_state(job, "RUNNING")["first_start_s"]
    for ahead_s in (7200, -7200):
        old = cluster.agent()
        cluster.kill(cluster.controller(), old)
        cluster.environment["WALL_AHEAD_S"] = str(ahead_s)
        cluster.up()
        show = cluster.until_state(job, "RUNNING")
        assert (show["attempt"], show["first_start_s"]) == (1, started_s)
        assert show["run_s"] < 1800
    (cluster.base / "enough").touch()
    show = cluster.ends(job)
    assert show["attempt"] == 1
    assert 0 < show["run_s"] < 1800
    assert show["finish_s"] - started_s < 1800
    times = [line["at_s"] for line in show["story"]]
    assert times == sorted(times)
