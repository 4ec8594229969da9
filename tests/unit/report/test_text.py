from rota.report.text import natural


def test_names_are_ordered_by_their_numbers():
    names = ["gpu10", "gpu2", "GPU1", "a-2-10", "a-2-9", "gpu", "7", "rack1.gpu3", "rack1.gpu03"]
    in_order = ["7", "a-2-9", "a-2-10", "gpu", "GPU1", "gpu2", "gpu10", "rack1.gpu3", "rack1.gpu03"]
    assert sorted(names, key=natural) == in_order
