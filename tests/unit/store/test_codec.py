"""Whatever an event holds comes back to the bit through JSON."""

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import StoreError
from rota.model import commands, events
from rota.model.allocation import Allocation
from rota.model.job import Adapt, Elastic, JobSpec, JobState, Notice, Program, Share, Suspension
from rota.model.notes import DesiredNodes, Notes, Packed
from rota.model.probe import Probe
from rota.model.sweep import Report, Sweep, SweepTrial
from rota.store.codec import codec_of, decode, encode
from rota.testing.store_contract import every_event

rows = st.integers(0, 10**9)
seconds = st.floats(allow_nan=False)
st.register_type_strategy(float, seconds)  # those of fields that no strategy is named for
text = st.text(st.characters())
words = st.text(st.characters(exclude_categories=()))  # lone surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | seconds | words,
    lambda inner: st.lists(inner) | st.dictionaries(words, inner),
    max_leaves=10,
)
chosen_batches = st.tuples(st.integers(1, 10**6), st.integers(0, 100))
batches = st.none() | chosen_batches
allocations = st.builds(
    lambda parts, *how: Allocation(tuple(sorted(parts.items())), *how),
    st.dictionaries(st.integers(0, 5000), st.integers(1, (1 << 1024) - 1), min_size=1, max_size=4),
    st.booleans(),
    batches,
    st.booleans(),
)
programs = st.builds(
    Program,
    words,
    words,
    st.lists(st.tuples(words, words)).map(tuple),
    st.sampled_from(["gpu", "node", "flow"]),
    grace_s=seconds,
    host_memory_gb=st.none() | seconds,
    idle_s=st.none() | seconds,
    start=st.sampled_from(["fresh", "warm"]),
)
trials = st.builds(
    SweepTrial,
    st.builds(Sweep, words, words, st.booleans(), st.none() | seconds, st.none() | rows),
    rows,
    st.lists(st.tuples(words, st.booleans() | st.integers() | seconds | words)).map(tuple),
)
specs = st.builds(
    JobSpec,
    job_id=words,
    num_gpus=rows,
    submit_s=seconds,
    duration_s=st.none() | seconds,
    priority=st.integers(1, 100),
    name=words,
    user=words,
    vc=words,
    model=words,
    time_limit_s=st.none() | seconds,
    program=st.none() | programs,
    gpu_util=st.none() | seconds,
    memory_gb=st.none() | seconds,
    skew=st.none() | seconds,
    speeds=st.lists(st.tuples(words, seconds), max_size=3).map(tuple),
    elastic=st.none()
    | st.builds(
        Elastic,
        st.lists(rows, min_size=1, max_size=3).map(tuple),
        st.none() | seconds,
        st.none() | seconds,
        seconds,
        st.booleans(),
    ),
    batch=st.none() | rows,
    epochs=st.none() | seconds,
    adapt=st.none() | st.builds(Adapt, rows, st.none() | rows, rows),
    trial=st.none() | trials,
    cpus_per_gpu=st.none() | st.tuples(rows, rows),
    share=st.none() | st.builds(Share, words, st.none() | seconds, st.none() | seconds),
    notices=st.lists(
        st.builds(Notice, words, st.lists(words, max_size=2).map(tuple), words), max_size=2
    ).map(tuple),
)
places = st.lists(st.tuples(rows, rows), max_size=2).map(tuple)
probes = st.builds(
    Probe,
    seconds,
    words,
    seconds,
    st.none() | seconds,
    st.booleans(),
    st.lists(rows, max_size=3).map(tuple),
    places,
    places,
)
packs = st.builds(Packed, st.lists(rows, min_size=1, max_size=3).map(tuple), st.none() | seconds)
notes = st.builds(
    Notes,
    st.dictionaries(rows, words, max_size=3),
    st.dictionaries(rows, st.lists(words, max_size=2).map(tuple), max_size=3),
    st.dictionaries(rows, st.lists(probes, min_size=1, max_size=2).map(tuple), max_size=3),
    st.dictionaries(rows, st.none() | packs, max_size=3),
    st.none() | st.builds(DesiredNodes, rows, seconds, st.none() | seconds),
    why_cpus=st.dictionaries(rows, words, max_size=2),
)
STRATEGIES = {
    "at_s": seconds,
    "stopped_s": seconds,
    "retry_at_s": seconds,
    "speed": seconds,
    "lost_s": seconds,
    "paused_s": seconds,
    "by_itself": st.booleans(),
    "of_a_gpu": st.booleans(),
    "whole_cores": st.booleans(),
    "given_back": st.booleans(),
    "got_on": st.booleans(),
    "drains": st.booleans(),
    "keeps_checkpoints": st.booleans(),
    "by_s": st.none() | seconds,
    "leaves_s": st.none() | seconds,
    "until_s": st.none() | seconds,
    "cause": words,
    "lost_ranks": rows,
    "gpu_type": words,
    "rack": words,
    "address": words,
    "build": words,
    "reach": words,
    "machine": words,
    "boot_id": words,
    "island": rows,
    "memory_gb": seconds,
    "host_memory_gb": seconds,
    "millicores": st.none() | rows,
    "cpus": st.none() | st.dictionaries(rows, st.none() | rows, max_size=3),
    "stage_marks": st.none() | st.dictionaries(words, json_values, max_size=2),
    "step_s": st.lists(st.none() | seconds, max_size=3).map(tuple),
    "idle": st.lists(seconds, max_size=3).map(tuple),
    "model_bytes": rows,
    "largest_tensor_bytes": rows,
    "wake_at_s": st.none() | seconds,
    "fill_wake_at_s": st.none() | seconds,
    "beside": st.integers(-1, 10**9),
    "slowdown": seconds,
    "harvest": seconds,
    "low": st.none() | seconds,
    "high": st.none() | seconds,
    "pairs": rows,
    "row": rows,
    "seq": rows,
    "attempt": rows,
    "epoch": rows,
    "command_id": rows,
    "num_gpus": rows,
    "exit_code": st.none() | st.integers(-64, 255),
    "name": words,
    "kind": words,
    "policy": words,
    "error": words,
    "file": words,
    "fallback": words,
    "message": words,
    "why": words,
    "started": words,
    "saved": st.none() | words,
    "movable": st.booleans(),
    "resizable": st.booleans(),
    "most_ranks": rows,
    "portable": st.booleans(),
    "spec": specs,
    "outcome": st.sampled_from(JobState),
    "suspension": st.sampled_from(Suspension),
    "progress": st.dictionaries(words, json_values, max_size=4),
    "allocation": allocations,
    "batch": batches,
    "allocations": st.dictionaries(rows, st.none() | allocations, max_size=4),
    "reasons": st.dictionaries(rows, st.integers(0, 16), max_size=4),
    "marks": st.dictionaries(rows, json_values, max_size=4),
    "policy_mark": json_values,
    "notes": st.none() | notes,
    "user": words,
    "request": st.dictionaries(words, json_values, max_size=4),
    "key": st.none() | words,
    "body_hash": words,
    "reports": st.lists(
        st.builds(Report, rows, seconds, st.none() | seconds, st.booleans()), max_size=3
    ).map(tuple),
}
OF_KIND = {
    events.SweepEnded: {"outcome": words},
    events.BatchRefused: {"batch": chosen_batches},
    events.BurstPlanned: {"batch": rows},
    events.NodeJoined: {"millicores": rows},
}


