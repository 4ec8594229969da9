import pytest

from rota.errors import InputError
from rota.policy.tiresias.distribution import parse_sizes, read_sizes


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
