import gzip

import pytest

from rota.errors import TraceError
from rota.model.job import Dependency, Elastic, Share
from rota.workload.readers import describe_rejected, read_trace
from rota.workload.readers.files import MAX_BYTES
from rota.workload.writer import columns_of, write_trace

OURS = "job_id,submit_s,duration_s,num_gpus"


def test_our_columns_may_stand_in_any_order_with_others_between(write):
    path = write(
        "num_gpus,job_id,note,duration_s,submit_s,priority,user,vc,model\n"
        '2,a,"x, y",90.5,10,75,ann,v1,resnet\n'
    )
    (spec,) = read_trace(path)
    assert (spec.job_id, spec.num_gpus, spec.submit_s, spec.duration_s) == ("a", 2, 10.0, 90.5)
    assert (spec.priority, spec.user, spec.vc, spec.model) == (75, "ann", "v1", "resnet")


def test_the_columns_of_the_tiresias_simulator_are_told_by_the_header(write):
    path = write(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "7,4,30,100,vgg16,120,2\n"
    )
    (spec,) = read_trace(path)
    assert (spec.job_id, spec.num_gpus, spec.submit_s, spec.duration_s) == ("7", 4, 30.0, 120.0)
    assert spec.model == "vgg16"


@pytest.mark.parametrize("format", ["auto", "rota"])
def test_a_gzipped_trace_reads_as_a_plain_one(write, format):
    text = f"{OURS}\na,0,60,1\nb,5,60,2\n"
    plain, packed = write(text), write(gzip.compress(text.encode()), "jobs.csv.gz")
    assert list(read_trace(packed, format)) == list(read_trace(plain, format))


@pytest.mark.parametrize(
    "text",
    [
        f"\ufeff{OURS}\na,0,60,1\n",
        f"{OURS}\r\na,0,60,1\r\n",
        f"{OURS}\n\na,0,60,1\n\n",
        " job_id , submit_s,duration_s,num_gpus\n a ,0,60, 1\n",
        f"{OURS}\na,0,60,1.0\n",
        f"{OURS}\na,0,6e1,1",
    ],
    ids=[
        "byte order mark",
        "DOS line ends",
        "blank lines",
        "spaces",
        "1.0 GPUs",
        "no last newline",
    ],
)
def test_harmless_differences_are_read_over(write, text):
    (spec,) = read_trace(write(text))
    assert (spec.job_id, spec.submit_s, spec.duration_s, spec.num_gpus) == ("a", 0.0, 60.0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "is empty", id="an empty file"),
        pytest.param(f"{OURS}\n", "no job", id="no job"),
        pytest.param(
            "job_id,submit_s,num_gpus\na,0,1\n", "'duration_s' is missing", id="no column"
        ),
        pytest.param(
            "job_id,submit_s,duration,num_gpus\na,0,1,1\n",
            "'duration_s' is missing.*'duration'",
            id="a column of nearly that name",
        ),
        pytest.param("x\n1\n", "is missing", id="another table"),
        pytest.param(
            f"{OURS},job_id\na,0,60,1,a\n", "'job_id' stands there twice", id="two columns"
        ),
        pytest.param(f"{OURS}\na,0,-1,1\n", "line 2: duration_s is '-1'", id="negative duration"),
        pytest.param(f"{OURS}\na,-0.5,1,1\n", "line 2: submit_s is '-0.5'", id="negative arrival"),
        pytest.param(f"{OURS}\na,0,nan,1\n", "line 2: duration_s is 'nan'", id="not a number"),
        pytest.param(f"{OURS}\na,inf,1,1\n", "line 2: submit_s is 'inf'", id="endless"),
        pytest.param(f"{OURS}\na,0,,1\n", "line 2: duration_s is ''", id="an empty field"),
        pytest.param(f"{OURS}\na,0,60,0\n", "line 2: num_gpus is '0'", id="no GPUs"),
        pytest.param(f"{OURS}\na,0,60,1.5\n", "line 2: num_gpus is '1.5'", id="half a GPU more"),
        pytest.param(f"{OURS}\na,0,60,9999999\n", "line 2: num_gpus", id="too many GPUs"),
        pytest.param(f"{OURS}\n,0,60,1\n", "line 2: job_id is ''", id="no id"),
        pytest.param(f"{OURS}\na,0,60\n", "line 2: 3 fields", id="too few fields"),
        pytest.param(f"{OURS}\na,0,60,1,1\n", "line 2: 5 fields", id="too many fields"),
        pytest.param(f"{OURS},priority\na,0,60,1,0\n", "line 2: priority", id="priority of 0"),
        pytest.param(f'{OURS}\n"a,0,60,1\n', "not CSV", id="an open quotation"),
        pytest.param(b"\xff\xfe" + OURS.encode(), "not UTF-8", id="another encoding"),
        pytest.param(
            gzip.compress(OURS.encode())[:-9], "cut off or damaged", id="half a gzip file"
        ),
        pytest.param(b"\x1f\x8bnot gzip", "cut off or damaged", id="no gzip file"),
    ],
)
def test_a_malformed_trace_is_refused_with_line_and_column(write, text, says):
    with pytest.raises(TraceError, match=says) as refusal:
        read_trace(write(text))
    assert "\n" not in str(refusal.value)
    assert "jobs.csv" in str(refusal.value)


