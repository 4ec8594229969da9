import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import InputError
from rota.sim.faults import Fault, What
from rota.sim.faultscript import read_faults

HEADER = "at_s,what,node,for_s,gpu,speed,notice_s\n"
FAULTS = (
    Fault(10.0, What.FAIL, "node0", 60.0, notice_s=5.0),
    Fault(20.5, What.FAIL, "node1"),
    Fault(30.0, What.CRASH, "node2", gpu=3),
    Fault(40.0, What.SLOW, "node3", 90.0, speed=0.25),
)


@pytest.fixture
def read(tmp_path):
    def read(text, name="faults.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_faults(path)

    return read


def test_every_kind_of_fault_is_read_from_csv(read):
    rows = (
        "10,fail,node0,60,,,5\n20.5,fail,node1,,,\n\n30,crash,node2,,3,\n40,slow,node3,90,,0.25\n"
    )
    assert read(HEADER + rows) == FAULTS


def test_the_same_faults_are_read_from_json(read):
    objects = [
        {"at_s": 10, "what": "fail", "node": "node0", "for_s": 60, "notice_s": 5},
        {"at_s": 20.5, "what": "fail", "node": "node1", "for_s": None},
        {"at_s": 30, "what": "crash", "node": "node2", "gpu": 3},
        {"at_s": 40, "what": "slow", "node": "node3", "for_s": 90, "speed": 0.25},
    ]
    assert read(json.dumps(objects), "faults.json") == FAULTS


def test_columns_may_come_in_any_order_and_those_not_used_may_be_out(read):
    assert read("\ufeffnode, what ,at_s\nnode1, fail,20.5\n") == (FAULTS[1],)
    assert read("node,what,at_s,gpu\nn,crash,1,0\nn,fail,2") == (
        Fault(1.0, What.CRASH, "n"),
        Fault(2.0, What.FAIL, "n", inf),
    )


def test_a_script_without_faults_is_none_at_all(read):
    assert read(HEADER) == ()
    assert read("[]", "faults.json") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: column 'at_s' is missing"),
        ("at_s,what\n1,fail\n", "column 'node' is missing"),
        ("at_s,at_s,what,node\n", "column 'at_s' stands there twice"),
        ("at_s,what,node,foo\n1,fail,n,3\n", "line 2: there is no field 'foo'"),
        ("at_s,what,node\n1,fail,n,3\n", "line 2: 4 fields where the header names 3"),
        (HEADER + "x,fail,n\n", "line 2: at_s is 'x'; it must be from 0 to 10,000,000,000 seconds"),
        (HEADER + "-1,fail,n\n", "at_s is '-1'"),
        (HEADER + "nan,fail,n\n", "at_s is 'nan'"),
        (HEADER + "inf,fail,n\n", "at_s is 'inf'"),
        (HEADER + "1_0,fail,n\n", "at_s is '1_0'"),
        (HEADER + "１,fail,n\n", "at_s is '１'"),  # digits of another script
        (HEADER + "1e11,fail,n\n", "at_s is '1e11'"),
        (HEADER + "1,fail,n,1e11\n", "for_s is '1e11'"),
        (HEADER + "1,slow,n,5,,1e-9\n", "speed is '1e-9'"),
        (HEADER + "1,explode,n\n", "what is 'explode'; it must be fail, crash or slow"),
        (HEADER + "1,fail\n", "node is missing; give a node of the cluster"),
        (HEADER + ",fail,n\n", "at_s is missing"),
        (HEADER + "1,,n\n", "what is ''"),
        (HEADER + "1,fail,n,0\n", "for_s is '0'"),
        (HEADER + "1,fail,n,,2\n", "gpu means nothing for fail; leave it empty"),
        (HEADER + "1,crash,n\n", "gpu is missing; give the index"),
        (HEADER + "1,crash,n,,1.5\n", "gpu is '1.5'"),
        (HEADER + "1,crash,n,,-1\n", "gpu is '-1'"),
        (HEADER + "1,slow,n,5\n", "speed is missing"),
        (HEADER + "1,slow,n,5,,0\n", "speed is '0'"),
        (HEADER + "1,slow,n,5,,1.5\n", "speed is '1.5'"),
        (HEADER + '1,"fail\n', "line 2: not CSV"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_line(read, text, says):
    with pytest.raises(InputError) as error:
        read(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "it must be a list of objects"),
        ("[1]", "it must be a list of objects"),
        ('[{"at_s": true, "what": "fail", "node": "n"}]', "object 1: at_s is 'True'"),
        ('[{"at_s": [1], "what": "fail", "node": "n"}]', "object 1: at_s is '[1]'"),
        ('[{"at_s": 1, "what": ["fail"], "node": "n"}]', "what is \"['fail']\""),
        ('[{"at_s": 1, "what": "fail", "node": 0}]', "node is '0'"),
        ('[{"at_s": 1e999, "what": "fail", "node": "n"}]', "at_s is 'inf'"),
    ],
)
def test_json_that_can_not_be_read_is_named_with_its_object(read, text, says):
    with pytest.raises(InputError) as error:
        read(text, "faults.json")
    assert says in str(error.value)


def test_a_file_without_end_is_refused():
    with pytest.raises(InputError, match="faults /dev/zero: more than 64 MiB"):
        read_faults("/dev/zero")


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(InputError, match="No such file or directory; check the path"):
        read_faults(tmp_path / "none.csv")
    with pytest.raises(InputError, match="Is a directory"):
        read_faults(tmp_path)


@given(text=st.text(alphabet="0123456789.,-\n\"'{}[]:failcrashslownode0e_", max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_stands_there_gives_faults_or_a_clear_error(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    for name, content in (("f.csv", HEADER + text), ("g.csv", text), ("f.json", text)):
        (folder / name).write_text(content)
        try:
            faults = read_faults(folder / name)
        except InputError:
            continue
        assert all(fault.at_s >= 0 and fault.node for fault in faults)
