"""The Gittins index on samples whose figures can be worked out by hand, and files of sizes."""

from math import inf

import pytest

from rota.errors import InputError
from rota.predict.gittins import Gittins, parse_sizes, read_sizes

TRIO = Gittins((12, 4, 8))


@pytest.mark.parametrize(
    ("attained", "index"),
    [(0, 1 / 8), (1, 1 / 7), (2, 1 / 6), (3, 1 / 3), (4, 1 / 6), (7, 1 / 2), (8, 1 / 4), (11, 1)],
)
def test_the_best_grant_of_the_worked_example(attained, index):
    assert TRIO.best(attained)[0] == pytest.approx(index)


@pytest.mark.parametrize(
    ("attained", "grant", "index"),
    [(0, 4, 1 / 12), (1, 4, 1 / 11), (2, 4, 1 / 10), (3, 4, 1 / 9), (4, 4, 1 / 8), (0, 8, 1 / 10)],
)
def test_a_grant_of_fixed_length_in_the_worked_example(attained, grant, index):
    assert TRIO.index(attained, grant) == pytest.approx(index)


def test_an_endless_grant_gives_one_over_the_mean_of_what_is_left():
    assert TRIO.index(6) == pytest.approx(1 / 4)


def test_a_job_larger_than_every_one_known_has_no_index():
    assert TRIO.index(12, 100) == 0
    assert TRIO.best(12) == (0, inf)
    assert Gittins(()).best(0) == (0, inf)


def test_a_grant_too_short_for_any_known_size_has_no_index():
    assert TRIO.index(0, 3.9) == 0
    assert TRIO.index(0, 4) > 0


def test_equal_sizes_are_counted_each():
    assert Gittins((5, 5, 5, 10)).index(0, 5) == pytest.approx(3 / 20)
    assert Gittins((5, 5, 5, 10)).best(0) == (pytest.approx(4 / 25), 10)


def test_a_heavy_tail_makes_the_index_fall_with_progress():
    heavy = Gittins([1] * 50 + [10] * 5 + [1000] * 2)
    indexes = [heavy.best(attained)[0] for attained in (0, 1, 10)]
    assert indexes == sorted(indexes, reverse=True)
    assert heavy.best(0)[1] == 1


def test_sums_that_dwarf_what_is_left_do_not_spoil_it():
    huge = Gittins([1.0, 1e17, 1e17 + 64])
    assert huge.index(1e17, 1e3) == pytest.approx(1 / 64)


def test_sizes_are_read_from_a_file_with_or_without_a_heading(tmp_path):
    bare, table = tmp_path / "bare.txt", tmp_path / "table.csv"
    bare.write_text("4\n8\n\n12\n")
    table.write_text("job_id,gpu_s\na,4\nb,8\nc,1.2e1\n")
    assert read_sizes(bare) == read_sizes(table) == parse_sizes("4, 8,12") == [4, 8, 12]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has no numbers"),
        ("duration\n", "it has no numbers"),
        ("4\nmany\n", "line 2: 'many' must be GPU-seconds"),
        ("a\nb\n", "line 2: 'b' must be GPU-seconds"),
        ("4\n-8\n", "line 2: '-8' must be"),
        ("4\n0\n", "line 2: '0' must be"),
        ("4\nnan\n", "line 2: 'nan' must be"),
        ("4\n1e999\n", "line 2: '1e999' must be"),
    ],
)
def test_a_file_that_is_not_of_sizes_is_refused_by_line(tmp_path, text, told):
    file = tmp_path / "sizes.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=told):
        read_sizes(file)


def test_a_file_that_can_not_be_read_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(InputError, match=r"no\.csv: No such file.*one a line"):
        read_sizes(tmp_path / "no.csv")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_sizes(tmp_path / "raw")
    with pytest.raises(InputError, match="raw"):
        read_sizes(tmp_path / "raw" / "deeper")


@pytest.mark.parametrize("text", ["4,,8", "4,x", "4,-1", "4,inf"])
def test_numbers_that_are_not_sizes_are_refused(text):
    with pytest.raises(InputError, match="above zero"):
        parse_sizes(text)
