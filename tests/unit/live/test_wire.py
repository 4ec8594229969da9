import pytest

from rota.errors import AgentError
from rota.live.wire import MAX_LINE_BYTES, decode, encode, split
from rota.live.wire.messages import (
    ADAPTATION,
    MAX_SENTENCE,
    from_worker,
    is_model,
    is_progress,
    planned_of,
    progress_of,
)


def test_messages_come_back_whole_however_the_stream_is_cut():
    messages = [{"type": "at", "step": n, "text": "a\nb"} for n in range(3)]
    stream = b"".join(map(encode, messages))
    for size in (1, 2, 7, len(stream)):
        buffer, got = bytearray(), []
        for start in range(0, len(stream), size):
            buffer += stream[start : start + size]
            got += split(buffer)
        assert got == messages
        assert not buffer


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"type": 3}', b"\xff"])
def test_what_is_no_message_is_refused(line):
    with pytest.raises(AgentError):
        decode(line)
    with pytest.raises(AgentError):
        split(bytearray(line + b"\n"))


def test_a_line_without_end_is_refused_before_it_fills_the_memory():
    with pytest.raises(AgentError, match="1 MiB"):
        split(bytearray(b"x" * (MAX_LINE_BYTES + 1)))


GOOD = {"at_s": 1.0, "step": 3, "total": None, "samples": 8, "loss": 0.5, "metrics": {"acc": 1.0}}


def test_a_report_as_the_library_makes_it_is_well_formed():
    assert is_progress(GOOD | {"step_time_s": 0.01, "first_100_s": None})
    assert is_progress(GOOD | {"batch": 32, "device_util": 0.5, "util_since_s": 0.25})


def test_of_a_report_nothing_is_passed_on_that_was_not_looked_at():
    assert progress_of(GOOD | {"cpu_s": "all", "type": "report", "batch": 4}) == GOOD | {"batch": 4}


def test_why_there_is_no_checkpoint_is_passed_on_in_few_words():
    assert is_progress(GOOD | {"unsaved": None})
    assert progress_of(GOOD | {"unsaved": None}) == GOOD
    assert is_progress(GOOD | {"unsaved": "no room"})
    assert progress_of(GOOD | {"unsaved": "no room" * 1000})["unsaved"] == ("no room" * 1000)[:500]


def test_of_batches_that_are_chosen_only_the_known_numbers_are_passed_on():
    told = {"initial": 32, "most": 4096, "sqr": 0.5, "var": None, "other": "x"}
    message = GOOD | {"adaptation": told}
    assert is_progress(message)
    passed = progress_of(message)["adaptation"]
    assert set(passed) == set(ADAPTATION)
    assert (passed["initial"], passed["sqr"], passed["var"], passed["gpus"]) == (
        32,
        0.5,
        None,
        None,
    )
    assert progress_of(GOOD | {"adaptation": None}) == GOOD


STEPS = {"steps": 4, "step_s": 0.5, "wait_s": 0.2, "since_s": 1.0, "workers": 2}


def test_of_the_times_of_phases_only_the_known_figures_are_passed_on():
    evaluation = {"steps": 1, "step_s": 3, "wait_s": None, "since_s": 1.0, "workers": None}
    told = {"train": STEPS | {"other": "x" * 1000}, "evaluate": evaluation}
    assert progress_of(GOOD | {"phases": told})["phases"] == told | {"train": STEPS}
    assert progress_of(GOOD | {"phases": None}) == GOOD


@pytest.mark.parametrize(
    "wrong",
    [3, {"sleep": STEPS}, {"train": STEPS | {"wait_s": float("nan")}}, {"train": {}}],
    ids=["no mapping", "no phase", "no number", "nothing"],
)
def test_a_report_whose_times_of_phases_can_not_be_counts_without_them(wrong):
    assert is_progress(GOOD | {"phases": wrong})
    assert progress_of(GOOD | {"phases": wrong}) == GOOD