def built(kind):
    known = STRATEGIES | OF_KIND.get(kind, {})
    return st.builds(kind, **{name: known[name] for name in kind._fields if name != "command"})


def any_of(union):
    return st.one_of([built(kind) for kind in get_args(union) if "command" not in kind._fields])


sent = st.builds(events.CommandSent, seconds, any_of(commands.Command))


@given(any_of(events.Event) | sent)
def test_an_event_comes_back_through_json_exactly(event):
    back = decode(json.loads(json.dumps(encode(event))))
    assert back == event
    assert type(back) is type(event)
    assert repr(back) == repr(event)  # 1 and 1.0, True and 1 are equal, and not the same


def test_every_kind_of_event_and_command_is_covered():
    made = every_event()
    assert {type(event) for event in made} == set(get_args(events.Event))
    sent = {type(event.command) for event in made if isinstance(event, events.CommandSent)}
    assert sent == set(get_args(commands.Command))


def test_every_event_is_stored_as_it_always_was():
    """Names, order and values of fields are the format of logs that stand on disks."""
    stored = [json.dumps(encode(event)) for event in every_event()]
    known = Path(__file__).with_name("stored_events.jsonl").read_text().splitlines()
    assert stored == known, "a new event or field gets its line in stored_events.jsonl"


def test_a_field_of_a_type_that_has_no_stored_form_is_an_error():
    for hint in (set[int], dict[str, int], bytes | None, tuple[complex, ...]):
        with pytest.raises(StoreError, match="no form"):
            codec_of(hint)


