"""Loading trees.

In: files, and how their tensors are to be laid out. Out: a tree of arrays. A file is one more place
where arrays are laid out: the load is planned, printed, and then run, and each stored byte is read
once by the whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import shown
from meshard.errors import CheckpointError, ShardingError, TreeError, did_you_mean
from meshard.plan.figures.footprint import checked_window
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.runtime.agree import agreed
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_sharding, check_devices_exist, home, is_function
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees.trees import flatten_with_accessors, unflatten
from meshard.runtime.types import dtype_name
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.checkpoint.opening import Files, in_order, opened
from meshard.weights.checkpoint.plans import LoadPlan
from meshard.weights.checkpoint.sources import Name, by_prefix, made_of, spread
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.native.manifest import Manifest
from meshard.weights.native.structure import leaf_values, rebuilt, structure_of
from meshard.weights.transfer.loading import load as run_load
from meshard.weights.transfer.reading import Wanted, plan_reading, slab_bytes_of, wanted_of


def load(
    path: Files,
    shardings: Any = None,
    *,
    like: Any = None,
    step: int | None = None,
    dtype: Any = None,
    map: KeyMap | None = None,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> Any:
    """Load a tree of arrays, each laid out as it is wanted, whatever layout it was saved in.

    All processes of a job call this together. Each stored byte is read once, by one of them, about
    equally much by each; `plan_load` says beforehand who reads and moves what.

    Args:
        path: the checkpoint's folder, that of a run's steps, or a file or folder of another format:
            safetensors (one file, several with an index), Zarr, ``.npy``, HDF5, torch's DCP.
        shardings: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            the tree; or a function of a name and a ShapeDtypeStruct that returns one. None puts
            whole arrays on the default device, or, in several processes, on all devices.
        like: a tree of arrays or ShapeDtypeStructs: only its leaves are loaded, into its structure,
            and must have its shapes and dtypes. Its shardings are taken if ``shardings`` is None.
        step: the step of a run; by default the newest that is complete.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.
        map: which tensors are made of which; the tree is then a dict of the map's names, unless
            ``like`` says otherwise. Elements are read where they are needed, before any cut.
        max_bytes: the most bytes that a process holds besides the arrays; None for 4 MiB a thread.
        progress: True shows a bar on process 0, False none, and None one on a terminal if loading
            takes longer than a second; or a function, which each process calls with the bytes that
            it has read, and those that it will have read. In a program of several processes, an
            error that it raises is raised when the work is done.

    Returns:
        The tree, with committed arrays where shardings were given. Names of one saved array, as of
        tied weights, are one array if they are laid out alike.

    Raises:
        MissingFileError: if there is no complete checkpoint, or one of its files is missing.
        CorruptFileError: if a file is cut off, was changed, or contradicts another one.
        CheckpointError: if a leaf of ``like`` is missing, or has another shape or dtype.
        KeyMapError: if the map does not fit the tensors.
        ShardingError: if a tensor cannot be laid out as asked.
        TreeError: if ``shardings`` is not a prefix of the tree, or if only ``like`` can make one of
            its containers again.

    >>> import numpy as np, meshard, tempfile
    >>> from meshard.checkpoint import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.arange(6.0).reshape(2, 3), "epoch": 3})
    ...     load(folder)
    {'w': Array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float64), 'epoch': 3}
    """
    what = "checkpoint.load"
    asked = checked_progress(progress, what)
    request = _Request(opened(path, step, what), _Wish(like, shardings, dtype, map), what)
    try:
        request.names()  # refused, if only `like` can make the tree, before anything is read
        plan = request.plan(checked_window(max_bytes, what))
        world = here()
        request.announce(world, plan)
        total = plan.reading.bytes_read[world.process_index]
        with telling(asked, "loading", world=world, patient=world.process_count > 1) as tell:
            arrays = run_load(world, plan.reading, request.catalogue, adding(tell, total))
    finally:
        request.catalogue.reader.close()
    return request.tree(arrays)


def load_iter(
    path: Files,
    shardings: Any = None,
    *,
    like: Any = None,
    step: int | None = None,
    dtype: Any = None,
    map: KeyMap | None = None,
    max_bytes: int | None = None,
) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a file or folder one after the other, in the order of the files.

    Arrays that the caller no longer refers to are freed, so a tree larger than memory can pass
    through. All processes of a job take all arrays, in the same order.

    Args:
        path: see `load`.
        shardings: see `load`.
        like: see `load`.
        step: see `load`.
        dtype: see `load`.
        map: see `load`.
        max_bytes: the most bytes of arrays that are loaded before the first of them is yielded; a
            larger array is loaded alone. None for 64 MiB.

    Yields:
        Name and array.

    Raises:
        MissingFileError, CorruptFileError, CheckpointError, ShardingError, TreeError: see `load`.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import load_iter, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"a": np.zeros((2, 3)), "b": np.ones(4)})
    ...     [(name, x.shape) for name, x in load_iter(folder)]
    [('a', (2, 3)), ('b', (4,))]
    """
    what = "checkpoint.load_iter"
    window = checked_window(max_bytes, what)
    request = _Request(opened(path, step, what), _Wish(like, shardings, dtype, map), what)
    try:
        plan = request.plan(window)
        world = here()
        request.announce(world, plan)
    except BaseException:
        request.catalogue.reader.close()
        raise
    return request.each(plan, window or _TOGETHER)


