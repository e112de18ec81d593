"""Joining a job: what is left out when MPI starts, unless somebody has chosen it."""

import os
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
