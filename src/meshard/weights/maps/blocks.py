"""Block scales: a small tensor with a value for each block of a large one, and what follows it.

In: what a rule does to tensors that have scales. Out: the same for the scales, in units of blocks;
or a refusal where it does not keep blocks whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import KeyMapError
from meshard.weights.maps.form import Form, composed, source_form
from meshard.weights.maps.recipe import Fill, Recipe, Stride, Term


@final
@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of a tensor.

    Attributes:
        form: the tensor of scales.
        block: how many elements share a value, along each dim of the large tensor.
        names: the patterns of the large tensor's name and of its scales', when all is done.
        before: the same when they were declared.
    """

    form: Form
    block: tuple[int, ...]
    names: tuple[str, str]
    before: tuple[str, str]


def blocks_of(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Return how many blocks there are along each dim; the last one may be cut off.

    >>> blocks_of((300, 128), (128, 128))
    (3, 1)
    """
    return tuple([-(-n // b) for n, b in zip(shape, block, strict=True)])


def followed(
    make: Callable[[Sequence[Form]], Sequence[Form]],
    forms: Sequence[Form],
    scales: Sequence[Scale],
) -> list[Scale]:
    """Return the scales of what a rule makes of tensors.

    Raises:
        KeyMapError: if blocks do not stay whole.
    """
    bare = [source_form(str(k), f.shape, f.dtype) for k, f in enumerate(forms)]
    blocks = [s.block for s in scales]
    first = scales[0]
    known = {str(k): s.form for k, s in enumerate(scales)}
    result = []
    for form in make(bare):
        if form.dtype != forms[0].dtype:
            raise KeyMapError(
                f"its values count together with its block scales only, and a cast to {form.dtype} "
                "would part them. Apply the scales before, outside of the map"
            )
        if any(s.form.dtype != first.form.dtype for s in scales):
            raise KeyMapError("the block scales of what is joined have different dtypes")
        recipe, block = _in_blocks(form, blocks, first.form.dtype)
        result.append(Scale(composed(recipe, known), block, first.names, first.before))
    return result


def _in_blocks(
    form: Form, blocks: Sequence[tuple[int, ...]], dtype: np.dtype[np.generic]
) -> tuple[Recipe, tuple[int, ...]]:
    """Return the recipe of scales, from the form of their tensor, and the new blocks."""
    made = form.recipe()
    block = tuple([_block(made, d, blocks) for d in range(form.ndim)])
    shape = blocks_of(form.shape, block)
    terms = tuple([_scale_term(t, blocks[int(t.source)], block) for t in made.terms])
    fills = tuple([Fill(b, 1.0) for b in _padding(made.fills, block)])
    count = np.zeros(shape, np.uint8)
    for term in terms:
        count_of_term = term.target_view(count, (0,) * len(shape))
        count_of_term += (count_of_term < 2).astype(np.uint8)
    for fill in fills:
        count[fill.box.slices] += 1
    if (count != 1).any():
        at = np.argwhere(count != 1)[0].tolist()
        raise KeyMapError(
            f"block {at} of the result, of {_shown(block)} elements, would be made of parts of "
            "several blocks, which have different scales. Join, cut and pad on borders of blocks"
        )
    return Recipe(shape, np.dtype(dtype), terms, fills), block


def _block(made: Recipe, dim: int, blocks: Sequence[tuple[int, ...]]) -> int:
    """Return the size of a result's blocks along a dim: that of the dim that runs along it."""
    for term in made.terms:
        for s in term.strides:
            if s.target == dim and s.target_step == 1 and s.source is not None:
                return blocks[int(term.source)][s.source] if s.source_step == 1 else 1
    return _single(made, dim, blocks) if made.shape[dim] == 1 else 1


def _single(made: Recipe, dim: int, blocks: Sequence[tuple[int, ...]]) -> int:
    """Return the size of a result's blocks along a dim of one element: that of the dim it was."""
    for term in made.terms:
        block = blocks[int(term.source)]
        left = [d for d in range(len(block)) if all(s.source != d for s in term.strides)]
        ours = [
            t
            for t, n in enumerate(made.shape)
            if n == 1 and all(s.target != t for s in term.strides)
        ]
        if len(left) == len(ours):
            old = left[ours.index(dim)]
            return block[old] if term.source_start[old] % block[old] == 0 else 1
    return 1


def _scale_term(term: Term, old: tuple[int, ...], new: tuple[int, ...]) -> Term:
    """Return a term in units of blocks."""
    strides = [_scale_stride(term, s, old, new) for s in term.strides]
    for at, size in zip(term.target_start, new, strict=True):
        _check_border(at, size, "the result")
    return Term(
        term.source,
        tuple([s for s in strides if s.size > 1]),
        tuple([at // n for at, n in zip(term.source_start, old, strict=True)]),
        tuple([at // n for at, n in zip(term.target_start, new, strict=True)]),
    )


def _scale_stride(term: Term, s: Stride, old: tuple[int, ...], new: tuple[int, ...]) -> Stride:
    into = new[s.target]
    of = into if s.source is None else old[s.source]
    if s.target_step % into == 0 and s.source_step % of == 0:
        return Stride(s.size, s.source, s.source_step // of, s.target, s.target_step // into)
    if of != into and (s.source_step, s.target_step) == (1, 1):
        raise KeyMapError(
            f"along dim {s.target} of the result blocks of {of} and of {into} elements would be "
            "joined"
        )
    if s.source is None or (s.source_step, s.target_step) != (1, 1):
        raise KeyMapError(
            f"its blocks of {_shown(old)} elements would be taken apart along dim {s.target} of "
            "the result: elements of one block go to several, and a block has one scale"
        )
    _check_border(term.source_start[s.source], of, "the tensor")
    return Stride(-(-s.size // of), s.source, 1, s.target, 1)


def _check_border(at: int, size: int, what: str) -> None:
    if at % size:
        raise KeyMapError(
            f"a part begins at element {at} of {what}, which is not on a border of blocks of "
            f"{size} elements; a block has one scale"
        )


def _padding(fills: Sequence[Fill], block: tuple[int, ...]) -> Iterator[Box]:
    """Yield the blocks that are padding alone."""
    for fill in fills:
        box = Box(blocks_of(fill.box.starts, block), blocks_of(fill.box.stops, block))
        if box.volume:
            yield box


def _shown(block: Sequence[int]) -> str:
    return " x ".join(map(str, block))
