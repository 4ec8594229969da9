from rota.cli.table import in_parts, render, wide


def test_text_stands_left_and_numbers_right():
    table = render(("name", "n"), [("a", "1,000"), ("longer", "2")])
    assert table.splitlines() == ["name        n", "a       1,000", "longer      2"]


def test_a_table_without_rows_is_its_header():
    assert render(("name", "n"), []) == "name  n"


def test_a_table_that_is_too_wide_is_parted_between_columns():
    header, rows = ["", "first", "second", "third"], [["jobs", "1", "2", "3"]]
    assert wide(header, rows) == len("jobs  first  second  third")
    assert in_parts(header, rows, 19).splitlines() == [
        "      first  second",
        "jobs      1       2",
        "",
        "      third",
        "jobs      3",
    ]
    assert in_parts(header, rows, 1).count("jobs") == 3
