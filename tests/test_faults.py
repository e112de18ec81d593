"""What `meshard run` does when a job fails: how often it starts, where, and what it refuses."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from meshard.cli import main
from meshard.cli.jobs import faults
from meshard.cli.jobs.faults import Attempt, Faults, answering, attempts
from meshard.cli.jobs.launcher import Launcher
from meshard.cli.jobs.supervise import Outcome

run = importlib.import_module("meshard.cli.run")
KILLED = Outcome(137, was_told=False, was_futile=False)
WELL = Outcome(0, was_told=False, was_futile=False)
BROKEN = Outcome(1, was_told=False, was_futile=True)
STOPPED = Outcome(143, was_told=True, was_futile=False)


def started(
    processes: int, given: Faults, outcomes: Iterable[Outcome]
) -> tuple[int, list[Attempt]]:
    """Return the exit code of a job whose attempts end in a given way, and its attempts."""
    left, seen = iter(outcomes), list[Attempt]()

    def start(attempt: Attempt) -> Outcome:
        seen.append(attempt)
        return next(left)

    return attempts(processes, given, start), seen


class TestAttempts:
    @pytest.mark.parametrize(
        ("restarts", "outcomes", "code", "count"),
        [
            (0, [KILLED], 137, 1),
            (3, [WELL], 0, 1),
            (3, [KILLED, KILLED, WELL], 0, 3),
            (2, [KILLED, KILLED, KILLED], 137, 3),
            (5, [KILLED, STOPPED], 143, 2),
            (5, [BROKEN, BROKEN], 1, 2),
            (5, [BROKEN, KILLED, BROKEN, WELL], 0, 4),
        ],
    )
    def test_how_often(self, restarts: int, outcomes: list[Outcome], code: int, count: int) -> None:
        found, seen = started(4, Faults(restarts=restarts), outcomes)
        assert (found, len(seen)) == (code, count)
        assert [a.variables["MESHARD_RESTART"] for a in seen] == [str(i) for i in range(count)]
        assert {a.processes for a in seen} == {4}

    def test_what_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        started(4, Faults(restarts=5), [KILLED, BROKEN, BROKEN])
        said = capsys.readouterr().err.splitlines()
        assert said[0] == (
            "meshard run: Attempt 1 of 6 has ended with code 137; the job is started again."
        )
        assert said[2] == (
            "meshard run: Attempt 3 of 6 has ended with code 1, by an error of the program within "
            "10 s, as the attempt before; the job is not started again."
        )

    def test_on_the_hosts_that_are_left(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        living = [{"a", "b", "c"}, {"a", "c"}, {"c"}, set[str]()]
        alive = iter(living)
        monkeypatch.setattr(
            faults, "answering", lambda hosts: tuple(h for h in hosts if h[0] in now)
        )
        given = Faults(restarts=9, spares=1, hosts=(("a", 2), ("b", 2), ("c", 2)))
        seen = []

        def start(attempt: Attempt) -> Outcome:
            nonlocal now
            seen.append((attempt.processes, attempt.spares, [name for name, _ in attempt.hosts]))
            now = next(alive)
            return KILLED

        now: set[str] = set()
        assert attempts(4, given, start) == 137
        assert seen == [
            (4, 1, ["a", "b", "c"]),
            (4, 1, ["a", "b", "c"]),
            (4, 0, ["a", "c"]),
            (2, 0, ["c"]),
        ]
        said = capsys.readouterr().err
        assert "the job is started again without a, b, which did not answer." in said
        assert "none of its hosts answers; the job is not started again" in said

    def test_a_host_that_the_agent_does_not_reach_does_not_answer(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        agent = tmp_path / "agent"
        agent.write_text('#!/bin/sh\ncase "$1" in far) exit 255;; mute) exec sleep 60;; esac\n')
        agent.chmod(0o755)
        monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
        for name in faults._MANAGERS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(faults, "_ANSWER", 0.5)
        given = (("near", 1), ("far", 2), ("mute", 3), ("localhost", 4))
        assert answering(given) == (("near", 1), ("localhost", 4))
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        assert answering(given) == given


class TestLauncher:
    def test_fault_tolerance_is_what_the_program_beside_it_says(self, tmp_path: Path) -> None:
        open_mpi = Launcher(tmp_path / "mpiexec", "mpiexec (Open MPI) 5.0.11")
        assert not open_mpi.is_fault_tolerant()
        told = tmp_path / "ompi_info"
        for answer in "yes", "no":
            told.write_text(f"#!/bin/sh\necho ' FT MPI support: {answer}'\n")
            told.chmod(0o755)
            assert open_mpi.is_fault_tolerant() == (answer == "yes")
        assert not Launcher(tmp_path / "mpiexec", "HYDRA").is_fault_tolerant()

    def test_options(self) -> None:
        hosts = (("a", 2), ("b", 1))
        open_mpi = Launcher(Path("mpiexec"), "mpiexec (Open MPI) 5.0.11")
        assert open_mpi.options(elastic=False, hosts=()) == []
        assert open_mpi.options(elastic=True, hosts=hosts) == [
            *("--with-ft", "ulfm", "--host", "a:2,b:1")
        ]
        assert Launcher(Path("m"), "HYDRA").options(elastic=False, hosts=hosts) == [
            *("-hosts", "a:2,b:1")
        ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--restarts", "-1"], 2, "-1 is negative"),
        (["--spares", "many"], 2, "invalid number value: 'many'"),
        (["--hosts", "a:2,a"], 2, "'a:2,a' is not a list of different hosts"),
        (["--hosts", "a:0"], 2, "'a:0' is not a list of different hosts"),
        (["--hosts", "a:1,b"], 1, "the hosts take 2 processes, not 4; write how many each takes"),
        (["--elastic"], 1, "mpiexec ends a job when a process dies. Processes go on without it"),
        (["--spares", "1"], 1, "with --restarts the job is started again instead"),
    ],
)
def test_refusals(
    options: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: name)
    monkeypatch.setattr(run, "find_mpiexec", lambda: Path("/m/mpiexec"))
    monkeypatch.setattr(run, "_version", lambda mpiexec: "HYDRA")
    try:
        found = main(["run", "-n", "4", *options, "--", "-c", "pass"])
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_where_no_process_can_die_alone_the_job_starts_again(tmp_path: Path) -> None:
    """The launcher stands for an MPI without fault tolerance; it fails the first two times."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo HYDRA; exit; fi\n'
        f'echo "$MESHARD_RESTART $MESHARD_SPARES $*" >> {tmp_path}/told\n'
        'kill_self() { kill -9 $$; }\n[ "$MESHARD_RESTART" = 2 ] || kill_self\n'
    )
    launcher.chmod(0o755)
    program = (
        "import sys; from meshard.cli import main, run\n"
        f"run.find_mpiexec = lambda: run.Path({str(launcher)!r})\n"
        "run.find_spec = lambda name: name\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    options = ["--spares", "1", "--restarts", "3"]
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "-n", "2", *options, "--", "-c", "pass"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ends a job when a process dies; after a death the job is started again" in done.stderr
    expected = [f"{i}  -n 2 {sys.executable} -c pass" for i in range(3)]
    assert (tmp_path / "told").read_text().splitlines() == expected
