from rota.model.reason import Reason
from rota.policy.ordering.fifo import Fifo, FifoBackfill
from rota.testing.builders import job, run
from support.driven import DrivenCluster

QUEUE = (job("a", 3), job("large", 4), job("small", 1))


def test_strict_order_leaves_gpus_free_behind_a_job_that_does_not_fit():
    state, _ = run(QUEUE, Fifo(), "1x4")
    assert list(state.first_start_s) == [0.0, 60.0, 120.0]


def test_backfill_starts_what_fits_behind_a_job_that_does_not():
    state, _ = run(QUEUE, FifoBackfill(), "1x4")
    assert list(state.first_start_s) == [0.0, 60.0, 0.0]


def test_jobs_that_arrive_together_start_in_order_of_their_numbers():
    state, _ = run([job(10, 4), job(9, 4), job(2, 4)], Fifo(), "1x4")
    by_name = {spec.job_id: state.first_start_s[row] for row, spec in enumerate(state.spec)}
    assert by_name == {"2": 0.0, "9": 60.0, "10": 120.0}


def test_the_head_of_the_line_waits_for_gpus_and_the_others_for_their_turn():
    cluster = DrivenCluster(*QUEUE, policy=Fifo())
    cluster.settle()
    assert cluster.state.reason[1] == Reason.WAIT_RESOURCES
    assert cluster.state.reason[2] == Reason.WAIT_PRIORITY
