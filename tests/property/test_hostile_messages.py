"""Whatever a peer sends: it is taken, or refused with the field that is wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import AgentError
from rota.live.wire.faults import fault_in
from rota.live.wire.messages import FROM_AGENT, FROM_WORKER, check_from_agent, from_worker

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["alive", "ended", "lost", "hello", "cpu", "process"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "job_id", "attempt", "at_s", "progress", "step", "metrics"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


def names(kind):
    return [*kind.__struct_fields__, "type"]


@pytest.mark.parametrize("kinds", [FROM_WORKER, FROM_AGENT], ids=["worker", "agent"])
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_fault_is_named_by_a_field_that_is_there_or_missing(kinds, data):
    kind = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    message = data.draw(st.dictionaries(st.sampled_from(names(kind)), VALUES, max_size=8))
    fault = fault_in(message, kind)
    if fault is not None:
        assert fault.field.partition(".")[0].partition("[")[0] in names(kind) or not fault.field
        assert fault.wanted


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FROM_WORKER)), VALUES)
def test_a_line_of_a_worker_is_a_message_or_an_error_of_the_agents_own(kind, value):
    fields = value if isinstance(value, dict) else {"step": value, "error": value}
    try:
        assert from_worker(json.dumps(fields | {"type": kind}).encode())["type"] == kind
    except AgentError as error:
        assert str(error).startswith(f"{kind}: its ")


ENDED = {"type": "ended", "job_id": "1", "attempt": 1, "at_s": 1.0, "exit_code": 0, "message": ""}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exit_code": "0"}, "exit_code: '0' can't be used; it must be a number"),
        ({"attempt": 0}, "attempt: 0 can't be used; it must be a whole number from 1"),
        ({"at_s": None}, "at_s: None can't be used; it must be seconds since 1970"),
        ({"progress": {"step": 1}}, "progress: {'step': 1} can't be used; it must be a report"),
    ],
)
def test_what_an_agent_says_is_refused_by_the_field(change, words):
    check_from_agent(ENDED)
    with pytest.raises(AgentError, match="can't be used") as refused:
        check_from_agent(ENDED | change)
    assert str(refused.value) == words
