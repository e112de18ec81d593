"""`meshard simulate`: the lines of each process, the first error, exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import on_terminal, piped, status

ROOT = Path(__file__).parents[1]
SUM = """
import sys, beside_simulated, meshard, meshard.numpy as mnp
mesh = meshard.make_mesh((meshard.device_count(),), "x")
x = meshard.device_put(mnp.arange(12.0), meshard.NamedSharding(mesh, meshard.P("x")))
print(meshard.process_index(), len(meshard.local_devices()), sys.argv[1:], __name__)
print(float(x.sum()), beside_simulated.VALUE, end="")
"""
FAIL = """
import sys, meshard
def f():
    if meshard.process_index() == 1:
        {how}
f()
meshard.device_get(meshard.numpy.zeros(4))
meshard.distributed.shutdown()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside_simulated.py").write_text("VALUE = 'found'\n")
    (tmp_path / "script.py").write_text(SUM)
    return tmp_path / "script.py"


def simulated(script: Path, *arguments: str, processes: int = 3) -> int:
    kept = sys.stdout, sys.stderr, list(sys.argv), list(sys.path)
    code = status(["simulate", "-n", str(processes), *arguments, str(script), "--size", "-n"])
    assert kept == (sys.stdout, sys.stderr, sys.argv, sys.path)
    return code


def test_each_line_says_whose_it_is(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(script, "--devices-per-process", "2") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    expected = [f"{i}: {i} 2 ['--size', '-n'] __main__" for i in range(3)]
    expected += [f"{i}: 66.0 found" for i in range(3)]
    assert sorted(printed.out.splitlines()) == sorted(expected)


def test_one_process_alone_and_eleven(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(script, processes=1) == 0
    assert capsys.readouterr().out.startswith("0: 0 1 ")
    assert simulated(script, "--timeout", "50", processes=12) == 0
    assert " 9: 66.0 found\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        (
            "raise ValueError('broken')",
            1,
            "ValueError: broken\nmeshard simulate: process 1 failed",
        ),
        ("sys.exit(5)", 5, "meshard simulate: process 1 ended with exit code 5\n"),
        ("sys.exit('bye')", 1, "meshard simulate: process 1 ended with exit code 1: bye\n"),
        ("sys.exit(0)", 1, "process"),
    ],
)
def test_the_first_error_is_printed(
    how: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fail.py"
    path.write_text(FAIL.format(how=how))
    assert simulated(path, "--timeout", "20") == code
    printed = capsys.readouterr()
    assert said in printed.err
    if "raise" in how:
        assert printed.err.splitlines()[:2] == [
            "Traceback (most recent call last):",
            f'  File "{path}", line 6, in <module>',
        ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-n", "2", "none.py"], 1, "meshard simulate: none.py: No such file or directory\n"),
        (["-n", "2000", "ok.py"], 1, "processes must be an integer from 1 to 1024, got 2000"),
        (["-n", "2", "cut.py"], 1, "cut.py is not a Python program\n  File "),
        (["ok.py"], 2, "the following arguments are required: -n/--processes"),
        (["-n", "2"], 2, "the following arguments are required: SCRIPT"),
    ],
)
def test_refusals(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ok.py").write_text("")
    Path("cut.py").write_text("f(")
    assert status(["simulate", *arguments]) == code
    assert message in capsys.readouterr().err


def test_an_example_and_colours(script: Path) -> None:
    example = str(ROOT / "examples" / "heat.py")
    done = piped("simulate", "-n", "2", "--devices-per-process", "4", example)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.findall(r"^(\d): differs from plain NumPy by: 0\.0$", done.stdout, re.MULTILINE)
    assert {line[:3] for line in done.stdout.splitlines()} == {"0: ", "1: "}
    printed, code = on_terminal("simulate", "-n", "2", str(script))
    assert code == 0
    assert "\x1b[36m0: \x1b[0m66.0 found\n" in printed
    assert "\x1b[33m1: \x1b[0m66.0 found\n" in printed


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text(
        "import meshard, time\nprint('ready', flush=True)\nfor _ in range(300):\n"
        "    time.sleep(0.1)\n"
    )
    # Who runs the tests behind a shell's back may have asked that interrupts be ignored.
    start = (
        "import signal, sys; from meshard.cli import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", start, "simulate", "-n", "2", str(path)]
    job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout is not None
    with job:
        ready = {job.stdout.readline() for _ in range(2)}  # both have begun
        assert ready == {"0: ready\n", "1: ready\n"}
        job.send_signal(signal.SIGINT)
        try:
            _, said = job.communicate(timeout=20)
        finally:
            job.kill()
    assert (job.returncode, said) == (130, "")
