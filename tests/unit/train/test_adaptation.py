"""The scheduler's batches: how they are cut, what is refused, and what an agent hears of them."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from rota.errors import InputError
from rota.train import session
from rota.train.adaptation import OWN, Adaptation, Limits, is_asked_for, limits_of
from rota.train.batch_oom import complaint
from rota.train.shards import even_pieces, next_size, shards_of_rank
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


LEAST = Limits(initial=16, most=60, most_per_rank=9, least_per_rank=5)


@given(world=st.integers(1, 20), size=st.integers(16, 60), left=st.integers(5, 200))
def test_no_piece_is_smaller_than_the_least_whatever_is_left_of_the_epoch(world, size, left):
    made = adaptation(world, LEAST)
    made.size, made.world = size, 0
    made.fit(world)
    while left:
        taken = min(next_size(size, left, 5), left)
        left -= taken
        assert taken <= size + 4
        found = [
            piece
            for rank in range(world)
            for piece in even_pieces(
                range(taken), -(-size // made.shards), shards_of_rank(made.shards, world, rank), 5
            )
        ]
        assert {len(piece.samples) for piece in found} <= set(range(5, 10))
        assert [n for piece in found if piece.weight for n in piece.samples] == [*range(taken)]
        assert sum(piece.weight for piece in found) == pytest.approx(1)


def test_ranks_for_which_there_is_no_piece_of_the_least_size_take_part_without_samples():
    made = adaptation(8, LEAST)
    assert cut(made) == (16, 6, 0)  # three pieces, and five ranks without
    assert made.shards == 8


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((4, 3), "a rank takes 5 to 9 samples at once, and not 4"),
        ((6, 6), "2 ranks x 6 samples x 7 are more than the largest batch of 60"),
    ],
)
def test_a_batch_in_pieces_below_the_least_is_refused(batch, words):
    (answer,) = tuned(adaptation(2, LEAST), batch)
    assert answer["refusal"] == words


def test_another_initial_batch_begins_anew():
    made = adaptation(2)
    tuned(made, (64, 2))
    other = Adaptation(LIMITS._replace(initial=50))
    other.load(made.state())
    other.fit(2)
    assert cut(other) == (50, 25, 0)


def test_limits_are_those_of_the_job_file_and_of_the_data(monkeypatch):
    assert limits_of(100, 5000, 2) == (100, 100, 50, 1)  # nobody says that more is right
    monkeypatch.setenv("ROTA_MAX_BATCH", "4000")
    assert limits_of(100, 5000, 2) == (100, 4000, 50, 1)
    assert limits_of(100, 700, 2) == (100, 700, 50, 1)
    monkeypatch.setenv("ROTA_MAX_BATCH_PER_GPU", "256")
    assert limits_of(100, 5000, 2) == (100, 4000, 256, 1)
    with pytest.raises(InputError, match=r"max_global in the job file is 4000, .*batch_size=5000"):
        limits_of(5000, 9000, 2)
    monkeypatch.setenv("ROTA_MIN_BATCH_PER_GPU", "32")
    assert limits_of(100, 5000, 2) == (100, 4000, 256, 32)
    assert limits_of(100, 5000, 2).most_ranks == 125
    for initial, samples, words in [(31, 90, "batch_size=31"), (100, 31, "a dataset of 31")]:
        with pytest.raises(InputError, match=rf"min_per_gpu in the job file is 32, and .*{words}"):
            limits_of(initial, samples, 1)
    monkeypatch.delenv("ROTA_MAX_BATCH_PER_GPU")
    assert limits_of(100, 5000, 4).most_per_rank == 63  # else 64 could not be cut


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA error: out of memory"),
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


def stepped_back(made):
    """Whether it could, and what it comes to in the next attempt, on two ranks."""
    went = made.step_back()
    again = Adaptation(LIMITS)
    again.load(made.state())
    again.fit(2)
    return went, cut(again), again.limits[1:3]


def test_a_batch_that_does_not_fit_gives_way_to_the_one_before_it_for_good():
    made = adaptation(2)
    tuned(made, (55, 1))
    tuned(made, (64, 2))
    assert stepped_back(made) == (True, (220, 55, 1), (1000, 55))
    (answer,) = made.told()
    assert answer == {"type": "tuned", "batch": [64, 2], "refusal": "out of memory"}
    made.fit(2)
    assert "a rank takes 1 to 55 samples at once" in tuned(made, (64, 2))[0]["refusal"]
    tuned(made, (55, 3))  # no larger piece than what fit, but more of them
    assert stepped_back(made) == (True, (220, 55, 1), (220, 55))


def test_an_attempt_that_begins_with_a_batch_that_does_not_fit_goes_back_to_the_first_one():
    made, again = adaptation(2), Adaptation(LIMITS)
    tuned(made, (64, 2))
    again.load(made.state())
    again.fit(2)
    assert stepped_back(again) == (True, (100, 50, 0), (1000, 50))


def test_half_of_what_does_not_fit_may_be_tried_again_and_so_on():
    made = adaptation(2, Limits(16, 1000, 400))
    tried = []
    tuned(made, (400, 0))
    while made.per_rank > 40:  # so much fits
        assert made.step_back()
        made.fit(2)
        assert cut(made) == (16, 8, 0)
        tried.append(made.limits.most_per_rank)
        tuned(made, (tried[-1], 0))
    assert tried == [200, 100, 50, 25]


def test_fewer_ranks_for_which_a_batch_does_not_fit_take_it_in_smaller_pieces():
    made = adaptation(4)
    made.fit(2)
    assert stepped_back(made) == (True, (100, 25, 1), (1000, 25))


def test_the_programs_own_batch_is_its_own_affair():
    assert not adaptation(2).step_back()
    made = adaptation(2)
    tuned(made, (64, 2))
    tuned(made, OWN)
    assert cut(made) == (100, 50, 0)
    assert not made.step_back()


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

    def __init__(self, steps=9, tune=None, reduction=None, layers=(), seen=None, **options):
        torch.manual_seed(0)
        self.sizes, self.pieces = [], []
        x = torch.randn(20, 4)
        with session() as s:
            model = nn.Sequential(*layers, nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = s.prepare(model, optimizer, reduction=reduction)
            self.model = model
            data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(20))
            loader = s.loader(data, **({"adapt": True, "batch_size": 8} | options))
            for step in s.steps(steps):
                if tune is not None and step == tune[0]:
                    limits = loader.adaptation.limits
                    loader.adaptation.limits = limits._replace(most=16, most_per_rank=8)
                    loader.adaptation.want(*tune[1])
                taken = []
                for inputs, targets, numbers in s.next_batch():
                    (model(inputs) - targets).square().mean().backward()
                    taken.append(len(inputs))
                    if seen is not None:
                        seen += numbers.tolist()
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


class Small(nn.Module):
    """It trains on no fewer than three samples at once, as batch normalisation does on two."""

    def forward(self, x):
        assert len(x) >= 3
        return x


def test_pieces_have_the_least_that_the_job_file_says_also_the_last_of_an_epoch(monkeypatch):
    monkeypatch.setenv("ROTA_MAX_BATCH", "16")
    monkeypatch.setenv("ROTA_MIN_BATCH_PER_GPU", "3")
    run = Run(steps=9, tune=(0, (3, 2)), layers=[Small()])
    assert run.pieces[:2] == [[8], [3, 3, 3]]
    assert {20, 40} <= {*accumulate(map(sum, run.pieces))}
    assert run.told["least_per_gpu"] == 3


class Fits(nn.Module):
    """It has memory for so many samples at once, and counts steps in a buffer."""

    def __init__(self, most):
        super().__init__()
        self.most = most
        self.register_buffer("forwards", torch.zeros(()))

    def forward(self, x):
        self.forwards += 1
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x


def test_a_training_whose_batch_does_not_fit_goes_on_from_there_with_the_one_before(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))
    seen = []
    with pytest.raises(torch.OutOfMemoryError):
        Run(tune=(0, (8, 1)), layers=[Fits(5)], batch_size=4, seen=seen)
    assert list(tmp_path.iterdir()) == [tmp_path / "rota.pt"]
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == 4  # of the batch before it
    again = Run(steps=5, layers=[Fits(5)], batch_size=4, seen=seen)
    assert again.pieces == [[4]] * 4
    assert sorted(seen) == list(range(20))
    assert again.told["most_per_gpu"] == 4
    assert again.model[0].forwards == 5


def test_a_training_whose_first_batch_does_not_fit_has_nothing_to_go_back_to(monkeypatch, tmp_path):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))
    with pytest.raises(torch.OutOfMemoryError):
        Run(layers=[Fits(5)])
    assert list(tmp_path.iterdir()) == []


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
        times.note(cut_, step_s, step_s / 2, step_s / 4)
    assert times.message() == {"steps": 2, "step_s": 2.0, "gradient_s": 1.0, "wait_s": 0.5}
    assert times.of((1, 8, 0)) == times.message()
    nothing = {"steps": 0, "step_s": None, "gradient_s": None, "wait_s": None}
    assert times.of((2, 8, 0)) == nothing
    times.note((2, 8, 0), 7.0, 1.0)
    assert times.message() == nothing
    times.note((2, 8, 0), 4.0, 1.0)
    times.sent()
    times.note((2, 8, 0), 6.0, 1.0)
    assert times.message()["step_s"] == 6.0
