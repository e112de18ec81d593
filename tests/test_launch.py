"""Joining a job: what is left out when MPI starts, and who is counted meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshard.mpi import launch


@pytest.mark.parametrize(
    ("variable", "file", "expected"),
    [
        (None, None, "^ofi"),
        (None, "pml = ob1\n", "^ofi"),
        ("self,sm", None, "self,sm"),
        (None, "btl = self,tcp\n", None),
    ],
)
def test_what_a_user_chose_stays(
    variable: str | None,
    file: str | None,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMPI_MCA_btl", variable)
    if file is not None:
        (tmp_path / ".openmpi").mkdir()
        (tmp_path / ".openmpi" / "mca-params.conf").write_text(file)
    with launch._without_one_sided():
        assert os.environ.get(launch._BTL) == expected
    # Processes that this one starts are not told.
    assert os.environ.get(launch._BTL) == variable


FORKS_IN_A_THREAD = """
import os, subprocess, sys, threading
from meshard.runtime.processes.identity import siblings

def start():
    ours, others = ({**os.environ, "PMIX_NAMESPACE": name} for name in ("job", "other"))
    none = {n: v for n, v in os.environ.items() if n != "PMIX_NAMESPACE"}
    started.extend(subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=e, process_group=0)
                   for e in (ours, ours, others, none))
    begun.set()
    over.wait()

os.environ["PMIX_NAMESPACE"] = "job"
started, begun, over = [], threading.Event(), threading.Event()
thread = threading.Thread(target=start)
thread.start()
begun.wait()
both = siblings(os.getpid())
started[0].communicate()
print(both, siblings(os.getpid()), siblings(started[0].pid))
over.set()
for child in started[1:]:
    child.communicate()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_processes_of_a_job_are_counted_whichever_thread_has_started_them() -> None:
    """Not those of other jobs, nor a launcher's agents; and who cannot be asked has not none."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS_IN_A_THREAD],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == ["2", "1", "None"]