def test_a_row_that_cannot_be_read_is_counted_with_its_line_and_reason_and_the_rest_is_read(write):
    trace = read_trace(write(f"{OURS}\na,0,60,1\nb,0,x,1\n\na,9,60,1\nc,1,2\nd,1,2,4\n"))
    assert [spec.job_id for spec in trace] == ["a", "d"]
    assert trace.num_rejected == 3
    assert trace.rejected == [
        (3, "duration_s is 'x'; it must be zero or more seconds"),
        (5, "job_id is 'a'; line 2 has the same; ids must be unique"),
        (6, "3 fields where there should be 4"),
    ]
    assert describe_rejected(trace, shown=1).splitlines() == [
        "jobs.csv: 3 rows could not be read and are left out",
        "  line 3: duration_s is 'x'; it must be zero or more seconds",
        "  and 2 more",
    ]


def test_a_single_row_that_cannot_be_read_is_told_as_one(write):
    trace = read_trace(write(f"{OURS}\na,0,60,1\nb,0,x,1\n"))
    assert describe_rejected(trace).startswith(
        "jobs.csv: 1 row could not be read and is left out\n"
    )


def test_strict_reading_fails_at_the_first_row_that_cannot_be_read(write):
    path = write(f"{OURS}\na,0,60,1\nb,0,x,1\nc,0,60,0\n")
    with pytest.raises(TraceError, match="line 3: duration_s is 'x'"):
        read_trace(path, strict=True)


def test_only_the_first_thousand_reasons_are_kept_and_all_rows_are_counted(write):
    trace = read_trace(write(f"{OURS}\na,0,60,1\n" + "b,0,60,0\n" * 1500))
    assert (len(trace), trace.num_rejected, len(trace.rejected)) == (1, 1500, 1000)


def test_a_stray_quotation_mark_spoils_its_own_row_alone(write):
    trace = read_trace(write(f'{OURS}\na,0,60,1\n"b,0,60,1\nc,0,60,1\n'))
    assert [spec.job_id for spec in trace] == ["a", "c"]
    assert trace.rejected[0][0] == 3


@pytest.mark.parametrize(
    ("rows", "rejected", "read"),
    [
        pytest.param(['"x', "1,0,99,1"], [2, 3], [], id="never closed, fields missing"),
        pytest.param(['"a', 'b",0,10,1'], [2, 3], [], id="over two lines"),
        pytest.param(['"a', "1,0,9,1", "2,0,9,1", 'b",0,10,1'], [2, 3, 4, 5], [], id="over four"),
        pytest.param(['"a,0,9,1', "1,0,9,1", "", 'b",0,10,1'], [2, 3, 4, 5], [], id="with commas"),
        pytest.param(['"a', 'b",0,10,1,7', "c,0,9,1"], [2, 3], ["c"], id="closed too late"),
        pytest.param(['"b,0,60,1', "c,0,60,1"], [2], ["c"], id="all fields there"),
        pytest.param(['"b,0,60,1', '"c",0,60,1'], [2], ["c"], id="then a quoted field"),
        pytest.param(['f",0,1,1', "c,0,60,1"], [2], ["c"], id="within a field"),
        pytest.param(['"f"g,0,1,1', ' "h",0,1,1', "c,0,1,1"], [2, 3], ["c"], id="beside a field"),
        pytest.param(['"a ""b"", c",0,1,1', "c,0,1,1"], [], ['a "b", c', "c"], id="all in place"),
    ],
)
def test_what_quotation_marks_tear_apart_never_becomes_a_job(write, rows, rejected, read):
    trace = read_trace(write("\n".join([OURS, *rows, "last,0,60,1"])))
    assert [spec.job_id for spec in trace] == [*read, "last"]
    assert [line for line, _ in trace.rejected] == rejected


