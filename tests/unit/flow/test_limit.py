"""Operations that run for too long."""

from rota.flow.limit import Limit


def test_time_counts_from_the_first_look_at_an_operation():
    limit = Limit(2.0)
    assert limit.exceeded([7, 8], now_s=100.0) == []
    assert limit.exceeded([7, 8], now_s=102.0) == []
    assert limit.exceeded([7, 8, 9], now_s=102.1) == [7, 8]
    assert limit.exceeded([9], now_s=104.0) == []
    assert limit.exceeded([9], now_s=104.2) == [9]


def test_an_operation_that_is_over_is_forgotten():
    limit = Limit(2.0)
    limit.exceeded([7], now_s=0.0)
    assert limit.exceeded([], now_s=1.0) == []
    assert limit.exceeded([7], now_s=3.0) == []


def test_an_operation_may_begin_anew():
    limit = Limit(2.0)
    limit.exceeded([7], now_s=0.0)
    limit.begin_anew(7)
    assert limit.exceeded([7], now_s=3.0) == []
    assert limit.exceeded([7], now_s=5.1) == [7]
