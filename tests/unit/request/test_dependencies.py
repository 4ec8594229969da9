import pytest

from rota.errors import JobFileError
from rota.model.job import Dependency
from rota.request.dependencies import dependencies_field, dependencies_of


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, ()),
        ("prepare", (Dependency("prepare", "succeeded"),)),
        ([3, "@last", 3], (Dependency("3"), Dependency("@last"))),
        ([{"job": 3, "when": "failed"}, "x"], (Dependency("3", "failed"), Dependency("x"))),
    ],
)
def test_dependencies_are_jobs_or_mappings(value, found):
    assert dependencies_of(value) == found
    assert dependencies_of(dependencies_field(found) or None) == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], ["depends_on: []", "or leave it out"]),
        ([0], ["depends_on: 0", "[prepare]"]),
        (["a b"], ["depends_on: 'a b'"]),
        ([{"when": "ended"}], ["depends_on", "job is missing"]),
        ([{"job": "x", "if": "ended"}], ["'if'", "known: job, when"]),
        ([{"job": "x", "when": "succeded"}], ["depends_on.when: 'succeded'", "succeeded?"]),
        ([{"job": "x", "when": True}], ["depends_on.when: True", "succeeded, failed, ended"]),
        ([str(n) for n in range(1, 1002)], ["depends_on", "at most 1000"]),
    ],
)
def test_what_is_no_dependency_is_refused(value, words):
    with pytest.raises(JobFileError) as failure:
        dependencies_of(value)
    assert all(word in str(failure.value) for word in words), failure.value
