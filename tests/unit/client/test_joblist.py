"""The list of jobs that is kept current by events."""

from rota.client.events import Logged, Resync
from rota.client.joblist import LISTED_S, Due, Found, JobList


def job(number, state="PENDING", finish_s=None, shared_with=()):
    return {
        "id": str(number),
        "state": state,
        "finish_s": finish_s,
        "shared_with": list(shared_with),
        "position": None,
    }


def logged(seq, kind="JobQueued", job_id=None, **data):
    return Logged(seq, 0.0, kind, job_id, data, (), f"c-{seq}")


def whole(*jobs, seq=10):
    """A list of which all was read after an event."""
    kept = JobList()
    assert kept.take() == Due(None)
    assert kept.put(Due(None), Found(list(jobs), seq), 0.0)
    return kept


def test_all_is_read_first_and_then_what_events_name():
    kept = whole(job(1), job(2))
    assert not kept.take()
    assert not kept.note(logged(10, job_id="1"))  # the list has it
    assert kept.note(logged(11, job_id="2"))
    assert kept.note(logged(12, "DecisionTaken", allocations={"3": []}, reasons={}, cores={"1": 2}))
    assert set(kept.take().ids) == {"1", "2", "3"}
    assert not kept.take()


def test_what_has_not_changed_is_the_same_object():
    kept = whole(job(1), job(2))
    before = dict(kept.jobs)
    due = Due(("1", "2"))
    assert kept.put(due, Found([job(1), job(2, "RUNNING")], None), 0.0)
    assert kept.jobs["1"] is before["1"]
    assert kept.jobs["2"]["state"] == "RUNNING"
    assert not kept.put(due, Found([job(1)], None), 0.0)


def test_all_is_due_again_after_a_gap_and_when_a_node_comes_or_goes():
    for told in (Resync(20, "c-20"), logged(20, "NodeLost")):
        kept = whole(job(1))
        assert kept.note(told)
        assert kept.take() == Due(None)


def test_what_could_not_be_read_stays_due():
    kept = whole(job(1))
    kept.note(logged(11, job_id="1"))
    assert not kept.put(kept.take(), None, 0.0)
    assert kept.take() == Due(("1",))
    kept.note(Resync(20, "c-20"))
    kept.put(kept.take(), None, 0.0)
    assert kept.take() == Due(None)


def test_jobs_that_ended_long_ago_leave_the_list():
    kept = whole(job(1), job(2, "SUCCEEDED", 5.0), job(3, "RUNNING"))
    kept.age(LISTED_S)
    assert list(kept.jobs) == ["1", "2", "3"]
    assert kept.take() == Due(("3",))  # its times grow
    kept.age(LISTED_S + 6)
    assert list(kept.jobs) == ["1", "3"]
    assert kept.put(Due(("3",)), Found([job(3, "SUCCEEDED", 1.0)], None), LISTED_S + 6)
    assert list(kept.jobs) == ["1"]


def test_who_shares_gpus_with_a_job_that_changed_is_read_again():
    kept = whole(job(1, "RUNNING", shared_with=["2"]), job(2, "RUNNING", shared_with=["1"]), job(3))
    kept.put(Due(("1",)), Found([job(1, "RUNNING", shared_with=["3"])], None), 0.0)
    assert set(kept.take().ids) == {"2", "3"}


def test_the_order_of_the_queue_changes_only_the_jobs_whose_place_has_changed():
    kept = whole(job(1, "RUNNING"), job(2), job(3))
    assert kept.place(["3", "2"])
    before = dict(kept.jobs)
    assert [each["position"] for each in kept.jobs.values()] == [None, 2, 1]
    assert not kept.place(["3", "2"])
    assert kept.place(["3"])
    assert kept.jobs["3"] is before["3"]
    assert kept.jobs["2"]["position"] is None
