import pytest

from rota.cli.keyvalue import parse_pairs, parse_policy, parse_size
from rota.errors import InputError, PolicySettingError


def test_a_policy_text_carries_its_settings():
    assert parse_policy("tiresias:thresholds=600,1800:within=entry") == (
        "tiresias",
        {"thresholds": "600,1800", "within": "entry"},
    )
    assert parse_policy("fifo", ["a=b=c"]) == ("fifo", {"a": "b=c"})


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["within"], "not of the form KEY=VALUE"),
        (["=entry"], "not of the form KEY=VALUE"),
        ([" = "], "not of the form KEY=VALUE"),
        (["within=a", "within=b"], "'within' is given twice"),
    ],
)
def test_what_is_no_setting_is_refused_and_named(texts, says):
    with pytest.raises(PolicySettingError, match=f"policy x: .*{says}"):
        parse_pairs(texts, "policy x")


def test_a_setting_stands_once_in_the_policy_and_its_further_texts():
    with pytest.raises(PolicySettingError, match="given twice"):
        parse_policy("tiresias:within=entry", ["within=entry"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1.5KiB", 1536), ("512 MiB", 512 << 20), ("8GiB", 8 << 30)],
)
def test_a_size_may_have_a_unit(text, size):
    assert parse_size("--host-memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8GB", "-1", "nan", "inf", "1e30"])
def test_what_is_no_size_is_refused_and_named(text):
    with pytest.raises(InputError, match=f"--host-memory '{text}' is not a size"):
        parse_size("--host-memory", text)
