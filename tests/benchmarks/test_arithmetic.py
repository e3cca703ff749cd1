"""The arithmetic of the benchmark: a wrong sum there is believed by everybody."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.check import Cost, table
from benchmarks.load.generator import Run, Window, split_answer
from benchmarks.load.histogram import BUCKETS, US_MAX, Histogram, bucket_of, lowest_us
from benchmarks.load.tools import LoadError, parse_pgbench, parse_redis, parse_wrk
from benchmarks.parts.clients import ratio
from benchmarks.parts.probes import HostProbe, is_the_disks, is_the_hosts
from benchmarks.parts.steady import WINDOW_SECONDS, windows_of
from benchmarks.report.svg import free_position, nice_step
from benchmarks.report.tables import Table, grouped, matrix, middle


@given(st.integers(0, US_MAX))
def test_a_latency_keeps_its_size_in_a_bucket(us: int) -> None:
    """A bucket is exact below a millisecond, and off by less than a five hundredth above; buckets are in order."""
    bucket = bucket_of(us)
    low = lowest_us(bucket)
    assert low <= us and us - low <= us / 500
    assert bucket_of(low) == bucket and 0 <= bucket < BUCKETS
    if us >= 1:
        assert bucket_of(us - 1) in {bucket, bucket - 1}


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_sorted_latencies(seen: list[int]) -> None:
    """The nearest rank: so many in a hundred do not exceed it. The worst is kept as it was."""
    histogram = Histogram()
    for us in seen:
        histogram.add(us)
    ordered = sorted(seen)
    for percent in (1, 50, 99, 100):
        exact = ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
        assert histogram.percentile_ms(percent) == lowest_us(bucket_of(exact)) / 1_000
    assert histogram.worst_ms == ordered[-1] / 1_000 and histogram.total == len(seen)


def test_a_histogram_survives_its_way_between_processes() -> None:
    """What a generator counted is what the benchmark reads, and two together are the sum of both."""
    first, second = Histogram(), Histogram()
    for us in (5, 700, 4_000, 4_000):
        first.add(us)
    second.add(9_000_000)
    run = Run([Window(first, [(1.5, 30.0)]), Window(second)], began_at=7.0, elapsed_seconds=2.0, wrong=1, sample="x")
    read = Run.from_json(run.as_json())
    assert read.windows[0].latencies.counts == first.counts
    assert read.windows[0].stalls == [(1.5, 30.0)]
    assert (read.answers, read.per_second, read.wrong, read.latencies.worst_us) == (5, 2.5, 1, 9_000_000)


def test_a_histogram_without_counts_has_no_percentile() -> None:
    """A run without an answer does not divide by nought."""
    assert Histogram().percentile_ms(99) == 0.0
    assert Run([]).per_second == 0.0


@pytest.mark.parametrize("line", [b"Content-Length", b"content-length", b"content-Length"])
def test_answer_is_complete_at_its_length(line: bytes) -> None:
    """An answer is split only when all of it has come, however its length is written."""
    data = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\n" + line + b": 4\r\nDate: now\r\n\r\nbody"
    assert [split_answer(data[:end]) for end in range(len(data))] == [None] * len(data)
    assert split_answer(data) == (200, b"body")


def stalling_run(*stalls: tuple[float, float]) -> Run:
    histogram = Histogram()
    for _ in range(100):
        histogram.add(2_000)
    return Run([Window(histogram, list(stalls)), Window(histogram)], began_at=1_000.0, elapsed_seconds=10.0)


def sample(seconds: float, disk_bytes: int = 0) -> dict[str, float]:
    return {
        "own_seconds": seconds,
        "children_seconds": seconds / 10,
        "own_bytes": 1,
        "children_bytes": 2,
        "disk_bytes": disk_bytes,
    }


def test_a_stall_is_the_disks_if_a_sync_hung_meanwhile() -> None:
    """A sync that took half of the stall or more makes it the disk's; one before, after or shorter does not."""
    assert is_the_disks(10.0, 40, [(10.0, 21.0)])
    assert is_the_disks(10.0, 40, [(10.5, 600.0)])
    assert not is_the_disks(10.0, 40, [(10.0, 19.0)])
    assert not is_the_disks(10.0, 40, [(9.96, 500.0), (10.5, 500.0)])
    assert not is_the_disks(10.0, 40, [])


