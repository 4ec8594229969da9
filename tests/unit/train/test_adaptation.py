"""The scheduler's batches: how they are cut, what is refused, and what an agent hears of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from rota.errors import InputError
from rota.train import session
from rota.train.adaptation import OWN, Adaptation, Limits, complaint, is_asked_for, limits_of
from rota.train.step_times import StepTimes

LIMITS = Limits(initial=100, most=1000, most_per_rank=64)
NOTHING = (0, 0, 0, 0)


def adaptation(world=1, limits=LIMITS):
    made = Adaptation(limits)
    made.fit(world)
    return made


def cut(made):
    return made.size, made.per_rank, made.accumulation


def tuned(made, batch):
    """What is said and heard with the next batch."""
    made.want(*batch)
    word = made.word()
    made.hear(word)
    return made.told()


@pytest.mark.parametrize(
    ("world", "expected"),
    [(1, (100, 50, 1)), (2, (100, 50, 0)), (3, (100, 34, 0)), (100, (100, 1, 0))],
)
def test_the_initial_batch_is_cut_into_as_few_pieces_as_fit(world, expected):
    assert cut(adaptation(world)) == expected


def test_a_batch_of_the_schedulers_holds_from_the_next_one_on_and_the_agent_hears_of_it():
    made = adaptation(2)
    made.want(64, 2)
    word = made.word()
    assert cut(made) == (100, 50, 0)  # of the batch that the word travels with
    made.hear(word)
    assert cut(made) == (384, 64, 2)
    assert (made.shards, made.scale) == (6, 3.84)
    assert made.told() == [{"type": "tuned", "batch": [64, 2], "refusal": None}]
    assert made.told() == []
    assert made.word() == NOTHING


def test_a_rank_that_was_not_told_itself_hears_it_from_rank_0():
    first, other = adaptation(2), adaptation(2)
    first.want(64, 2)
    other.hear(first.word())
    assert cut(other) == (384, 64, 2)


def test_a_chosen_size_stays_when_the_gang_changes():
    made = adaptation(2)
    tuned(made, (64, 2))
    for world, expected in [(3, (384, 64, 1)), (6, (384, 64, 0)), (1, (384, 64, 5))]:
        made.fit(world)
        assert cut(made) == expected


def test_a_single_rank_accumulates_above_the_initial_batch_to_tell_the_noise():
    made = adaptation(1, Limits(100, 1000, 1000))
    assert cut(made) == (100, 100, 0)
    made.fit(4)
    tuned(made, (50, 0))
    made.fit(1)
    assert cut(made) == (200, 100, 1)


def test_the_job_goes_back_to_its_own_batch():
    made = adaptation(2)
    tuned(made, (64, 2))
    assert tuned(made, OWN) == [{"type": "tuned", "batch": [0, 0], "refusal": None}]
    assert cut(made) == (100, 50, 0)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((65, 0), "a rank takes 1 to 64 samples at once, and not 65"),
        ((0, 3), "a rank takes 1 to 64 samples at once, and not 0"),
        ((64, 8), "2 ranks x 64 samples x 9 are more than the largest batch of 1000"),
        ((40, 0), "2 ranks x 40 samples x 1 are fewer than the initial batch of 100"),
    ],
)
def test_a_batch_out_of_bounds_is_refused_once(batch, words):
    made = adaptation(2)
    (answer,) = tuned(made, batch)
    assert answer == {"type": "tuned", "batch": list(batch), "refusal": words}
    assert cut(made) == (100, 50, 0)
    assert made.word() == NOTHING


def test_bounds_are_met_where_pieces_are_rounded():
    most = adaptation(3)
    tuned(most, (56, 5))  # 3 x 56 x 6 = 1008
    assert cut(most) == (1000, 56, 5)
    least = adaptation(3)
    tuned(least, (33, 0))
    assert cut(least) == (100, 33, 0)


@given(
    worlds=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    batches=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 20)), min_size=1, max_size=6),
)
def test_sizes_stay_within_their_bounds_and_all_ranks_agree(worlds, batches):
    first, other = adaptation(), adaptation()
    for number, batch in enumerate(batches):
        for made in (first, other):
            made.fit(worlds[number % len(worlds)])
        first.want(*batch)
        word = first.word()
        for made in (first, other):
            made.hear(word)
        assert first.state() == other.state()
        assert 100 <= first.size <= 1000
        assert first.per_rank <= 64
        assert first.shards == first.world * (first.accumulation + 1)
        newcomer = Adaptation(LIMITS._replace(most_per_rank=1))
        newcomer.load(first.state())
        assert newcomer.state() == first.state()


def test_another_initial_batch_begins_anew():
    made = adaptation(2)
    tuned(made, (64, 2))
    other = Adaptation(LIMITS._replace(initial=50))
    other.load(made.state())
    other.fit(2)
    assert cut(other) == (50, 25, 0)


def test_limits_are_those_of_the_job_file_and_of_the_data(monkeypatch):
    assert limits_of(100, 5000, 2) == (100, 100, 50)  # nobody says that more is right
    monkeypatch.setenv("ROTA_MAX_BATCH", "4000")
    assert limits_of(100, 5000, 2) == (100, 4000, 50)
    assert limits_of(100, 700, 2) == (100, 700, 50)
    monkeypatch.setenv("ROTA_MAX_BATCH_PER_GPU", "256")
    assert limits_of(100, 5000, 2) == (100, 4000, 256)
    with pytest.raises(InputError, match=r"max_global in the job file is 4000, .*batch_size=5000"):
        limits_of(5000, 9000, 2)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
)
def test_a_batch_that_does_not_fit_is_told_with_what_to_do_about_it(error):
    made = adaptation(2)
    assert complaint(error, made) is None  # the program's own batch: its own affair
    tuned(made, (64, 2))
    told = complaint(error, made)
    assert "out of memory with 64 samples at once on each GPU, of a batch of 384" in told
    assert "set batch.max_per_gpu in the job file to less than 64" in told
    assert complaint(RuntimeError("shapes differ"), made) is None
    assert complaint(error, None) is None


def test_the_job_file_decides_unless_the_program_does(monkeypatch):
    assert not is_asked_for(None)
    assert is_asked_for(True)
    monkeypatch.setenv("ROTA_MAX_BATCH", "4000")
    assert is_asked_for(None)
    assert not is_asked_for(False)
    with pytest.raises(InputError, match="adapt='yes' must be True, False or None"):
        is_asked_for("yes")


class Run:
    """A training alone, with batches of eight of twenty samples, and what it saw."""

    def __init__(self, steps=9, tune=None, reduction=None, **options):
        torch.manual_seed(0)
        self.sizes, self.pieces = [], []
        x = torch.randn(20, 4)
        with session() as s:
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = s.prepare(model, optimizer, reduction=reduction)
            data = TensorDataset(x, x.sum(1, keepdim=True))
            loader = s.loader(data, batch_size=8, **({"adapt": True} | options))
            for step in s.steps(steps):
                if tune is not None and step == tune[0]:
                    loader.adaptation.limits = Limits(8, 16, 8)
                    loader.adaptation.want(*tune[1])
                taken = []
                for inputs, targets in s.next_batch():
                    (model(inputs) - targets).square().mean().backward()
                    taken.append(len(inputs))
                optimizer.step()
                optimizer.zero_grad()
                self.pieces.append(taken)
            self.scaled_steps = s.scaled_steps
            self.told = s._progress.message()["adaptation"]


def test_batches_change_behind_the_one_that_the_word_travels_with():
    run = Run(steps=6, tune=(1, (5, 1)))
    assert run.pieces == [[8], [8], [4], [5, 5], [5, 5], [5, 5]]
    assert (run.told["size"], run.told["per_gpu"], run.told["accumulation"]) == (10, 5, 1)
    assert run.told["gpus"] == 1
    assert 5.5 <= run.scaled_steps <= 2.5 + 3 * 10 / 8
    assert run.told["scaled_steps"] == run.scaled_steps


def test_a_report_tells_the_noise_once_it_is_known():
    assert Run(steps=1).told["var"] is None
    told = Run(steps=2).told
    assert told["var"] > 0
    assert told["sqr"] >= 0


def test_learning_rates_follow_by_the_rule_that_the_program_chose():
    Run(lr_scaling="legw", warmup_epochs=2)
    with pytest.raises(InputError, match="lr_scaling='cubic' must be one of"):
        Run(lr_scaling="cubic")


def test_torchs_own_reduction_shows_no_gradients_of_parts():
    with pytest.raises(InputError, match=r"reduction='ddp'.*leave reduction out"):
        Run(reduction="ddp")


def test_a_batch_that_grows_with_the_gang_is_nobody_elses_to_choose():
    with (
        pytest.raises(InputError, match="batch_size_per_rank=2 grows with the gang"),
        session() as s,
    ):
        s.loader([1] * 20, batch_size_per_rank=2, adapt=True)


def test_times_of_steps_are_those_of_one_cut():
    times = StepTimes()
    for cut_, step_s in [((1, 8, 0), 9.0), ((1, 8, 0), 1.0), ((1, 8, 0), 3.0)]:
        times.note(cut_, step_s, step_s / 2)
    assert times.message() == {"steps": 2, "step_s": 2.0, "gradient_s": 1.0}
    assert times.of((1, 8, 0)) == times.message()
    assert times.of((2, 8, 0)) == {"steps": 0, "step_s": None, "gradient_s": None}
    times.note((2, 8, 0), 7.0, 1.0)
    assert times.message() == {"steps": 0, "step_s": None, "gradient_s": None}
    times.note((2, 8, 0), 4.0, 1.0)
    times.sent()
    times.note((2, 8, 0), 6.0, 1.0)
    assert times.message()["step_s"] == 6.0
