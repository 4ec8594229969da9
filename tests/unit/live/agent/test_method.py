"""Which way of suspension a job gets that has no session, and why."""

import pytest

from rota.live.agent.method import choose

REFUSAL = "its driver is too old"


@pytest.mark.parametrize(
    ("wish", "kind", "gpus", "refusal", "method", "words"),
    [
        ("auto", "cpu", 1, None, "stop", ["frees its core"]),
        ("auto", "cpu", 2, None, "stop", ["frees its core"]),
        ("stop", "cpu", 1, None, "stop", ["asked for that"]),
        ("restart", "cpu", 2, None, "restart", ["asked for that", "after 7.5 s"]),
        ("cuda-checkpoint", "cpu", 1, None, "stop", ["asked for cuda-checkpoint", "no GPU"]),
        ("auto", "cuda", 1, None, "cuda-checkpoint", ["driver and cuda-core can"]),
        ("auto", "cuda", 1, REFUSAL, "stop", [REFUSAL, "same GPUs alone", "suspend: restart"]),
        ("auto", "cuda", 2, None, "stop", ["2 GPUs", "NCCL", "same GPUs alone"]),
        ("stop", "cuda", 1, None, "stop", ["asked for that", "same GPUs alone"]),
        ("restart", "cuda", 2, REFUSAL, "restart", ["asked for that"]),
        ("cuda-checkpoint", "cuda", 1, None, "cuda-checkpoint", ["asked for that"]),
        ("cuda-checkpoint", "cuda", 1, REFUSAL, "stop", ["asked for cuda-checkpoint", REFUSAL]),
        ("cuda-checkpoint", "cuda", 4, None, "stop", ["asked for cuda-checkpoint", "4 GPUs"]),
    ],
)
def test_the_method_follows_from_the_wish_and_the_node(wish, kind, gpus, refusal, method, words):
    chosen = choose({"suspend": wish, "grace_s": 7.5}, kind, gpus, refusal)
    assert chosen.kind == method
    assert all(word in chosen.why for word in words), chosen.why


def test_a_program_of_an_older_record_is_stopped_where_it_is():
    assert choose({"run": "x"}, "cpu", 1, None).kind == "stop"