def test_a_stall_is_the_hosts_if_a_processor_was_taken_away_meanwhile() -> None:
    """Ticks of one processor are added up; those of two are not, and what was taken before does not count."""
    assert is_the_hosts(10.0, 40, [[], [(9.985, 20.0), (10.0, 10.0)]])
    assert is_the_hosts(10.0, 40, [[(10.005, 30.0)]])
    assert not is_the_hosts(10.0, 40, [[(10.0, 10.0)], [(10.0, 10.0)]])
    assert not is_the_hosts(10.0, 40, [[(9.94, 100.0)]])
    assert not is_the_hosts(10.0, 40, [])


def test_steal_time_is_read_by_processor(tmp_path: Path) -> None:
    """Each processor has its own count; a machine without one is asked in vain."""
    stat = tmp_path / "stat"
    stat.write_text("cpu 1 1 1 1 1 1 1 7 0 0\ncpu0 1 1 1 1 1 1 1 3 0 0\ncpu1 1 1 1 1 1 1 1 4 0 0\nintr 5\n")
    probe = HostProbe(str(stat))
    stat.write_text("cpu 1 1 1 1 1 1 1 9 0 0\ncpu0 1 1 1 1 1 1 1 3 0 0\ncpu1 1 1 1 1 1 1 1 6 0 0\nintr 5\n")
    probe.look()
    assert [[ms for _, ms in spans] for spans in probe.stolen] == [[], [2_000 / os.sysconf("SC_CLK_TCK")]]
    assert probe.share() > 0
    nothing = HostProbe(str(tmp_path / "none"))
    nothing.look()
    assert (nothing.stolen, nothing.share()) == ([], 0.0)


def test_windows_put_load_server_and_disk_together() -> None:
    """Each window has its own rate, stalls, share of a core and disk; stalls of disk and host are counted apart."""
    run = stalling_run((1.0, 30.0), (2.0, 50.0), (3.0, 60.0))
    rows = windows_of(run, [sample(1.0, 5), sample(3.5, 9)], [(1_001.0, 29.0), (1_006.0, 4.0)], [[(1_003.0, 40.0)]])
    assert [row["per_second"] for row in rows] == [100 / WINDOW_SECONDS] * 2
    assert (rows[0]["stalls"], rows[0]["disk_stalls"], rows[0]["stall_worst_ms"]) == (1, 1, 50.0)
    assert (rows[0]["host_stalls"], rows[1]["host_stalls"]) == (1, 0)
    assert (rows[0]["cpu_own"], rows[1]["cpu_own"], rows[1]["cpu_children"]) == (None, 0.5, 0.05)
    assert [row["disk_bytes"] for row in rows] == [5, 9]
    assert [row["sync_worst_ms"] for row in rows] == [29.0, 4.0]


def test_unobserved_window_is_skipped() -> None:
    """The last window may not be whole: it has no sample, and no row."""
    assert len(windows_of(stalling_run(), [sample(1.0)], [], [])) == 1


def test_a_comparison_is_the_median_of_its_turns() -> None:
    """One turn that the machine spoilt changes nothing."""
    assert (
        ratio(
            [{"seconds": 2.0}, {"seconds": 90.0}, {"seconds": 2.2}],
            [{"seconds": 1.0}, {"seconds": 1.0}, {"seconds": 2.0}],
        )
        == 2.0
    )