def test_many_torn_rows_are_read_in_one_pass(write):
    trace = read_trace(write(f"{OURS}\na,0,60,1\n" + '"b\n' * 30_000))
    assert (len(trace), trace.num_rejected) == (1, 30_000)


def test_a_row_with_a_nul_is_rejected(write):
    trace = read_trace(write(f"{OURS}\na\0,0,60,1\nb,0,60,1\n"))
    assert [spec.job_id for spec in trace] == ["b"]
    assert "NUL" in trace.rejected[0][1]


@pytest.mark.parametrize("text", ["1_0", "٣", "0x10", "1e400", "-0.1", "nan"])
def test_what_python_alone_takes_for_a_number_is_none(write, text):
    trace = read_trace(write(f"{OURS}\na,0,{text},1\nb,0,60,1\n"))
    assert [line for line, _ in trace.rejected] == [2]


@pytest.mark.parametrize("row", ["a,1e17,60,1", "a,0,1e11,1", "a,1e308,60,1"])
@pytest.mark.parametrize("strange", ["", '"c, d",0,60,1\n'], ids=["quickly", "row by row"])
def test_a_time_of_more_than_three_centuries_is_rejected(write, row, strange):
    trace = read_trace(write(f"{OURS}\n{strange}{row}\nb,1e10,1e10,1\n"))
    assert trace.jobs[-1].job_id == "b"
    assert "it must be at most 10,000,000,000" in trace.rejected[0][1]


@pytest.mark.parametrize("speeds", ["v100=1;v100=0.5", "V100=1;k80=1; v100 =1"])
def test_a_gpu_type_with_two_speeds_is_rejected(write, speeds):
    trace = read_trace(write(f"{OURS},speeds\na,0,60,1,{speeds}\nb,0,60,1,v100=0.5;k80=0\n"))
    assert [spec.job_id for spec in trace] == ["b"]
    assert "v100 stands there twice" in trace.rejected[0][1]


@pytest.mark.parametrize("speed", ["1e-9", "1e4", "1e-320"])
def test_a_speed_that_no_gpu_has_is_rejected(write, speed):
    trace = read_trace(write(f"{OURS},speeds\na,0,60,1,t4={speed}\nb,0,60,1,t4=1\n"))
    assert "speeds is 't4=" in trace.rejected[0][1]
    assert "it must be 0, or from 0.001 to 1,000" in trace.rejected[0][1]


def test_a_line_too_long_for_a_row_is_refused_before_it_is_parted(write):
    long = "1," * 600_000
    with pytest.raises(TraceError, match="column 'job_id' is missing"):
        read_trace(write(long))
    with pytest.raises(TraceError, match="line 1: a line of 1,200,000 characters is no row"):
        read_trace(write(long), "rota")
    trace = read_trace(write(f"{OURS}\n{long}\na,0,60,1\n"))
    assert trace.rejected == [(2, "a line of 1,200,000 characters is no row; is this a table?")]


def test_all_columns_are_read(write):
    head = f"{OURS},vc,user,priority,model,skew,speeds"
    (spec,) = read_trace(write(f"{head}\na,1,60,2,v,ann,75,bert,0.25,v100=1;k80=0.5\n"))
    assert (spec.vc, spec.user, spec.priority, spec.model) == ("v", "ann", 75, "bert")
    assert (spec.skew, spec.speeds) == (0.25, (("v100", 1.0), ("k80", 0.5)))


@pytest.mark.parametrize("wrong", ["0,,", ",2,", ",nan,", ",,v100", ",,v100=0", ",,=1", ",,a=b"])
def test_a_wrong_priority_skew_or_speed_rejects_the_row(write, wrong):
    text = f"{OURS},priority,skew,speeds\na,0,60,1,{wrong}\nb,0,60,1,,,\n"
    trace = read_trace(write(text))
    assert [spec.job_id for spec in trace] == ["b"]
    assert trace.num_rejected == 1


def test_the_quick_way_and_the_careful_way_read_the_same(write):
    rows = "".join(f"{i},{i * 7 % 50}.5, {i}e1 ,{i % 4 + 1},v{i % 3}\n" for i in range(200))
    quick = read_trace(write(f"{OURS},vc\n{rows}"))
    careful = read_trace(write(f"{OURS},vc\n{rows}\nx,0,60,0,\n"))
    assert (quick.num_rejected, careful.num_rejected) == (0, 1)
    assert list(quick) == list(careful)
    assert [spec.submit_s for spec in quick] == sorted(spec.submit_s for spec in quick)


