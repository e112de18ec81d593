"""Lines that messages name: files, and in a notebook cells."""

import sys
import textwrap
import types

import pytest

import meshard
from meshard.errors import DeletedArrayError
from meshard.runtime.callers import place_text

CELL = "/tmp/ipykernel_7/2083190416.py"
SOURCE = """
    import meshard, meshard.numpy as mnp
    from meshard.sharding import P, NamedSharding

    mesh = meshard.make_mesh((4,), ("i",))
    x = meshard.device_put(mnp.arange(8.0), NamedSharding(mesh, P("i")))
    with meshard.debug.ledger() as log:
        y = x.sum()
    told = meshard.explain(lambda a: a.sum(), x)
    with meshard.debug.profile() as seen:
        z = x + 1
    z.delete()
"""


def run(file):
    names = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(SOURCE), file, "exec"), names)
    return names


@pytest.fixture
def notebook(monkeypatch):
    """An IPython that keeps one file as cell 9."""
    compiler = types.SimpleNamespace(
        format_code_name=lambda name: ("Cell", "In[9]") if name == CELL else None
    )
    ipython = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return ipython


def test_lines_of_a_cell_have_its_number(notebook):
    names = run(CELL)
    assert set(names["log"].by_line()) == {"In[9]:8"}
    assert "In[9]:8" in str(names["log"])
    assert names["told"].steps[0].line == "In[9]:9"
    assert "In[9]:9" in str(names["told"])
    assert set(names["seen"].by_line()) == {"In[9]:11"}
    with pytest.raises(DeletedArrayError, match=r"deleted by delete\(\) at In\[9\]:12"):
        names["z"] + 1


def test_a_cell_of_an_older_ipython_is_known_by_its_name(monkeypatch):
    for shell in ({}, {"IPython": types.SimpleNamespace(get_ipython=lambda: None)}):
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
        for name, module in shell.items():
            monkeypatch.setitem(sys.modules, name, module)
        assert set(run("<ipython-input-12-abc>")["log"].by_line()) == {"In[12]:8"}


@pytest.mark.parametrize("file", ["/home/me/model.py", "<stdin>", "/tmp/ipykernel_7/1.py", "ipy"])
def test_other_files_have_their_own_names(notebook, file):
    assert place_text(file, 3) == f"{file}:3"
    assert meshard.runtime.callers._cell(file) == file
