"""What can't be right with several ranks is refused, wherever the program runs, with what to do."""

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from rota.errors import InputError
from rota.train import session


def data(samples=24):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Run:
    """A session with a model in it, alone."""

    def __init__(self, s, **loader):
        torch.manual_seed(0)
        self.s, self.model = s, nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        s.prepare(self.model, self.optimizer)
        self.loader = s.loader(data(), **({"batch_size": 8, "shards": 4} | loader))

    def pieces(self, batch):
        for x, y in batch:
            yield
            (self.model(x) - y).square().mean().backward()

    def step(self, batch):
        list(self.pieces(batch))
        self.optimizer.step()


def error(words):
    return pytest.raises(InputError, match=words)


def test_a_batch_that_is_left_by_break_is_an_error_at_the_step():
    with error("the loop over the pieces of a batch was left before its end"), session() as s:
        run = Run(s)
        for _ in s.steps(3):
            for _ in run.pieces(s.next_batch()):
                break


def test_a_batch_that_an_exception_left_is_an_error_too():
    with error("by break or by an exception"), session() as s:
        run = Run(s)
        for _ in s.epochs(1):
            for batch in run.loader:
                try:
                    for _ in run.pieces(batch):
                        raise ValueError("out of memory")
                except ValueError:
                    continue


def test_a_break_out_of_both_loops_is_noticed_at_the_end():
    with error("left before its end"), session() as s:
        run = Run(s)
        for batch in (batch for _ in s.epochs(1) for batch in run.loader):
            for _ in batch:
                break
            break


def test_a_batch_may_be_worked_through_again_after_a_break():
    with session() as s:
        run = Run(s)
        for _ in s.steps(2):
            batch = s.next_batch()
            for _ in run.pieces(batch):
                break
            run.step(batch)
        assert s._progress.samples == 16


def test_a_batch_that_is_taken_and_never_worked_through_is_an_error():
    with error("a batch was taken and not worked through"), session() as s:
        Run(s)
        for _ in s.steps(3):
            s.next_batch()


def test_an_epoch_may_be_cut_short_before_a_batch_is_begun():
    seen = []
    with session() as s:
        run = Run(s)
        for epoch in s.epochs(2):
            for number, batch in enumerate(run.loader):
                if number == 2:
                    break
                run.step(batch)
                seen.append((epoch, batch.samples))
        assert seen == [(0, 8), (0, 8), (1, 8), (1, 8)]
        assert s._progress.step == 4


def test_an_optimizer_step_inside_the_loop_over_pieces_is_refused():
    with error("step after the loop over its pieces"), session() as s:
        run = Run(s)
        for _ in s.steps(1):
            for _ in run.pieces(s.next_batch()):
                run.optimizer.step()


def test_models_that_ask_for_different_reductions_are_refused():
    with error("reduction='tree' differs from that of a model before"), session() as s:
        run = Run(s)
        s.prepare(nn.Linear(1, 1), None, reduction="tree")
        assert run


def test_parameters_of_no_prepared_model_are_refused_at_the_start():
    with error(r"a parameter of shape \(2, 3\) that is in no model"), session() as s:
        run = Run(s)
        run.optimizer.add_param_group({"params": nn.Linear(3, 2, bias=False).parameters()})
        next(s.epochs(1))


def test_parameters_of_no_prepared_model_are_refused_when_they_are_added_later():
    with error(r"shape \(2, 3\) that is in no model given to s.prepare before the"), session() as s:
        run = Run(s)
        for step in s.steps(3):
            if step == 1:
                run.optimizer.add_param_group({"params": nn.Linear(3, 2, bias=False).parameters()})
            run.step(s.next_batch())


def test_parameters_of_a_prepared_model_may_be_added_later():
    with session() as s:
        run = Run(s)
        head = nn.Linear(3, 2)
        s.prepare(head, None)
        for step in s.steps(3):
            if step == 1:
                run.optimizer.add_param_group({"params": head.parameters()})
            run.step(s.next_batch())


def test_a_model_prepared_after_the_first_step_is_refused():
    with error("s.prepare was called after the first step"), session() as s:
        run = Run(s)
        for _ in s.steps(1):
            run.step(s.next_batch())
            s.prepare(nn.Linear(1, 1), None)


def test_lbfgs_is_for_jobs_of_one_rank(monkeypatch):
    def train():
        with session() as s:
            model = nn.Linear(4, 1)
            s.prepare(model, torch.optim.LBFGS(model.parameters()))
            s.loader(data(), batch_size=8)
            next(s.steps(1))

    train()
    monkeypatch.setenv("ROTA_MAX_WORLD", "2")
    monkeypatch.setattr("rota.train.training.Training._open_world", lambda _: None)
    with error("LBFGS works out gradients in its step"):
        train()


def test_a_closure_must_not_call_backward_where_there_may_be_several_ranks(monkeypatch):
    monkeypatch.setenv("ROTA_MAX_WORLD", "2")
    monkeypatch.setattr("rota.train.training.Training._open_world", lambda _: None)
    with session() as s:
        run = Run(s)
        for _ in s.steps(1):
            list(run.pieces(s.next_batch()))
            assert run.optimizer.step(lambda: 5.0) == 5.0
            with error("the closure given to optimizer.step"):
                run.optimizer.step(lambda: run.model(torch.ones(1, 4)).sum().backward())
            with error("the closure given to optimizer.step"):
                run.optimizer.step(closure=run.optimizer.zero_grad)