def test_request_is_costlier_beyond_the_limit() -> None:
    """The check judges the median of the ratios of its turns, not the ratio of medians; 5 % is still allowed."""
    steady = Cost("renew", [10.0, 20.0, 10.0], [10.5, 21.0, 99.0])
    assert steady.ratio == pytest.approx(1.05) and not steady.is_dearer(1.0501)
    dearer = Cost("acquire", [10.0, 20.0, 10.0], [10.6, 21.2, 9.0])
    assert dearer.is_dearer(1.05)
    text = table("v1", [steady, dearer], 1.0501)
    assert text.splitlines()[-1] == "dearer by more than 5%: acquire"
    assert [line.endswith("DEARER") for line in text.splitlines()[2:4]] == [False, True]
    assert table("v1", [steady], 1.06).endswith("none beyond 1.06 x")


def test_wrk_output_is_parsed() -> None:
    """The one line of our script is the result; without it there is no number."""
    line = (
        'BENCH {"duration_us":2000000,"answers":10,"answers_2xx":9,"acquired":8,"errors":1,'
        '"p50_us":1500,"p99_us":9000,"sample":"409"}'
    )
    load = parse_wrk(f"Running\n{line}\n", 64)
    assert (load.acquires_per_second, load.wrong, load.p50_ms, load.p99_ms) == (4.0, 3, 1.5, 9.0)
    with pytest.raises(LoadError):
        parse_wrk("unable to connect", 64)


def test_names_that_redis_draws_twice_are_not_wrong() -> None:
    """A few names come twice by chance and are rightly refused; many are not chance."""
    out = '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms"\n'
    out += '"SET","500.0","1","1","0.5","1","2.5"\n'
    assert parse_redis(out, 8, requests=1_000, acquired=998).wrong == 0
    assert parse_redis(out, 8, requests=1_000, acquired=900).wrong == 100
    assert parse_redis(out, 8, requests=1_000, acquired=1_000).acquires_per_second == 500.0


def test_pgbench_output_is_parsed() -> None:
    """The rate comes from what it prints, the latencies from its log, the grants from the rows that are there."""
    out = "number of failed transactions: 0 (0.000%)\nlatency average = 1.0 ms\ntps = 50.0 (without connecting)\n"
    log = [f"0 {number} {1_000 * number} 0 1700000000 5" for number in range(1, 101)]
    load = parse_pgbench(out, log, 4, acquired=100)
    assert (load.answers, load.seconds, load.wrong) == (100, 2.0, 0)
    assert (load.p50_ms, load.p99_ms) == (51.0, 100.0)
    assert parse_pgbench(out, log, 4, acquired=50).wrong == 50
    with pytest.raises(LoadError):
        parse_pgbench("connection refused", [], 4, acquired=0)


def test_a_table_is_one_text_in_two_forms() -> None:
    """Rounds are grouped, their median stands in the cell, and what was not measured is a dash."""
    rows = [{"operation": "renew", "connections": 64, "cpu_us": cpu} for cpu in (30.0, 31.0, 90.0)] + [
        {"operation": "acquire", "connections": 1, "cpu_us": 200.0}
    ]
    assert middle(grouped(rows, "operation", "connections")["renew", 64], "cpu_us") == 31.0
    table_ = matrix("µs", rows, "operation", "connections", lambda rounds: f"{middle(rounds, 'cpu_us'):.0f}", "request")
    assert table_.as_markdown() == (
        "**µs**\n\n| request | 1 | 64 |\n| --- | ---: | ---: |\n| renew | – | 31 |\n| acquire | 200 | – |"
    )
    assert Table("t", ["a", "b"], [["long name", "1"]]).as_text() == "t\na          b\n------------\nlong name  1"


@given(st.floats(0.001, 1e9))
def test_a_scale_has_few_round_steps(most: float) -> None:
    """At most five steps reach the highest value, and each is 1, 2 or 5 times a power of ten."""
    step = nice_step(most)
    assert most / step <= 5.0001 and most / step > 1.9999 / 2
    assert f"{step:.0e}"[0] in "125"


def test_chart_labels_do_not_overlap() -> None:
    """Names of lines that end at one height stand apart."""
    taken: list[float] = []
    for _ in range(6):
        taken.append(free_position(100.0, taken))
    assert all(abs(one - other) >= 15 for number, one in enumerate(taken) for other in taken[:number])
    assert quantiles(taken)[1] == pytest.approx(100.0, abs=15)
