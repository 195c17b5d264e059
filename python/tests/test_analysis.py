"""Analyses and replays as objects, and the command line in the package."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import time

import numpy
import pytest

import paceline


def run_times(rounds: int = 60, workers: int = 6) -> numpy.ndarray:
    times = numpy.random.default_rng(7).lognormal(0.0, 0.2, (rounds, workers))
    times[:, 2] *= 3.0
    return times


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)



def test_an_analysis_has_the_figures_of_the_command_line(tmp_path):
    path = tmp_path / "array.csv"
    numpy.savetxt(
        path,
        [(r, w, x) for (r, w), x in numpy.ndenumerate(run_times())],
        fmt=["%d", "%d", "%.17g"],
        delimiter=",",
        header="iteration,worker,seconds",
        comments="",
    )
    printed = json.loads(cli("analyze", str(path), "--json").stdout)
    for trace in (path, str(path), run_times(), run_times().tolist()):
        analysis = paceline.analyze(trace)
        assert analysis.to_dict() == printed
    assert (analysis.workers, analysis.rounds, analysis.name) == (6, 60, "array")
    assert analysis.slow_workers == ["2"]
    assert (analysis.best_count, analysis.waits_included) == (5, False)
    assert 1.0 < analysis.best_gain <= analysis.oracle_gain
    assert 0.0 < analysis.idle < 1.0
    assert str(analysis).startswith("array: waiting for the slowest costs")
    assert "6 workers, 60 rounds" in repr(analysis)


def test_options_of_an_analysis_are_those_of_the_command_line(tmp_path):
    short, long = (paceline.analyze(run_times(), overhead=x) for x in (0.0, 10.0))
    assert long.best_gain < short.best_gain
    analysis = paceline.analyze(run_times(), run_hours=24.0, noise_scale=3.0).to_dict()
    assert (analysis["saving"]["run_hours"], analysis["noise_scale"]) == (24.0, 3.0)


def test_a_notebook_shows_the_page_of_the_command_line(tmp_path):
    path = tmp_path / "page.html"
    numpy.savetxt(tmp_path / "array.csv", [(0, 1.5, 2.5), (1, 1.25, 2.0)], delimiter=",",
                  fmt=["%d", "%g", "%g"], header="round,0,1", comments="")  # fmt: skip
    assert cli("analyze", str(tmp_path / "array.csv"), "--html", str(path)).returncode == 0
    analysis = paceline.analyze(numpy.array([[1.5, 2.5], [1.25, 2.0]]))
    assert analysis.to_html() == path.read_text()
    shown = analysis._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "<svg" not in shown
    assert html.escape(path.read_text()) in shown


def test_nan_is_an_absent_worker():
    times = run_times()
    times[:30, 1] = numpy.nan
    assert paceline.analyze(times).to_dict()["spread"]["absent"] == pytest.approx(30 / 360)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([[1.0, 0.0]], "round 0, worker 1: 0 is not a run-time"),
        ([[1.0], [-2.0]], "round 1, worker 0: -2 is not a run-time"),
        ([[float("inf")]], "inf is not a run-time"),
        ([[float("nan")]], "no worker is present in any round"),
        ([1.0, 2.0], "two dimensions"),
        (numpy.zeros((0, 3)), "at least one"),
    ],
)
def test_arrays_that_are_no_traces_are_refused(trace, message):
    with pytest.raises(ValueError, match=message):
        paceline.analyze(trace)


def test_files_that_are_no_traces_are_refused(tmp_path):
    with pytest.raises(OSError, match="none.csv"):
        paceline.analyze(tmp_path / "none.csv")
    (tmp_path / "wrong.csv").write_text("iteration,worker,seconds\n0,a,-1\n")
    with pytest.raises(ValueError, match="wrong.csv, line 2: `-1` is not a run-time"):
        paceline.analyze(tmp_path / "wrong.csv")


def test_a_simulation_replays_policies():
    simulation = paceline.simulate(run_times(), ["full", "static:5", "oracle"], seeds=2)
    assert simulation.policies == ["full", "static:5", "oracle"]
    assert simulation.gains["full"] == pytest.approx(1.0)
    assert simulation.of_oracle["oracle"] == pytest.approx(1.0)
    assert 1.0 < simulation.gains["static:5"] <= simulation.gains["oracle"]
    assert len(simulation.to_dict()["replays"]) == 6
    assert "<svg" in simulation.to_html() and "srcdoc" in simulation._repr_html_()
    assert "static:5" in str(simulation) and "static:5" in repr(simulation)
    assert paceline.simulate(run_times(), "full").policies == ["full"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["sometimes"]}, "sometimes"),
        ({"straggler": "sleep"}, "sleep"),
        ({"straggler": "salvage"}, "micro-batches"),
        ({"overhead": "much"}, "multiple of the median"),
        ({"quorum": 9}, "quorum"),
    ],
)
def test_wrong_options_of_a_simulation_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        paceline.simulate(run_times(), **options)


def test_a_warning_of_waits_goes_to_standard_error(tmp_path):
    (tmp_path / "rank-0.csv").write_text("# waits: included\niteration,worker,seconds\n0,0,1\n1,0,1\n")
    done = cli("analyze", str(tmp_path), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["waits_included"]
    assert "run-times include waits for other workers" in done.stderr
    assert "include waits" in paceline.analyze(tmp_path).to_html()
    assert paceline.simulate(tmp_path, ["full"]).waits_included


def test_ctrl_c_ends_a_simulation():
    script = (
        "import numpy, paceline, signal\n"
        # A background job of a shell ignores it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "times = numpy.random.default_rng(0).lognormal(0, 0.3, (2000, 200))\n"
        "try:\n"
        "    print('begun', flush=True)\n"
        "    paceline.simulate(times, ['auto'], seeds=1000)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    import os\n"
        "    os._exit(0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 20
    finally:
        process.kill()
        process.wait()


def test_the_command_line_has_its_exit_codes():
    assert cli("policies").returncode == 0
    wrong = cli("sail")
    assert wrong.returncode == 2 and "unrecognized subcommand 'sail'" in wrong.stderr
    assert cli("analyze", "/nowhere.csv").returncode == 1


def test_the_command_line_trains_with_processes_of_this_interpreter_and_ctrl_c_stops_it(tmp_path):
    command = [sys.executable, "-m", "paceline", "train", "--model", "softmax", "--workers", "2",
               "--epochs", "100000", "--run-dir", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        while not line.startswith("round"):
            line = process.stderr.readline()
            assert line, "the run ended early"
        workers = [
            os.readlink(f"/proc/{child}/exe")
            for child in children(process.pid)
        ]
        assert workers == [os.path.realpath(sys.executable)] * 2
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    finally:
        process.kill()


def children(pid: int) -> list[int]:
    tasks = f"/proc/{pid}/task"
    return sorted(
        int(child)
        for task in os.listdir(tasks)
        for child in open(f"{tasks}/{task}/children").read().split()
    )
