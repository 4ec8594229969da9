"""What operations count as that are measured with an error."""

from rota.flow.lengths import LIKE, Lengths

MS = 1e-3


class Known:
    """What the operations of clients count as; each has one kind."""

    def __init__(self):
        self.lengths = Lengths()
        self.count_s = {}

    def took(self, *seconds):
        for client, each in enumerate(seconds):
            self.count_s |= self.lengths.took(client, 1, each)
        return [self.count_s[client, 1] for client in range(len(seconds))]


def test_a_length_that_was_measured_wrongly_counts_as_others_once_it_is_measured_rightly():
    known = Known()
    first, second = known.took(3.3 * MS, 2.4 * MS)
    assert first > second
    first, second = known.took(2.6 * MS, 2.4 * MS)
    assert first == second


def test_lengths_that_differ_by_an_error_count_as_equal_whatever_others_there_are():
    for other in (0.5, 0.7, 0.8, 1.4, 1.5, 2.0):
        one, two, three, _ = Known().took(1.0 * MS, 1.04 * MS, 1.08 * MS, other * MS)
        assert one == two == three


def test_long_operations_count_as_longer():
    short, middle, long = Known().took(1 * MS, 1.5 * MS, 12 * MS)
    assert 0.9 * MS < short < 1.1 * MS < 1.4 * MS < middle < 1.6 * MS
    assert 11 * MS < long < 13 * MS


def test_lengths_that_counts_join_are_like_each_other():
    lengths = [1.1**each * MS for each in range(40)]
    counts = Known().took(*lengths)
    assert counts == sorted(counts)
    for shorter, longer in zip(lengths, lengths[4:], strict=False):
        assert shorter < LIKE * longer
        assert counts[lengths.index(shorter)] < counts[lengths.index(longer)]


def test_a_count_stays_while_it_is_a_length_of_its_group():
    known = Known()
    before = known.took(1.0 * MS, 1.0 * MS, 1.0 * MS)
    assert known.took(1.0 * MS, 1.1 * MS, 1.2 * MS) == before


def test_operations_shorter_than_a_turn_count_as_equal():
    short, longer = Known().took(0.02 * MS, 0.035 * MS)
    assert short == longer > 0


def test_a_client_that_is_gone_has_no_part():
    known = Known()
    known.took(1.0 * MS, 1.2 * MS)
    known.lengths.forget(1)
    assert set(known.lengths.took(0, 1, 2.0 * MS)) == {(0, 1)}
