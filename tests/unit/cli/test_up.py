"""Sentences with which `rota up` greets."""

from rota.cli.up import share_of_one

SHARED = {"fair_share": "user"}


def test_shares_between_users_are_told_to_be_of_no_effect_while_there_is_one():
    assert "before there are jobs of a second user: all so far are of ann;" in share_of_one(
        SHARED, {"ann"}
    )
    assert "before there are jobs of a second user; fair_share=vc" in share_of_one(SHARED, set())
    assert share_of_one(SHARED, {"ann", "bob"}) == ""
    assert share_of_one({"fair_share": "vc"}, {"ann"}) == ""
