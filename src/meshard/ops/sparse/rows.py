"""The rows of sparse products, and the decisions about them.

In: operands' types and a halo. Out: an `ExchangeDecision`. A sparse matrix stays where it is. A
vector is read split like the matrix's columns; one that every device has all of stays so, and
nothing passes. Columns of a dense matrix stay split over the axes that the rows do not use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshard.algebra.layout import Cuts
from meshard.algebra.propagate import Placement, Split
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.decision import ExchangeDecision
from meshard.ops.engine.operand_mesh import OperandMesh, way_to
from meshard.ops.exchange.parties import Parties
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.ops.sparse.halo import Halo
from meshard.ops.sparse.kernels import check_dtype, sampled, times, transposed_times
from meshard.ops.sparse.products import Back, Sampled, Setting, Times
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld

STRUCTURE = 4
"""How many operands say where the values are: columns, starts, needed, sends."""


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, e, c {wide} -> r {wide}", {"r": params["halo"].shape[0]}


def _back_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, e, r {wide} -> c {wide}", {"c": params["halo"].shape[1]}


def _sampled_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, r {wide}, c {wide} -> e"


def _dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    found = operands[-1][1]
    assert isinstance(found, np.dtype)
    return (found,)


def _times(*blocks: Block, halo: Halo) -> Block:
    """Multiply on one device, which has all rows."""
    columns, starts, needed, _, values, x = blocks
    return times(values, columns, starts, x.take(needed, axis=0))


def _back(*blocks: Block, halo: Halo) -> Block:
    columns, starts, needed, _, values, y = blocks
    found = np.zeros((halo.shape[1], *y.shape[1:]), y.dtype)
    found[needed] = transposed_times(values, columns, starts, y, len(needed))
    return found


def _sampled(*blocks: Block, halo: Halo) -> Block:
    columns, starts, needed, _, y, x = blocks
    return sampled(columns, starts, y, x.take(needed, axis=0))


def _decide(
    world: RuntimeWorld, op: Op, types: Sequence[ArrayType], params: Params
) -> ExchangeDecision:
    """Work out what a product does.

    Raises:
        DtypeError: if SciPy has no products of the dtype.
        IncompatibleDevicesError: if an operand is committed to other devices than the matrix.
    """
    check_dtype(types[-1].dtype, op.name)
    return _Deciding(world, op, types, params["halo"]).decision()


class _Deciding:
    """The decision about one product, part by part."""

    def __init__(self, world: RuntimeWorld, op: Op, types: Sequence[ArrayType], halo: Halo) -> None:
        self.world, self.op, self.types, self.halo = world, op, types, halo
        own = NamedSharding(halo.mesh, PartitionSpec(halo.axes))
        home = world.type_of((halo.parts,), np.dtype(np.int8), own, True)
        OperandMesh(op.name, [home, *types])  # refuses other devices
        self.meets = OperandMesh(op.name, [home])

    def decision(self) -> ExchangeDecision:
        """All parts together."""
        meets, types = self.meets, self.types
        read = self._read()
        ways = [way_to(self.world, meets, t, p) for t, p in zip(types, read, strict=True)]
        kinds = tuple(
            t if part is None else self._type(t.shape, t.dtype, p)
            for t, (part, _), p in zip(types, ways, read, strict=True)
        )
        output = self._output(read)
        product = self._product(kinds, read, output)
        return ExchangeDecision(
            row=self.op,
            operands=kinds,
            moves=tuple([part for part, _ in ways]),
            moved=tuple([wire for _, wire in ways if wire is not None]),
            exchange=product,
            estimated=product.wires,
            outputs=(output,),
        )

    def _type(self, shape: tuple[int, ...], dtype: Dtype, placement: Placement) -> ArrayType:
        return self.world.type_of(shape, dtype, self.meets.sharding(placement), True)

    # how operands are read

    def _read(self) -> list[Placement]:
        halo, name = self.halo, self.op.name
        cuts = [halo.entries, halo.starts, halo.needed, halo.sent]
        found: list[Placement] = [(halo.split(c),) for c in cuts]
        last = self.types[-1]
        if name == "sparse_sampled":
            return [*found, self._whole(-2, halo.rows), self._whole(-1, halo.columns)]
        found.append((halo.split(halo.entries),))
        if name == "sparse_times" and self._everywhere(last):
            return [*found, (Split((), (0, last.shape[0])), *self._columns(last))]
        own = halo.columns if name == "sparse_times" else halo.rows
        return [*found, (halo.split(own), *self._columns(last))]

    def _whole(self, number: int, cuts: Cuts) -> Placement:
        """Return the placement of an operand whose columns are together."""
        shape = self.types[number].shape
        return (self.halo.split(cuts), *[Split((), (0, n)) for n in shape[1:]])

    def _everywhere(self, kind: ArrayType) -> bool:
        """Whether every device has all rows of an operand."""
        placement = self.meets.placement(kind)
        return kind.unplaced or (placement is not None and placement[0].shards == 1)

    def _columns(self, kind: ArrayType) -> Placement:
        """Return how the columns of a dense matrix are split: as they are, if other axes do it."""
        if kind.ndim == 1:
            return ()
        placement = self.meets.placement(kind)
        if placement is None or kind.unplaced or {*placement[1].axes} & {*self.halo.axes}:
            return (Split((), (0, kind.shape[1])),)
        return placement[1:]

    # the result

    def _output(self, read: Sequence[Placement]) -> ArrayType:
        """Return the result's type; with an operand's own sharding where it is laid out alike."""
        halo, last = self.halo, self.types[-1]
        if self.op.name == "sparse_sampled":
            return self._type((halo.entries[-1],), last.dtype, (halo.split(halo.entries),))
        rows = halo.rows if self.op.name == "sparse_times" else halo.columns
        shape = (rows[-1], *last.shape[1:])
        placement = (halo.split(rows), *read[-1][1:])
        if last.shape == shape and self.meets.placement(last) == placement:
            return self.world.type_of(shape, last.dtype, last.sharding, True)
        return self._type(shape, last.dtype, placement)

    def _product(
        self, kinds: Sequence[ArrayType], read: Sequence[Placement], output: ArrayType
    ) -> Times | Back | Sampled:
        meets, last, name = self.meets, kinds[-1], self.op.name
        whole = name == "sparse_times" and read[-1][0].shards == 1 < self.halo.parts
        source = meets.sharding(read[-1]).layout(last.shape)
        target = output.layout
        if name == "sparse_sampled":
            target = meets.sharding(read[-2]).layout(kinds[-2].shape)
        setting = Setting(
            name=self.op.name,
            array=last.str_short(),
            halo=self.halo,
            source=source,
            target=target,
            dtype=last.dtype,
            parties=Parties({d.id: d.process_index for d in meets.mesh.flat_devices}),
        )
        if name == "sparse_times":
            return Times(setting, whole)
        return (Back if name == "sparse_times_transposed" else Sampled)(setting)


register(Op("sparse_times", _rule, _times, dtypes=_dtype, decides=_decide))
register(Op("sparse_times_transposed", _back_rule, _back, dtypes=_dtype, decides=_decide))
register(Op("sparse_sampled", _sampled_rule, _sampled, dtypes=_dtype, decides=_decide))
