import pytest

from rota.model.figure import rounded


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (187.3, 2, "190"),
        (1834.0, 3, "1830"),
        (98765.4, 2, "99000"),
        (0.01537, 2, "0.015"),
        (2.0, 2, "2"),
        (2.04, 2, "2"),
        (30.55, 4, "30.55"),
        (0.0, 3, "0"),
    ],
)
def test_figures_are_rounded_without_powers_of_ten(value, digits, text):
    assert rounded(value, digits) == text
