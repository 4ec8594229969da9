"""What `rota up` refuses, and sentences with which it greets."""

import pytest

from rota.cli.up import share_of_one, up
from rota.errors import InputError

SHARED = {"fair_share": "user"}


def test_shares_between_users_are_told_to_be_of_no_effect_while_there_is_one():
    assert "before there are jobs of a second user: all so far are of ann;" in share_of_one(
        SHARED, {"ann"}
    )
    assert "before there are jobs of a second user; fair_share=vc" in share_of_one(SHARED, set())
    assert share_of_one(SHARED, {"ann", "bob"}) == ""
    assert share_of_one({"fair_share": "vc"}, {"ann"}) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "gpu"], "--partition: it is for nodes of Slurm; give --on slurm"),
        (["--sbatch=--qos=high"], "--sbatch: it is for nodes of Slurm; give --on slurm"),
        (["--ray-address", "a:1"], "--ray-address: it is for nodes of Ray; give --on ray"),
        (["--on", "ray", "--account", "me"], "--account: it is for nodes of Slurm; give --on"),
        (["--on", "ray", "--ray-token", "no"], "--ray-token: /"),
        (["--on", "ray"], "--ray-token: RAY_AUTH_MODE is token, and Ray would take ~/.ray/auth"),
        (["--on", "slurm", "--time", "soon"], "--time: 'soon'"),
        (["--on", "slurm", "--gpu-types", "a100,t4"], "--gpu-types: a100,t4 names 2 types"),
        (["--on", "slurm", "--host-memory", "much"], "--host-memory 'much' is not a size"),
        (["--on", "slurm"], "--on slurm: sbatch: No such file or directory; run it where"),
    ],
)
def test_what_can_not_be_asked_of_an_engine_is_refused(words, message, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    with pytest.raises(InputError) as refused:
        up.main([*words, "--home", str(tmp_path / "home")], standalone_mode=False)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "home").exists()
