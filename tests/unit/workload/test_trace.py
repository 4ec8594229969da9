from rota.testing.builders import job
from rota.workload.trace import COLUMNS, REQUIRED, Trace


def ids(trace):
    return [spec.job_id for spec in trace]


def test_jobs_are_ordered_by_arrival_and_then_by_id():
    assert ids(Trace([job("b", at=5), job("c", at=1), job("a", at=5)])) == ["c", "a", "b"]


def test_ids_that_are_all_numbers_are_ordered_as_numbers():
    assert ids(Trace([job("10"), job("9"), job("0")])) == ["0", "9", "10"]
    assert ids(Trace([job("10"), job("9"), job("x")])) == ["10", "9", "x"]


def test_ids_that_are_the_same_number_are_ordered_by_their_texts():
    jobs = [job("1"), job("001"), job("01"), job("0")]
    assert ids(Trace(jobs)) == ids(Trace(reversed(jobs))) == ["0", "001", "01", "1"]


def test_the_order_in_which_jobs_are_given_does_not_matter():
    jobs = [job(i, at=i % 3) for i in range(20)]
    assert ids(Trace(jobs)) == ids(Trace(reversed(jobs)))


def test_every_column_says_what_it_means():
    assert set(REQUIRED) <= set(COLUMNS)
    assert all(meaning for _, meaning in COLUMNS.values())
