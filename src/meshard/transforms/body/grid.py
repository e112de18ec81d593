"""`Grid`: the value that code inside `shard_map` works on."""

from __future__ import annotations

from itertools import islice
from typing import Any, final

import numpy as np

from meshard.algebra.boundary import bounded
from meshard.errors import ConcretizationError
from meshard.ops.engine.infer import Weak
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.memory.exported import exported
from meshard.runtime.types import Block
from meshard.transforms.body.deferred import Pending
from meshard.transforms.body.scope import GridKind, Running

Cells = tuple[Any, ...]
"""Per cell a block, or an Array on the automatic axes; None where it is not held or computed."""


_MOST_CELLS = 16
_MOST_SHOWN = 256


@bounded
@final
class Grid(Traced):
    """A value inside a `shard_map` body: one cell for each device, as far as devices differ.

    Its shape is the local shape. Printing it shows that, the axes over which it varies, and the
    value of each cell that this process holds.
    """

    __slots__ = ("_blocks", "_pending", "body", "kind")
    body: Running
    per_device = True

    def __init__(self, body: Running, kind: GridKind, cells: Cells | Pending) -> None:
        self._type = kind._type
        self.body = body
        self.kind = kind
        if type(cells) is Pending:
            self._blocks: Cells | None = None
            self._pending: Pending | None = cells
        else:
            self._blocks = cells
            self._pending = None

    def _live(self) -> Cells:
        """Return the cells, computed now if they were put off, as an Array does its blocks."""
        if self._pending is not None:
            self._blocks, self._pending = self._pending.run(), None
        assert self._blocks is not None
        return self._blocks

    @property
    def cells(self) -> Cells:
        """The cells, computed now if they were put off."""
        return self._blocks or self._live()

    @property
    def pending(self) -> Pending | None:
        """The operation that has yet to compute the cells; None if they are there."""
        return self._pending

    def standing_for(self, weak: Weak) -> Grid:
        """Return the value as one that stands for a Python number of a type; None for none."""
        kind = self.kind
        if kind.weak is weak:
            return self
        scope = self.body.scope
        found = scope.kind(kind.type, kind.extent, kind.varies, weak)
        return Grid(self.body, found, self._pending or self.cells)

    @property
    def number(self) -> int | float | complex:
        """The Python number that the value stands for; any where no device has it."""
        held = [c._live() if type(c) is Array else (c,) for c in self.cells if c is not None]
        block = next((b for blocks in held for b in blocks if b is not None), None)
        assert self.kind.weak is not None
        found: int | float | complex = self.kind.weak(0 if block is None else block.item())
        return found

    @property
    def aval(self) -> GridKind:  # type: ignore[override]  # not of one array, but of each cell
        """Local shape, dtype, and the axes over which the value varies (``vma``)."""
        return self.kind

    @property
    def vma(self) -> frozenset[str]:
        """The mesh axes over which the value may differ."""
        return self.kind.varies

    def _varying(self, x: Any) -> Any:
        axes = tuple(sorted(self.kind.varies))
        return bind("pcast", x, axes=axes) if axes else x

    def _concrete(self, what: str) -> Block:
        kind = self.kind
        if kind.varies:
            axes = ", ".join(repr(a) for a in kind.type_order(self.body.scope.manual))
            raise ConcretizationError(
                f"{what} needs one value, but this {kind.type.str_short()} inside shard_map varies "
                f"over the mesh axes {axes}: each device has its own. Choose between values with "
                "meshard.numpy.where or lax.cond, loop with lax.while_loop, or make it one value "
                "first with a collective such as lax.psum or lax.pmax over those axes."
            )
        cell = self.cells[0]
        if cell is None:
            raise ConcretizationError(
                f"{what}: this {kind.type.str_short()} has no value here, since none of this "
                "process's devices runs this branch. Use lax.cond or lax.while_loop instead."
            )
        if type(cell) is Array:
            return np.asarray(cell)
        return exported(cell)

    def __repr__(self) -> str:
        kind, scope = self.kind, self.body.scope
        held = [(i, c) for i, c in enumerate(self.cells) if c is not None]
        lines = [kind.str_short()]
        if kind.size > _MOST_SHOWN:
            return lines[0]
        for number, cell in islice(held, _MOST_CELLS):
            text = np.array2string(np.asarray(cell), prefix="  ", threshold=_MOST_SHOWN)
            if kind.extent:
                place = ", ".join(map(str, scope.coordinate(kind.extent, number)))
                lines.append(f"at ({', '.join(kind.extent)}) = ({place}):")
            lines.append(f"  {text}")
        if len(held) > _MOST_CELLS:
            lines.append(f"and {len(held) - _MOST_CELLS} more")
        return "\n".join(lines)

    __str__ = __repr__