def test_values_that_no_other_rank_could_get_are_refused_at_once():
    with session() as s:
        s.save(
            a=torch.zeros(3, requires_grad=True), b=[1, {"x": numpy.zeros(2)}], c=nn.Linear(1, 1)
        )
        with error("s.save: best=function can't be pickled"):
            s.save(best=lambda: 1)
        with error("s.save: best=list can't be pickled"):
            s.save(best=[torch.zeros(1), {"x": (i for i in range(3))}])
        assert s.restore("best") is None


def test_where_there_may_be_other_ranks_values_must_be_such_as_can_be_handed_over(monkeypatch):
    monkeypatch.setenv("ROTA_MAX_WORLD", "2")
    with session() as s:
        s.save(a=torch.zeros(3), b=[1, {"x": numpy.zeros(2)}], c=numpy.float64(1))
        with error("s.save: best=Linear: a Linear can't be handed to another process; give"):
            s.save(best=nn.Linear(1, 1))
        assert s.restore("best") is None


def test_a_loader_outside_of_the_loops_over_epochs_and_steps_is_refused():
    with error(r"iterate over the loader inside s.epochs\(\)"), session() as s:
        run = Run(s)
        for batch in run.loader:
            run.step(batch)


@pytest.mark.parametrize(("batch_size", "shards"), [(64, 8), (8, 8), (7, 7), (12, 6), (1, 1)])
def test_a_batch_is_cut_into_eight_shards_unless_some_would_have_no_samples(batch_size, shards):
    with session() as s:
        assert s.loader(data(64), batch_size=batch_size).shards == shards


def test_more_ranks_than_shards_by_default_are_refused(monkeypatch):
    monkeypatch.setenv("ROTA_MAX_WORLD", "16")
    with session() as s:
        with error(r"may have 16 ranks.*cut into 8 shards by default; give s.loader\(..., shards="):
            s.loader(data(64), batch_size=32)
        assert s.loader(data(64), batch_size=32, shards=16).shards == 16


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Endless()}, "Endless has no length or can't be indexed"),
        ({"dataset": 5}, "int has no length"),
        ({"seed": "0"}, "seed='0' must be a whole number"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number"),
        ({"shuffle": 1}, "shuffle=1 must be True or False"),
        ({"drop_last": "no"}, "drop_last='no' must be True or False"),
        ({"collate_fn": "stack"}, "collate_fn='stack' must be a function"),
        ({"num_workers": 1.0}, "num_workers=1.0 must be a whole number from 0"),
    ],
)
def test_arguments_of_the_loader_that_make_no_sense_are_refused(options, words):
    with error(words), session() as s:
        s.loader(**({"dataset": data(), "batch_size": 8} | options))


def test_whole_numbers_of_numpy_are_taken():
    with session() as s:
        two = numpy.int64(2)
        loader = s.loader(
            data(), batch_size=numpy.int32(8), shards=two, seed=two, num_workers=numpy.uint8(0)
        )
        assert [loader.batch_size, loader.shards, loader.seed] == [8, 2, 2]
        assert {type(n) for n in (loader.batch_size, loader.shards, loader.seed)} == {int}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("net", None), "the model is a str, not a torch.nn.Module"),
        (
            (nn.Linear(1, 1), nn.Linear(1, 1)),
            "the optimizer is a Linear, which has no param_groups",
        ),
        ((nn.Linear(1, 1), None, 5), "a int has no state_dict and load_state_dict"),
    ],
)
def test_what_can_not_be_prepared_is_refused(parts, words):
    with error(words), session() as s:
        s.prepare(*parts)


def test_a_growing_batch_is_as_large_as_the_gang_from_the_beginning(monkeypatch):
    monkeypatch.setenv("ROTA_MAX_WORLD", "4")
    with session() as s:
        loader = s.loader(data(24), batch_size_per_rank=3)
        assert len(loader) == 8


class Attempt:
    """Training by epochs, with a scheduler's step and a checkpoint at the end of each."""

    def __init__(self, stop_after=None):
        self.bodies, self.best = [], None
        with session() as s:
            run = Run(s, seed=3)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
            s.prepare(nn.Linear(1, 1), None, scheduler)
            self.best = s.restore("best", "nothing yet")
            for epoch in s.epochs(4):
                self.bodies.append(epoch)
                for batch in run.loader:
                    run.step(batch)
                scheduler.step()
                s.save(best=epoch)
                s.checkpoint()
                if epoch == stop_after:
                    break
            self.rates = scheduler.get_last_lr()
            self.weights = [p.detach().clone() for p in run.model.parameters()]


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))
    whole = Attempt()
    (tmp_path / "rota.pt").unlink()
    Attempt(stop_after=1)
    resumed = Attempt()
    assert (whole.bodies, resumed.bodies) == ([0, 1, 2, 3], [2, 3])
    assert resumed.rates == whole.rates == [0.1 * 0.5**4]
    for one, other in zip(resumed.weights, whole.weights, strict=True):
        assert torch.equal(one, other)


def test_values_of_the_attempt_before_are_there_ahead_of_the_loop(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))
    assert Attempt(stop_after=1).best == "nothing yet"
    assert Attempt().best == 1


def test_a_checkpoint_in_the_last_batch_of_an_epoch_goes_on_with_the_rest_of_its_body(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))

    def train(until):
        seen = []
        with session() as s:
            run = Run(s)
            for epoch in s.epochs(2):
                for number, batch in enumerate(run.loader):
                    run.step(batch)
                    seen.append((epoch, number))
                    if (epoch, number) == until:
                        s.checkpoint()
                        return seen
                seen.append((epoch, "rest"))
        return seen

    train((0, 2))
    assert train(None) == [(0, "rest"), (1, 0), (1, 1), (1, 2), (1, "rest")]
