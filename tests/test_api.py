"""The public surface is a list, `golden/api.txt`, and this pins it.

After a change that is meant: `UPDATE_GOLDEN=1 python -m pytest tests/test_api.py`.
"""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

GOLDEN = Path(__file__).parent / "golden" / "api.txt"

# The modules that users import from; one that does not exist yet is simply not listed.
PUBLIC_MODULES = (
    *("numpy", "lax", "random", "sharding", "debug", "tree", "nn", "config", "gda", "resharding"),
    *("distributed", "multihost_utils", "experimental", "testing", "typing"),
    *("checkpoint", "checkpoint_policies", "ad_checkpoint", "array_api", "elastic", "optim"),
    *("tree_util", "flatten_util", "nn.initializers", "dtypes"),
    "scipy",
)

OPTIONAL = (
    *(
        "jax",
        "jaxlib",
        "torch",
        "mpi4py",
        "safetensors",
        "zarr",
        "h5py",
        "tokenizers",
        "rich",
        "xxhash",
    ),
    "hypothesis",
)
# Needed, but slow to load: imported by the first function that calls it.
LATE = ("scipy",)


def public_modules() -> Iterator[ModuleType]:
    yield importlib.import_module("meshard")
    for door in PUBLIC_MODULES:
        if importlib.util.find_spec(f"meshard.{door}") is None:
            continue
        module = importlib.import_module(f"meshard.{door}")
        yield module
        if door in ("experimental", "scipy"):
            for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
                yield importlib.import_module(found.name)


def public_names() -> Iterator[tuple[str, object]]:
    """Each public name with what it names, `meshard.lax.psum` first."""
    for module in public_modules():
        assert hasattr(module, "__all__"), (
            f"{module.__name__} is public and has no __all__; list there what users may import"
        )
        listed = list(module.__all__)
        twice = sorted({name for name in listed if listed.count(name) > 1})
        assert not twice, f"{module.__name__}.__all__ lists {', '.join(twice)} more than once"
        for name in listed:
            assert hasattr(module, name), (
                f"{module.__name__}.__all__ lists {name!r}, which the module does not have"
            )
            yield f"{module.__name__}.{name}", getattr(module, name)


def collectives() -> set[str]:
    """Return the functions of `meshard.lax` that run in the bodies of `shard_map` only."""
    lax = importlib.import_module("meshard.lax")
    functions = {n: f for n, f in vars(lax).items() if inspect.isfunction(f) and n[0] != "_"}
    return {n for n, f in functions.items() if "axis_name" in inspect.signature(f).parameters}


def lacks_docstring(value: object) -> bool:
    """Whether a function or class has no docstring of its own (a dataclass's signature is none)."""
    if not (callable(value) or inspect.isclass(value)):
        return False
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    text = (text or "").strip()
    return not text or (inspect.isclass(value) and text.startswith(f"{value.__name__}("))


def is_ours(value: object) -> bool:
    """Whether a name is meshard's own; dtypes are NumPy's and ml_dtypes', unions Python's."""
    whose = str(getattr(value, "__module__", "")).partition(".")[0]
    return whose not in ("numpy", "ml_dtypes", "typing")


def test_the_public_surface_is_the_golden_list() -> None:
    names = sorted(name for name, _ in public_names())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    assert GOLDEN.exists(), f"no {GOLDEN.name} yet; make it with UPDATE_GOLDEN=1"
    golden = GOLDEN.read_text(encoding="utf-8").splitlines()
    new = sorted(set(names) - set(golden))
    gone = sorted(set(golden) - set(names))
    unchanged = not new and not gone
    assert unchanged, (
        f"the public surface changed: new {', '.join(new) or 'nothing'}; "
        f"gone {', '.join(gone) or 'nothing'}; if that is meant, run this test with "
        f"UPDATE_GOLDEN=1 and give CHANGELOG.md a line"
    )
    assert golden == names, f"{GOLDEN.name} is not sorted; run this test with UPDATE_GOLDEN=1"


def test_every_public_name_has_a_docstring() -> None:
    ours = ((n, v) for n, v in public_names() if is_ours(v))
    bare = [name for name, value in ours if lacks_docstring(value)]
    assert not bare, f"public names without a docstring: {', '.join(bare)}"