_TOGETHER = 64 << 20


def plan_load(
    path: Files,
    shardings: Any = None,
    *,
    like: Any = None,
    step: int | None = None,
    dtype: Any = None,
    map: KeyMap | None = None,
    max_bytes: int | None = None,
) -> LoadPlan:
    """Return what `load` would do, without reading any element.

    Args:
        path: see `load`.
        shardings: see `load`; their devices need not exist (`meshard.testing.virtual_devices`).
        like: see `load`.
        step: see `load`.
        dtype: see `load`.
        map: see `load`.
        max_bytes: see `load`.

    Raises:
        MissingFileError, CorruptFileError, CheckpointError, ShardingError, TreeError: see `load`.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import plan_load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.zeros((512, 512))})
    ...     plan_load(folder).bytes_read
    2097152
    """
    what = "checkpoint.plan_load"
    request = _Request(opened(path, step, what), _Wish(like, shardings, dtype, map), what)
    request.catalogue.reader.close()
    request.names()
    return request.plan(checked_window(max_bytes, what), virtual=True)


@final
@dataclass(frozen=True)
class _Wish:
    """What the caller asks for; see `load`."""

    like: Any = None
    shardings: Any = None
    dtype: Any = None
    map: KeyMap | None = None


@final
class _Request:
    """What is to be loaded: the files, the tensors wanted, and the tree that they become."""

    def __init__(self, catalogue: Catalogue, wish: _Wish, what: str) -> None:
        self.catalogue = catalogue
        self._what = what
        self._like = wish.like
        self._shardings = wish.shardings
        try:
            stored = self.catalogue
            made = made_of(in_order(stored), stored.tied, wish.map, wish.dtype, what)
            self._made, self._recipes, self._tied = made, made.recipes, made.tied
            self._structure = made.structure(structure_of(stored))
            self._names, self._build = self._wanted_names()
        except BaseException:
            self.catalogue.reader.close()
            raise

    def _wanted_names(self) -> tuple[list[str], Callable[[Mapping[str, Any]], Any]]:
        """Return the names of the arrays wanted, and what makes a tree of them."""
        stored = self.catalogue
        names = [*self._recipes, *self._tied]
        if self._like is not None:
            return self._as_like(names)

        def build(arrays: Mapping[str, Any]) -> Any:
            def leaf(name: str) -> Any:
                if name not in arrays:
                    raise CheckpointError(f"{stored.path}: tensor {name!r} is missing.")
                return arrays[name]

            return rebuilt(self._structure, leaf, sorted(arrays), self._what)

        return names, build

    def _as_like(self, names: list[str]) -> tuple[list[str], Callable[[Mapping[str, Any]], Any]]:
        leaves, structure = _leaves(self._like)
        values, known = leaf_values(self._structure), set(names)
        missing = [p for p, _ in leaves if p not in known and p not in values]
        if missing and missing[0] in self.catalogue.pickled:
            raise CheckpointError(
                f"{self._what}: {missing[0]!r} in {self.catalogue.path} is a pickle, which could "
                "run code and is not read. Leave it out of like=, or load it with torch."
            )
        if missing:
            more = f", and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise CheckpointError(
                f"{self._what}: {self.catalogue.path} does not hold {missing[0]!r}{more}, which "
                f"like= asks for. It holds {len(known)} arrays, such as {min(known, default='')!r}."
                f"{did_you_mean(missing[0], sorted(known))}"
            )
        for path, leaf in leaves:
            self._check_leaf(path, leaf, values)

        def build(arrays: Mapping[str, Any]) -> Any:
            found = [arrays[p] if p in arrays else values[p] for p, _ in leaves]
            return unflatten(structure, found)

        return [p for p, _ in leaves if p in known], build

    def _check_leaf(self, name: str, leaf: Any, values: Mapping[str, Any]) -> None:
        """Refuse a leaf that has another shape or dtype than `like` says.

        Raises:
            CheckpointError: if it has.
        """
        told, path = f"{self._what}: {name!r}", self.catalogue.path
        source = self._recipes.get(self._tied.get(name, name))
        if (source is not None) != hasattr(leaf, "shape"):
            held = f"the value {values[name]!r}" if source is None else "an array"
            expected = "an array" if source is None else f"the value {shown(leaf)}"
            raise CheckpointError(f"{told} is {held} in {path}, but like= expects {expected}.")
        if source is None:
            return
        if tuple(leaf.shape) != source.shape:
            raise CheckpointError(
                f"{told} has shape {source.shape} in {path}, but like= expects {tuple(leaf.shape)}."
            )
        if np.dtype(leaf.dtype) != source.dtype:
            raise CheckpointError(
                f"{told} has dtype {dtype_name(source.dtype)} in {path}, but like= expects "
                f"{dtype_name(np.dtype(leaf.dtype))}. Pass dtype= to cast it."
            )

    def plan(self, window: int | None, *, virtual: bool = False) -> LoadPlan:
        """Return what is to be done.

        Args:
            window: the most bytes held besides the arrays.
            virtual: whether devices need not exist.
        """
        stored = self.catalogue
        shardings = self._wanted_shardings()
        wanted: dict[tuple[str, Sharding], Wanted] = {}
        self._keys: dict[str, tuple[str, Sharding]] = {}
        for name in self._names:
            source, sharding = self._tied.get(name, name), shardings[name]
            if not virtual:
                check_devices_exist(here(), sharding, self._what)
            self._keys[name] = source, sharding
            if (source, sharding) not in wanted:
                try:
                    made = wanted_of(source, self._recipes[source], sharding, stored)
                except ShardingError as error:
                    raise type(error)(f"{self._what}: tensor {name!r}: {error}") from error
                wanted[source, sharding] = made
        self._order = list(wanted)
        places = {id(w.sharding): w.sharding for w in wanted.values()}
        processes = {d.process_index for s in places.values() for d in s.device_order}
        readers: Sequence[int] = here().processes
        if not processes <= set(readers):  # they are virtual
            readers = range(max(*processes, *readers) + 1)
        slab = slab_bytes_of(window, len(readers), here().workers.threads)
        reading = plan_reading(readers, list(wanted.values()), stored, slab)
        used = {n for w in reading.wanted for n in w.recipe.sources}
        files = {p.file for n in used for p in stored.tensors[n].pieces}
        return LoadPlan(stored.path, stored.format, reading, window, len(files))

    def announce(self, world: RuntimeWorld, plan: LoadPlan) -> None:
        """Let the processes of a job compare what they load: another job may have replaced it.

        Raises:
            AgreementError: if each step is compared, and another process loads something else.
        """
        if world.process_count > 1:
            manifest = self.catalogue.values.get("manifest")
            version = f", {manifest.folder}" if isinstance(manifest, Manifest) else ""
            text = f"`{self._what}` of {self.catalogue.path}{version}, plan {plan.digest}"
            agreed(world, world.processes, text, text)

    def each(self, plan: LoadPlan, most: int) -> Iterator[tuple[str, Array]]:
        """Yield the names and arrays of a plan, some of them loaded together."""
        world, wanted = here(), plan.reading.wanted
        names: dict[tuple[str, Sharding], list[str]] = {}
        for name, key in self._keys.items():
            names.setdefault(key, []).append(name)
        try:
            for batch in _batches(wanted, most):
                part = plan_reading(
                    world.processes,
                    [wanted[k] for k in batch],
                    self.catalogue,
                    plan.reading.slab_bytes,
                )
                arrays = run_load(world, part, self.catalogue)
                for k in batch:
                    array = arrays.pop(0)
                    for name in names[self._order[k]]:
                        yield name, array
                    del array
        finally:
            self.catalogue.reader.close()

    def _wanted_shardings(self) -> dict[str, Sharding]:
        """Return how each array is to be laid out."""
        given, what = self._shardings, self._what
        if is_function(given):
            found = {n: given(n, self._struct(n)) for n in self._names}
        elif given is not None:
            found = self._from_prefix(given, self.names())
        elif self._like is not None:
            found = {p: _own(leaf) for p, leaf in _leaves(self._like)[0]}
        else:
            found = {}
        places = {n: as_sharding(found.get(n), f"{what}: tensor {n!r}") for n in self._names}
        return {n: place or _default(here()) for n, place in places.items()}

    def _from_prefix(self, given: Any, tree: Any) -> dict[str, Any]:
        try:
            return by_prefix(given, tree, self._what)
        except TreeError as error:
            if isinstance(given, Mapping) and self.catalogue.format != "meshard":
                raise TreeError(
                    f"{error} A file holds {len(self._names)} tensors by name; a function "
                    "shardings(name, struct) can choose by name."
                ) from error
            raise

    def _struct(self, name: str) -> Any:
        tensor = self._recipes[self._tied.get(name, name)]
        return ShapeDtypeStruct(tensor.shape, tensor.dtype)

    def names(self) -> Any:
        """Return the tree with a `Name` for each array.

        Raises:
            TreeError: if only ``like`` can make it.
        """
        return self._build({n: Name(n) for n in self._names})

    def tree(self, arrays: list[Array]) -> Any:
        """Return the tree of the arrays that a plan has made."""
        made = dict(zip(self._order, arrays, strict=True))
        return self._build({name: made[key] for name, key in self._keys.items()})


def _batches(wanted: Sequence[Wanted], most: int) -> Iterator[list[int]]:
    """Yield the numbers of tensors that are loaded together."""
    batch: list[int] = []
    size = 0
    for number, one in enumerate(wanted):
        if batch and size + one.nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += one.nbytes
    if batch:
        yield batch


def _leaves(like: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the names and leaves of a tree, and its structure."""
    accessors, leaves, structure = flatten_with_accessors(like, none_is_leaf=False)
    names = [".".join(map(str, a.path)) if a.path else "x" for a in accessors]
    return list(zip(names, leaves, strict=True)), structure


def _own(leaf: Any) -> Any:
    """Return the sharding of a leaf of `like`; None if it has none of its own."""
    if type(leaf) is Array and not leaf.committed:
        return None
    return getattr(leaf, "sharding", None)


def _default(world: RuntimeWorld) -> Sharding:
    return home(world) if world.process_count == 1 else spread(world)