def test_a_gzip_file_of_several_members_is_read_to_its_end(write):
    parts = [f"{OURS}\na,0,60,1\n", "b,5,60,2\n"]
    trace = read_trace(write(b"".join(gzip.compress(part.encode()) for part in parts)))
    assert [spec.job_id for spec in trace] == ["a", "b"]


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(write):
    with pytest.raises(TraceError, match="unpack it first"):
        read_trace(write(gzip.compress(bytes(80 << 20), 9)))
    assert MAX_BYTES == 4 << 30


def test_an_unknown_format_is_refused_with_the_known_ones(write):
    with pytest.raises(TraceError, match="'csv'; there are rota, tiresias"):
        read_trace(write(f"{OURS}\na,0,60,1\n"), "csv")


def test_an_empty_field_of_a_path_is_refused_as_well(tmp_path):
    with pytest.raises(TraceError, match="check the path"):
        read_trace("a\0b")


@pytest.mark.parametrize(
    ("content", "format"),
    [(b"\xff\xfe", "auto"), (b"", "auto"), (b"x\n", "rota"), (b"PAR1", "auto"), (b"[{", "philly")],
)
def test_messages_on_a_whole_file_tell_the_path_that_was_given(write, content, format):
    path = write(content)
    with pytest.raises(TraceError) as refusal:
        read_trace(path, format)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("name", ["nothing.csv", "."], ids=["absent", "a folder"])
def test_a_trace_that_cannot_be_opened_is_refused_with_its_path(tmp_path, name):
    with pytest.raises(TraceError, match="check the path"):
        read_trace(tmp_path / name)


def test_a_named_format_is_held_to_its_columns(write):
    with pytest.raises(TraceError, match="'num_gpu' is missing"):
        read_trace(write(f"{OURS}\na,0,60,1\n"), "tiresias")


def test_the_sizes_of_an_elastic_job_are_read_and_written_back(write, tmp_path):
    trace = read_trace(write(f"{OURS},elastic\na,0,60,1,1;2;4\nb,0,60,2,\n"))
    assert [spec.elastic for spec in trace] == [Elastic((1, 2, 4)), None]
    for kind in ("csv", "parquet"):
        path = tmp_path / f"again.{kind}"
        with open(path, "wb") as file:
            write_trace(trace, file, kind)
        assert read_trace(path).jobs == trace.jobs


def test_the_time_limit_of_a_job_is_read_and_written_back(write, tmp_path):
    trace = read_trace(write(f"{OURS},time_limit_s\na,0,60,1,90.5\nb,0,60,2,\nc,0,60,1,0\n"))
    assert [spec.time_limit_s for spec in trace] == [90.5, None]
    assert trace.rejected == [(4, "time_limit_s is '0'; it must be above zero; empty: none")]
    written = tmp_path / "again.csv"
    with written.open("wb") as file:
        write_trace(trace, file)
    assert [spec.time_limit_s for spec in read_trace(written)] == [90.5, None]


def test_the_batch_of_a_job_is_read_and_written_back(write, tmp_path):
    trace = read_trace(write(f"{OURS},batch\na,0,60,1,256\nb,0,60,2,\nc,0,60,1,0.5\n"))
    assert [spec.batch for spec in trace] == [256, None]
    assert "batch is '0.5'" in trace.rejected[0][1]
    for kind in ("csv", "parquet"):
        path = tmp_path / f"again.{kind}"
        with open(path, "wb") as file:
            write_trace(trace, file, kind)
        assert read_trace(path).jobs == trace.jobs


@pytest.mark.parametrize("sizes", ["1", "2;1", "1;1", "0;1", "1;x", "1;", "2;4", "1;2.5"])
def test_sizes_that_no_job_can_have_are_rejected(write, sizes):
    trace = read_trace(write(f"{OURS},elastic\na,0,60,1,{sizes}\nb,0,60,1,1;2\n"))
    assert [spec.job_id for spec in trace] == ["b"]
    assert "elastic" in trace.rejected[0][1]


def test_dependencies_are_read_and_written_back(write, tmp_path):
    trace = read_trace(write(f"{OURS},depends_on\na,0,60,1,\nb,0,60,2,a\nc,0,60,2,a;b=ended\n"))
    assert [spec.depends_on for spec in trace] == [
        (),
        (Dependency("a"),),
        (Dependency("a"), Dependency("b", "ended")),
    ]
    path = tmp_path / "back.csv"
    with path.open("wb") as file:
        write_trace(trace, file)
    assert list(read_trace(path)) == list(trace)


