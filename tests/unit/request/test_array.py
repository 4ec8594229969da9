import pytest

from rota.errors import JobFileError
from rota.request.array import sweep_block
from rota.request.jobfile import parse_job
from rota.request.searchspace import grid_point, grid_size
from rota.request.sweepfile import parse_sweep, trial_job
from rota.sweep.propose import Proposals


def parse(array, **fields):
    job = {"name": "many", "run": "echo {index}", "workdir": "/w", "array": array, **fields}
    return parse_sweep(job, workdir="")


def indices(request):
    return [grid_point(request.space, n)["index"] for n in range(grid_size(request.space))]


@pytest.mark.parametrize(
    ("array", "found", "parallel"),
    [
        ("0-3", [0, 1, 2, 3], 4),
        ("2-8:3%2", [2, 5, 8], 2),
        ("7, 1,3", [1, 3, 7], 3),
        ("5", [5], 1),
        ([1, 2, 4], [1, 2, 4], 3),
        ("1,4-6", [1, 4, 5, 6], 4),
        ({"count": 3}, [0, 1, 2], 3),
        ({"count": 3, "parallel": 2}, [0, 1, 2], 2),
        ({"indices": "0-9:5", "parallel": 1}, [0, 5], 1),
    ],
)
def test_an_array_is_a_search_that_tries_its_indices_in_order(array, found, parallel):
    request = parse(array)
    assert (indices(request), request.parallel, request.max_trials) == (found, parallel, len(found))
    assert request.is_array
    assert parse_sweep(request.to_fields(), workdir="") == request
    proposed = [Proposals(request, []).next(number)["index"] for number in range(len(found))]
    assert proposed == found


def test_each_job_has_its_index_in_its_name_command_and_environment():
    request = parse("5-6", tags=["x"])
    job = trial_job(request, "many", 0, {"index": 5})
    assert (job.name, job.run, job.tags) == ("many.5", "echo 5", ("x",))
    assert dict(job.env)["ROTA_ARRAY_INDEX"] == "5"
    other = parse_sweep(
        {"name": "s", "run": "x", "workdir": "/", "sweep": {"space": {"index": {"int": [1, 2]}}}},
        workdir="",
    )
    assert "ROTA_ARRAY_INDEX" not in dict(trial_job(other, "s", 0, {"index": 1}).env)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (10, ["array: 10", "{count: 10}"]),
        ("", ["array: ''", "0-9%3"]),
        ("9-0", ["'9-0'", "indices rise"]),
        ("0-9:0", ["indices rise", "by 1 or more"]),
        ("a-b", ["'a-b'", "0-9"]),
        ("0-9%0", ["array.parallel: '0'", "at once"]),
        ("0-10000", ["over 10000 jobs"]),
        ("0-2000:2,1", ["evenly spaced"]),
        ({"count": 0}, ["array.count: 0"]),
        ({"size": 3}, ["'size'", "known: count, indices, parallel"]),
        ({"parallel": 3}, ["array", "count: 10"]),
        ({"count": 1, "indices": "0-3"}, ["array"]),
        ({"indices": [1, 1]}, ["array.indices: [1, 1]", "index 1 stands there twice", "once"]),
        ({"indices": "9-0"}, ["array.indices: '9-0'"]),
        ([3, "3"], ["array: [3, '3']", "index 3 stands there twice"]),
        ("0-3,2-5%2", ["array: '0-3,2-5%2'", "index 2 stands there twice"]),
    ],
)
def test_an_array_that_cannot_be_is_refused(array, words):
    with pytest.raises(JobFileError) as failure:
        sweep_block(array)
    assert all(word in str(failure.value) for word in words), failure.value


def test_an_array_is_no_single_job_and_no_search_besides():
    with pytest.raises(JobFileError, match="array: it makes this a search"):
        parse_job({"run": "x", "array": "0-3"}, workdir="/")
    with pytest.raises(JobFileError, match="an array or a sweep"):
        parse("0-3", sweep={})