def test_modules_have_docstrings() -> None:
    bare = [module.__name__ for module in public_modules() if not (module.__doc__ or "").strip()]
    assert not bare, f"public modules without a docstring: {', '.join(bare)}"


@pytest.fixture(scope="module")
def modules_after_import(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The top-level modules of a fresh interpreter that has run `import meshard`, and no more."""
    script = (
        "import sys; before = set(sys.modules); import meshard; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"`import meshard` failed in a fresh interpreter:\n{done.stderr}"
    names = frozenset(done.stdout.split())
    assert "meshard" in names
    return names


def test_import_loads_no_optional_package(modules_after_import: frozenset[str]) -> None:
    loaded = sorted(modules_after_import.intersection(OPTIONAL))
    assert not loaded, (
        f"`import meshard` loads {', '.join(loaded)}; an optional package is imported by the "
        f"function that needs it"
    )


def test_import_loads_no_slow_package(modules_after_import: frozenset[str]) -> None:
    loaded = sorted(modules_after_import.intersection(LATE))
    assert not loaded, (
        f"`import meshard` loads {', '.join(loaded)}, which makes it slow; import it inside the "
        f"function that needs it"
    )


class Documented:
    """Has one."""


class Inherits(Documented):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Documented, False),
        (Inherits, True),
        (lacks_docstring, False),
        (lambda: 0, True),
        (3, False),
    ],
)
def test_lacks_docstring(value: object, expected: bool) -> None:
    assert lacks_docstring(value) is expected


def test_submodules_of_numpy_are_imported_by_their_names() -> None:
    numpy = importlib.import_module("meshard.numpy")
    assert importlib.import_module("meshard.numpy.fft") is numpy.fft
    assert importlib.import_module("meshard.numpy.linalg") is numpy.linalg


def test_pjit_is_where_jax_has_it() -> None:
    meshard = importlib.import_module("meshard")
    assert importlib.import_module("meshard.experimental.pjit").pjit is meshard.pjit
    assert meshard.experimental.pjit.pjit is meshard.pjit


def test_every_module_for_users_is_an_attribute_once_meshard_is_imported() -> None:
    named = [f"meshard.{name}" for name in PUBLIC_MODULES]
    code = f"import meshard\n{'; '.join(named)}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("pmap", "use shard_map"),
        ("DeviceArray", "one type, Array"),
        ("GlobalDeviceArray", "it is meshard.gda.GlobalDeviceArray"),
    ],
)
def test_what_is_not_here_says_what_to_do_instead(name: str, advice: str) -> None:
    meshard = importlib.import_module("meshard")
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{advice}"):
        getattr(meshard, name)
    assert not hasattr(meshard, name)


@pytest.mark.parametrize("module", [m.__name__ for m in public_modules()])
def test_a_misspelt_name_suggests_the_nearest(module: str) -> None:
    found = importlib.import_module(module)
    for name in found.__all__:
        if name.startswith("_") or len(name) < 4:
            continue
        misspelt = name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name[:-1]
        if misspelt in found.__all__ or hasattr(found, misspelt):
            continue
        with pytest.raises(AttributeError, match=f"no attribute '{misspelt}'") as refused:
            getattr(found, misspelt)
        # NumPy may have a nearer name.
        told = re.search(r"(Did you mean|The nearest name here is) (.*)", str(refused.value))
        assert told, str(refused.value)
        nearest = re.findall(r"'(\w+)'", told[2])
        assert nearest, str(refused.value)
        assert {*nearest} <= {*found.__all__}
        assert nearest[0][:2].lower() == name[:2].lower()


def test_a_name_of_another_door_says_where_it_is() -> None:
    meshard = importlib.import_module("meshard")
    for name, place in (("zeros", "numpy"), ("psum", "lax"), ("PartitionSpec", "sharding")):
        with pytest.raises(AttributeError, match=f"Use meshard.{place}.{name}.$"):
            getattr(meshard, name)
    with pytest.raises(AttributeError, match=r"no attribute '__nothing__'$"):
        meshard.__nothing__
