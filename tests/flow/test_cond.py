"""Branches that are chosen on devices: both are traced, and one is computed."""

import pytest
import torch

from rota import flow
from rota.errors import InputError, OperationError

HERE = "support.flow_functions"
SPLIT = flow.Split(0)


def of(where: flow.Slice, name: str, out: object = None) -> flow.Function:
    return where.function(f"{HERE}:{name}", out)  # type: ignore[arg-type]


def test_one_branch_is_computed_and_the_program_is_traced_once(island, client):
    one, pair = client.slice(1), client.slice(2)
    recorded, scaled, total = of(one, "recorded"), of(one, "scaled"), of(pair, "plus_total", SPLIT)
    traced = []

    def plan(decides, letter, x):
        traced.append(decides)

        def yes(letter, x):
            return recorded(letter), total(x)

        def no(letter, x):
            return scaled(letter), scaled(x.to(one, flow.Replicated())).to(pair, SPLIT)

        return flow.cond(decides, yes, no, letter, x)

    program, before = client.program(plan), island.record()
    letter, x = one.put(torch.tensor([ord("c")])), pair.put(torch.tensor([1, 2]), SPLIT)
    for decides in (True, False, 0.5, 0):
        y, z = program(one.put(torch.tensor([[decides]])), letter, x)
        assert y.result().tolist() == ([99] if decides else [298])
        assert z.result().tolist() == ([4, 5] if decides else [4, 7])
    assert island.record()[len(before) :] == b"cc"
    assert len(traced) == 3  # of bool, float and int


def test_a_loop_ends_when_the_devices_say_so(client):
    pair = client.slice(2)
    total, positive = of(pair, "plus_total", SPLIT), of(pair, "positive", flow.Replicated())

    def until_positive(x):
        return flow.cond(positive(x), lambda x: x, total, x)

    program = client.program(lambda x: flow.repeat(6, until_positive, x))
    x, expected = torch.tensor([-8, -7, 20]), torch.tensor([-8, -7, 20])
    while not any(each.sum() > 0 for each in expected.tensor_split(2)):
        expected = expected + expected.sum()
    assert program(pair.put(x, SPLIT)).result().tolist() == expected.tolist()


def test_branches_lie_in_branches_and_outside_of_programs(client):
    one, other = client.slice(1), client.slice(1)
    scaled, ranks = of(one, "scaled"), of(other, "scaled")

    def inner(q, x):
        return flow.cond(q, lambda x: ranks(x).to(one), lambda x: scaled(scaled(x)), x)

    def outer(q, x):
        return x

    x = one.put(torch.tensor([1]))
    for p in (False, True):
        for q in (False, True):
            decide, then = one.put(torch.tensor(p)), other.put(torch.tensor([q]))
            y = flow.cond(decide, inner, outer, then, x)
            assert y.result().tolist() == [(4 if q else 13) if p else 1]


def test_branches_that_are_defined_anew_make_no_other_program(client):
    one = client.slice(1)
    scaled, added = of(one, "scaled"), of(one, "added")
    x, p = one.put(torch.tensor([1])), one.put(torch.tensor([True]))
    counts = []
    for times in (1, 1, 1, 2):
        y = flow.cond(p, lambda x: scaled(x), lambda x: flow.repeat(times, scaled, x), x)  # noqa: B023
        assert y.result().tolist() == [4]
        counts.append(client._numbers["program"])
    both = flow.cond(p, lambda x: (scaled(x),), lambda x: (added(x, x),), x)
    assert [each.result().tolist() for each in both] == [[4]]
    assert counts[0] == counts[1] == counts[2] == counts[3] - 1


def test_what_fails_in_a_branch_matters_only_if_it_is_taken(client):
    pair = client.slice(2)
    raises, total = of(pair, "raises_on_second", SPLIT), of(pair, "plus_total", SPLIT)
    x = pair.put(torch.tensor([1, 2]), SPLIT)
    program = client.program(lambda p, x: flow.cond(p, raises, total, x))
    assert program(pair.put(torch.tensor(0)), x).result().tolist() == [4, 5]
    with pytest.raises(OperationError, match="raises_on_second"):
        program(pair.put(torch.tensor(1)), x).result()
    client.recover()
    assert program(pair.put(torch.tensor(0)), x).result().tolist() == [4, 5]


def test_a_predicate_that_failed_is_the_error_of_both_branches(client):
    one, other = client.slice(1), client.slice(1)
    scaled, there = of(one, "scaled"), of(other, "scaled")
    bad = of(one, "raises")(one.put(torch.tensor([1])))
    x = one.put(torch.tensor([1]))
    for yes, no in ((scaled, lambda x: there(x).to(one)), (lambda x: there(x).to(one), scaled)):
        with pytest.raises(OperationError, match="the number is wrong"):
            flow.cond(bad, yes, no, x).result()
    assert scaled(x).result().tolist() == [4]


def test_shards_that_disagree_on_a_replicated_predicate_do_not_part(client):
    pair = client.slice(2)
    ranks, total = of(pair, "doubled_ranks", flow.Replicated()), of(pair, "plus_total", SPLIT)
    x = pair.put(torch.tensor([1, 2]), SPLIT)
    decides = ranks(pair.put(torch.tensor([0])))  # 0 and 1
    assert flow.cond(decides, total, lambda x: x, x).result().tolist() == [1, 2]


def test_branches_that_differ_and_predicates_that_are_none_are_refused(client):
    one, other, pair = client.slice(1), client.slice(1), client.slice(2)
    scaled, there = of(one, "scaled"), of(other, "scaled")
    x, p = one.put(torch.tensor([1])), one.put(torch.tensor([True]))
    wide, halves = pair.put(torch.tensor([1, 2])), pair.put(torch.tensor([1, 2]), SPLIT)
    floats, longer = one.put(torch.tensor([1.0])), one.put(torch.tensor([1, 2]))
    for yes, no, values, says in (
        (scaled, there, [x], r"output 0 is on devices \[0\] by yes, and \[1\] by no"),
        (lambda x, y: x, lambda x, y: y, [wide, halves], "has the layout Replicated"),
        (lambda x, y: x, lambda x, y: y, [x, floats], "the type int64 by yes, and float32 by no"),
        (lambda x, y: x, lambda x, y: y, [x, longer], r"the shape \(1,\) by yes, and \(2,\) by no"),
        (lambda x: x, lambda x: (x,), [x], "yes gives one array, and no a tuple of 1"),
        (lambda x: x, lambda x: 3, [x], "a branch of cond returned 3"),
    ):
        with pytest.raises(InputError, match=says):
            flow.cond(p, yes, no, *values)
    ranks = of(pair, "doubled_ranks")(wide)
    for decides, says in (
        (True, "the predicate is a bool"),
        (longer, r"the shape \(2,\); it has one element"),
        (ranks, "no parts of a whole"),
    ):
        with pytest.raises(InputError, match=says):
            flow.cond(decides, scaled, scaled, x)
    assert flow.cond(p, scaled, scaled, x).result().tolist() == [4]
