from rota.cli.table import render


def test_text_stands_left_and_numbers_right():
    table = render(("name", "n"), [("a", "1,000"), ("longer", "2")])
    assert table.splitlines() == ["name        n", "a       1,000", "longer      2"]


def test_a_table_without_rows_is_its_header():
    assert render(("name", "n"), []) == "name  n"