def test_a_dependency_that_cannot_be_is_rejected(write):
    trace = read_trace(write(f"{OURS},depends_on\na,0,60,1,\nb,0,60,1,a=gone\n"))
    assert "succeeded, failed, ended" in trace.rejected[0][1]


@pytest.mark.parametrize(
    ("rows", "kept", "line", "why"),
    [
        ("a,0,60,1,b\nb,5,60,1,\nc,9,60,1,b\n", "bc", 2, "line 3, arrives at 5 s, not before"),
        ("a,0,60,1,b\nb,0,60,1,\n", "b", 2, "give this one a later submit_s"),
        ("a,0,60,1,a\nb,0,60,1,\n", "b", 2, "line 2, arrives at 0 s"),
        ("a,0,60,1,\nb,0,60,1,x\n", "a", 3, "'x'; no job of this file has that id"),
        ("a,0,60,x,\nb,0,60,1,a\nc,0,60,1,\n", "c", 3, "left out: see line 2"),
        ("a,0,60,1,d\nb,1,60,1,a\nc,2,60,1,b\nd,3,60,1,\n", "d", 4, "left out: see line 3"),
    ],
)
def test_a_job_that_depends_on_none_before_it_is_rejected_by_its_line(write, rows, kept, line, why):
    file = write(f"{OURS},depends_on\n{rows}")
    trace = read_trace(file)
    assert "".join(spec.job_id for spec in trace) == kept
    assert why in dict(trace.rejected)[line]
    with pytest.raises(TraceError, match=r", line \d+: "):
        read_trace(file, strict=True)


def test_a_row_may_depend_on_a_later_row_whose_job_arrives_before_it(write):
    trace = read_trace(write(f"{OURS},depends_on\na,5,60,1,b\nb,0,60,1,\n"))
    assert [spec.job_id for spec in trace] == ["b", "a"]
    assert not trace.num_rejected


def test_shares_are_read_and_written_back(write, tmp_path):
    trace = read_trace(
        write(f"{OURS},share\na,0,60,4,foreground=1.05\nb,0,60,1,background\nc,0,60,2,foreground\n")
    )
    given = [Share("foreground", 1.05), Share("background"), Share("foreground")]
    assert [spec.share for spec in trace] == given
    path = tmp_path / "back.csv"
    with path.open("wb") as file:
        write_trace(trace, file)
    assert list(read_trace(path)) == list(trace)


@pytest.mark.parametrize(
    ("gpus", "share", "words"),
    [
        (1, "background=1.1", "background, foreground or"),
        (1, "low", "background, foreground or"),
        (1, "foreground=0.9", "1.0"),
        (1, "foreground=x", "share"),
    ],
)
def test_a_share_that_cannot_be_is_rejected(write, gpus, share, words):
    trace = read_trace(write(f"{OURS},share\na,0,60,{gpus},{share}\nb,0,60,1,\n"))
    assert [spec.job_id for spec in trace] == ["b"]
    assert words in trace.rejected[0][1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_weights_of_flow_jobs_are_read_and_written_back(write, tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    trace = read_trace(
        write(
            f"{OURS},share,flow_weight\na,0,60,1,,2\nb,0,60,1,,\n"
            "c,0,60,1,foreground=1.05,0.5\nd,0,60,1,background,\ne,0,60,1,background,4\n"
        )
    )
    assert [spec.share for spec in trace] == [
        Share("foreground", None, 2.0),
        None,
        Share("foreground", 1.05, 0.5),
        Share("background"),
        Share("background", None, 4.0),
    ]
    path = tmp_path / f"back.{kind}"
    with path.open("wb") as file:
        write_trace(trace, file, kind)
    assert list(read_trace(path)) == list(trace)


def test_flow_jobs_without_other_wishes_need_one_column(write):
    trace = read_trace(write(f"{OURS},flow_weight\na,0,60,1,2\n"))
    assert columns_of(trace) == [*OURS.split(","), "flow_weight"]


@pytest.mark.parametrize("weight", ["0", "-1", "x", "1e7", "nan"])
def test_a_weight_that_cannot_be_is_rejected(write, weight):
    trace = read_trace(write(f"{OURS},flow_weight\na,0,60,1,{weight}\nb,0,60,1,\n"))
    assert [spec.job_id for spec in trace] == ["b"]
    assert "flow_weight" in trace.rejected[0][1]