def test_encoding_leaves_the_event_as_it_was():
    for event in every_event():
        before = repr(event)
        encode(event)
        decode(encode(event))
        assert repr(event) == before


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"type": "JobExploded", "at_s": 1.0},
        {"type": ["x"]},
        {"type": None},
        {"type": "JobResumed"},
        {"type": "JobResumed", "at_s": 1.0, "row": 0, "colour": "red"},
        {"type": "JobFinished", "at_s": 1.0, "row": 0, "outcome": "EXPLODED"},
        {"type": "CommandSent", "at_s": 1.0, "command": {"type": "Explode"}},
        {"type": "CommandSent", "at_s": 1.0, "command": None},
        {"type": "JobSubmitted", "at_s": 1.0, "spec": {"colour": "red"}},
        {"type": "DecisionTaken", "at_s": 1.0, "allocations": {"x": None}},
    ],
)
def test_what_is_no_event_is_an_error(record):
    with pytest.raises(StoreError):
        decode(record)


def test_a_field_that_an_older_version_did_not_write_has_its_default():
    record = encode(events.NodeJoined(1.0, "n", 4, "gpu"))
    del record["kind"]
    assert decode(record) == events.NodeJoined(1.0, "n", 4)
    record = encode(events.SuspendRequested(1.0, 0, "ann"))
    del record["by_itself"]
    assert decode(record) == events.SuspendRequested(1.0, 0, "ann")
    record = encode(events.FillMeasured(1.0, 1, 0, 1.05, 0.5, 1.01, 1.09, 9))
    for name in ("low", "high", "pairs"):
        del record[name]
    assert decode(record) == events.FillMeasured(1.0, 1, 0, 1.05, 0.5)
    record = encode(events.JobSubmitted(1.0, JobSpec("1", 1, 1.0, share=Share("background"))))
    del record["spec"]["share"]["weight"]
    assert decode(record).spec.share == Share("background")


def test_what_a_record_leaves_out_is_what_it_was_when_the_record_was_written():
    """The defaults belong to the format: with others, logs of before would tell of other jobs."""
    spec = {"job_id": "1", "num_gpus": 1, "submit_s": 1.5}
    record = {"type": "JobSubmitted", "at_s": 1.5}
    record["spec"] = spec | {"program": {"run": "true", "workdir": "/"}}
    found = decode(record).spec
    program = ("true", "/", (), "gpu", "auto", 10.0, "", "", 0, None, None, "", "fresh")
    assert found.program == program
    usual = {"priority": 50, "name": "", "user": "", "vc": "", "model": "", "speeds": ()}
    usual |= {"depends_on": (), "tags": (), "gpu_types": (), "notices": ()}
    usual |= {"suspension": Suspension.UNKNOWN}
    assert found._asdict() == dict.fromkeys(JobSpec._fields) | spec | usual | {"program": program}


@pytest.mark.parametrize("value", [object(), (1,), {1: 2}, {"a": {2}}, [b"x"], {None: 1}])
def test_a_mark_that_json_would_change_is_refused(value):
    marked = events.DecisionTaken(1.0, 1, "", {}, {}, {0: value}, None, None)
    for event in (marked, marked._replace(marks={}, policy_mark=value)):
        with pytest.raises(StoreError, match="can't be stored"):
            encode(event)
    with pytest.raises(StoreError, match="can't be stored"):
        encode(events.WorkerReported(1.0, 0, {"x": value}))


def test_something_else_is_no_event():
    with pytest.raises(StoreError, match="JobSpec"):
        encode(JobSpec("1", 1, 0.0))