@pytest.mark.parametrize(
    "bad",
    [
        {"adaptation": [1]},
        {"adaptation": {"sqr": float("nan")}},
        {"adaptation": {"var": -1.0}},
        {"adaptation": {"step_s": "fast"}},
        {"step": None},
        {"step": "3"},
        {"step": -1},
        {"samples": 1 << 63},
        {"step_time_s": -0.5},
        {"first_100_s": 1e12},
        {"at_s": -1.0},
        {"total": 10**400},
        {"at_s": "x"},
        {"batch": 2.5},
        {"util_since_s": "now"},
        {"device_util": float("inf")},
        {"loss": float("nan")},
        {"unsaved": 1},
        {"unsaved": "no room\ud800"},
        {"metrics": {"acc\ud800": 1.0}},
        {"metrics": {"acc": {"deep": 1.0}}},
        {"metrics": [1.0]},
        {"metrics": {"x" * 1000: 1.0}},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_report_that_would_hurt_its_readers_is_not(bad):
    assert not is_progress(GOOD | bad)


HELLO = {"type": "hello", "job_id": "1", "attempt": 1, "rank": 0, "suspended": False}
SUSPENDED = {"type": "suspended", "step": 4, "stopped_s": 2.5, "keeps": None}


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"type": "failing"}, "error"),
        ({"type": "kept"}, "error"),
        ({"type": "broken", "generation": 1}, "error"),
        ({"type": "tuned", "batch": [1, 0]}, "refusal"),
        (SUSPENDED, "keeps"),
    ],
)
def test_sentences_of_a_worker_are_short(message, name):
    said = from_worker(encode(message | {name: "no room " * 100_000}))[name]
    assert len(said) == MAX_SENTENCE
    assert said.startswith("no room no")
    assert said.endswith("...")
    assert from_worker(encode(message | {name: "x" * MAX_SENTENCE}))[name] == "x" * MAX_SENTENCE
    assert from_worker(encode(message | {name: "half \ud800"}))[name] == "half ?"


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        HELLO | {"generation": 2, "shards": None},
        HELLO | {"suspended": True, "step": 4, "stopped_s": 2.5},
        SUSPENDED,
        SUSPENDED | {"keeps": "it has threads"},
        {"type": "report", "step": "looked at elsewhere"},
        {"type": "of a later version"},
    ],
    ids=str,
)
def test_what_a_worker_says_is_taken_as_it_is(message):
    assert from_worker(encode(message)) == message


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (HELLO | {"job_id": ["1"]}, "job_id"),
        (HELLO | {"rank": -1}, "rank"),
        (HELLO | {"rank": True}, "rank"),
        (HELLO | {"shards": 1 << 63}, "shards"),
        (HELLO | {"suspended": True, "step": 4}, "stopped_s"),
        (SUSPENDED | {"stopped_s": float("nan")}, "stopped_s"),
        (SUSPENDED | {"stopped_s": "now"}, "stopped_s"),
        (SUSPENDED | {"keeps": {}}, "keeps"),
        ({"type": "at", "step": 10**400}, "step"),
        ({"type": "written"}, "bytes"),
        ({"type": "kept", "error": None}, "error"),
        ({"type": "hosting", "generation": 1, "port": "80"}, "port"),
        ({"type": "broken", "generation": 1.5, "error": ""}, "generation"),
    ],
    ids=str,
)
def test_what_its_agent_could_not_act_upon_is_refused(message, field):
    with pytest.raises(AgentError, match=f"{message['type']}: its {field} is"):
        from_worker(encode(message))


@pytest.mark.parametrize(("model", "largest"), [(1, 1), (10, 3), (1 << 60, 1 << 59)])
def test_a_model_has_a_size_and_a_largest_tensor(model, largest):
    assert is_model({"model_bytes": model, "largest_tensor_bytes": largest})


@pytest.mark.parametrize(
    ("model", "largest"),
    [
        (0, 0),
        (10, 0),
        (10, 11),
        (-3, -5),
        (True, True),
        (10, True),
        (10.0, 3.0),
        ("10", "3"),
        (10, None),
        ([10], [3]),
        (1 << 61, 3),
        (10**400, 10**399),
        (float("nan"), 1),
    ],
)
def test_sizes_that_no_model_has_are_not(model, largest):
    assert not is_model({"model_bytes": model, "largest_tensor_bytes": largest})


@pytest.mark.parametrize("message", [None, 3, "model", [], {}, {"model_bytes": 3}])
def test_what_tells_no_sizes_is_no_model(message):
    assert not is_model(message)


PLAN = {"batch": 32, "step_s": [0.5, 0.25, None], "idle": [0.0, 0.625]}


def test_of_a_plan_of_layers_only_the_known_fields_are_passed_on():
    assert planned_of(PLAN | {"type": "planned", "other": "x"}) == PLAN
    assert planned_of(PLAN | {"idle": [0, 1]}) == PLAN | {"idle": [0.0, 1.0]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": True},
        {"batch": 32.5},
        {"batch": None},
        {"batch": 1 << 62},
        {"step_s": []},
        {"step_s": None},
        {"step_s": [0.5]},
        {"step_s": [0.5, None, 0.25]},
        {"step_s": [0.5, 0.0]},
        {"step_s": [0.5, -0.25]},
        {"step_s": [0.5, 1e9]},
        {"step_s": [0.5, "0.25"]},
        {"step_s": [0.5, float("nan")]},
        {"step_s": [0.5, float("inf")]},
        {"step_s": [10**400, 0.25]},
        {"step_s": [0.5] * 257},
        {"idle": []},
        {"idle": 0.5},
        {"idle": [0.5, 1.5]},
        {"idle": [-0.5, 0.5]},
        {"idle": [0.0, float("nan")]},
        {"idle": [0.0, None]},
        {"idle": [0.0] * 4},
    ],
    ids=str,
)
def test_what_is_no_plan_of_layers_is_not(wrong):
    assert planned_of(PLAN | wrong) is None


@pytest.mark.parametrize("message", [None, 3, "planned", [], {}, {"batch": 32}])
def test_what_tells_no_plan_is_none(message):
    assert planned_of(message) is None
