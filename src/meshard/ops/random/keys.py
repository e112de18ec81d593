"""Random keys: 64 bits each, as typed keys or as plain pairs of uint32.

In: a seed, or other keys. Out: keys, and the streams of random words that belong to them.

**The generator** is Philox4x64-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3" (SC 2011), in NumPy's implementation; it passes TestU01's BigCrush. It is a keyed
bijection of a 256-bit counter, so that any element of any stream is computed without those before
it. Its 128-bit key is the user's 64 bits and a *domain*, a number for what is drawn (`DOMAINS`):
`split`, `fold_in` and every distribution have streams of their own, and using one key for two of
them gives independent numbers. (Using it twice for the same distribution gives the same numbers,
as in JAX.) The counter's high words say which part of an array is drawn (`tiles`); the streams of
two parts cannot meet, since their counters differ.

`split` takes the children's keys from the stream of its domain, `fold_in` puts the number folded in
into the counter. Two keys so derived are alike with probability 2^-64.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import described, shape_of, shown
from meshard.errors import ArgumentError, DtypeError, NotAddressableError, ShapeError
from meshard.ops.engine.later import is_traced
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.array.fetch import gathered
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import KEY, ArrayLike, Block, ShapeLike, dtype_name
from meshard.runtime.world import here

DOMAINS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        (
            *("split", "fold_in", "bits", "uniform", "normal", "exponential", "randint", "gamma"),
            *("bernoulli", "permutation", "choice", "categorical", "truncated_normal", "gumbel"),
            *("laplace", "logistic", "cauchy", "pareto", "rayleigh", "weibull_min", "triangular"),
            *("geometric", "lognormal", "wald", "maxwell", "double_sided_maxwell", "rademacher"),
            *("poisson", "binomial", "multinomial", "ball", "generalized_normal", "beta"),
            *("dirichlet", "chisquare", "f", "t", "multivariate_normal", "orthogonal"),
        )
    )
}
"""The second word of the generator's key. New names go to the end, so that numbers stay."""

_IMPLS = ("philox", "philox4x64")
_WORD = 1 << 64


_THREAD = threading.local()
"""Has a generator for each thread, which every stream sets to its place.

To make one takes longer than to draw a small array.
"""


@final
class Stream:
    """The random words of one key and one domain, in parts that are drawn in any order."""

    __slots__ = ("_counter", "_state")

    def __init__(self, value: int, domain: int) -> None:
        self._counter = np.zeros(4, np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": np.array((value, domain), np.uint64)},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def words(self, count: int, tile: int = 0, part: int = 0) -> Block:
        """Return the first uint64 words of one part of one tile."""
        return self._philox(tile, part).random_raw(count)

    def generator(self, tile: int = 0, part: int = 0) -> np.random.Generator:
        """Return a NumPy generator at the start of one part of one tile, to be used at once."""
        return np.random.Generator(self._philox(tile, part))

    def _philox(self, tile: int, part: int) -> np.random.Philox:
        self._counter[2], self._counter[3] = part, tile
        found: np.random.Philox | None = getattr(_THREAD, "philox", None)
        if found is None:  # NumPy is asked for it here only: numpy.random is slow to load
            found = _THREAD.philox = np.random.Philox(0)
        found.state = self._state
        return found


def key_value(block: Block) -> int:
    """Return the 64 bits of one key, typed or plain."""
    high, low = struct.unpack("=II", block.tobytes())
    return int(high) << 32 | int(low)


def _words(values: Any) -> Block:
    """Return 64-bit values as pairs of uint32, the high word first, in a new last dim."""
    pairs = np.empty((*values.shape, 2), np.uint32)
    pairs[..., 0] = values >> np.uint64(32)
    pairs[..., 1] = values & np.uint64(0xFFFFFFFF)
    return pairs


def _as_keys(values: Block, typed: bool) -> Block:
    pairs = _words(values)
    return pairs.view(KEY).reshape(values.shape) if typed else pairs


# making keys


def _check_impl(impl: Any, dtype: Any, what: str) -> None:
    if dtype is not None and impl is not None:
        raise ArgumentError(f"{what}: impl= and dtype= say the same; give one of them.")
    if dtype is not None and not (isinstance(dtype, np.dtype) and dtype == KEY):
        raise ArgumentError(f"{what}: dtype must be {KEY!r}, that of keys, got {described(dtype)}.")
    if impl is not None and not (isinstance(impl, str) and impl in _IMPLS):
        raise ArgumentError(
            f"{what}: unrecognized PRNG implementation {shown(impl)}. There is one generator, "
            f"{_IMPLS[0]!r}; leave out impl=."
        )


def _seeded(seed: Any, what: str) -> Any:
    """Return the seed's plain key: a block of (2,), or a traced value of it."""
    if isinstance(seed, Traced):
        _check_seed(seed.shape, seed.dtype, what)
        return bind("random_seed", seed)
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(1 << 63) <= seed < _WORD:
            raise ArgumentError(f"{what}: the seed {seed} has more than 64 bits.")
        return _words(np.uint64(seed % _WORD))
    value = as_host(seed, what)
    _check_seed(value.shape, value.dtype, what)
    return _words(value.astype(np.int64 if value.dtype.kind == "i" else np.uint64).view(np.uint64))


def _check_seed(shape: tuple[int, ...], dtype: Dtype, what: str) -> None:
    if dtype.kind not in "iub":
        raise DtypeError(f"{what}: a seed must be an integer; this one is {dtype_name(dtype)}.")
    if shape:
        raise ShapeError(
            f"{what} accepts a scalar seed, but was given an array of shape {shape}. For many keys "
            "write split(key, num)."
        )


def PRNGKey(seed: ArrayLike, *, impl: Any = None) -> Array:
    """Make a plain key: an ordinary uint32 array of shape (2,), the seed's high word first.

    Args:
        seed: an integer of at most 64 bits.
        impl: None or ``"philox"``, the one generator there is.

    Raises:
        DtypeError: if the seed is not an integer.
        ArgumentError: if it is too long, or ``impl`` is unknown.

    >>> from meshard.random import PRNGKey
    >>> PRNGKey(7)
    Array([0, 7], dtype=uint32)
    """
    _check_impl(impl, None, "PRNGKey")
    found: Array = as_array(_seeded(seed, "PRNGKey"))
    return found


def key(seed: ArrayLike, *, impl: Any = None, dtype: Any = None) -> Array:
    """Make a typed key, an array without dims whose dtype says that it is a key.

    Args:
        seed: an integer of at most 64 bits.
        impl: None or ``"philox"``, the one generator there is.
        dtype: None or the dtype of keys.

    Raises:
        DtypeError: if the seed is not an integer.
        ArgumentError: if it is too long, or ``impl`` or ``dtype`` is unknown.

    >>> from meshard.random import key
    >>> k = key(7)
    >>> k.shape, k.aval
    ((), key<philox>[])
    """
    _check_impl(impl, dtype, "key")
    return wrap_key_data(_seeded(seed, "key"))


def key_dtype(impl: Any = None) -> Dtype:
    """Return the dtype of typed keys.

    Args:
        impl: None or ``"philox"``, the one generator there is.

    Raises:
        ArgumentError: if ``impl`` is unknown.

    >>> from meshard.random import key, key_dtype
    >>> key(0).dtype == key_dtype()
    True
    """
    _check_impl(impl, None, "key_dtype")
    return KEY


def wrap_key_data(key_bits_array: ArrayLike, *, impl: Any = None, dtype: Any = None) -> Array:
    """Make typed keys of pairs of uint32.

    Args:
        key_bits_array: the pairs, which are the last dim.
        impl: None or ``"philox"``, the one generator there is.
        dtype: None or the dtype of keys.

    Raises:
        DtypeError: if the words are not uint32.
        ShapeError: if the last dim does not have two.

    >>> import numpy as np
    >>> from meshard.random import wrap_key_data
    >>> wrap_key_data(np.zeros((5, 2), np.uint32)).shape
    (5,)
    """
    _check_impl(impl, dtype, "wrap_key_data")
    x = as_array(key_bits_array)
    _check_plain(x, "wrap_key_data")
    return _made("random_wrap", x)


def key_data(keys: ArrayLike) -> Array:
    """Return the pairs of uint32 that keys are made of, in a new last dim.

    Args:
        keys: any keys; plain ones are returned as they are.

    Raises:
        DtypeError: if ``keys`` are not keys.

    >>> from meshard.random import key, key_data
    >>> key_data(key(7)).tolist()
    [0, 7]
    """
    x = _keys(keys, "key_data")
    return _made("random_unwrap", x) if x.dtype == KEY else x


def key_impl(keys: ArrayLike) -> str:
    """Return the name of the keys' generator.

    Args:
        keys: any keys, typed or plain.

    Raises:
        DtypeError: if ``keys`` are not keys.

    >>> from meshard.random import key, key_impl
    >>> key_impl(key(0))
    'philox4x64'
    """
    _keys(keys, "key_impl")
    return _IMPLS[1]


def clone(key: ArrayLike) -> Array:
    """Return the same keys, as a sign that using them again is meant.

    Args:
        key: any keys, typed or plain.

    Raises:
        DtypeError: if they are not keys.

    >>> from meshard.random import clone, key, key_data
    >>> key_data(clone(key(7))).tolist()
    [0, 7]
    """
    x: Any = _keys(key, "clone")
    found: Array = x if is_traced(x) else x.copy()
    return found


def _made(name: str, *operands: Any, **params: Any) -> Array:
    """Return what an operation of keys makes."""
    found: Array = bind(name, *operands, **params)
    return found


def _check_plain(x: Any, what: str) -> None:
    if x.dtype != np.uint32:
        raise DtypeError(
            f"{what}: expected key data of dtype uint32, got {dtype_name(x.dtype)}. Make a key "
            "with random.key(seed)."
        )
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError(
            f"{what}: expected key data whose shape ends with 2, got shape {x.shape}; a key has "
            "two words."
        )


def _keys(given: Any, what: str) -> Array:
    """Return keys as an array, typed or plain."""
    if not hasattr(given, "dtype"):
        raise DtypeError(
            f"{what}: expected a random key, got {described(given)}. Make one "
            "with random.key(seed)."
        )
    x: Array = as_array(given)
    if x.dtype != KEY:
        _check_plain(x, what)
    return x


def single_key(given: Any, what: str) -> Array:
    """Return one key as an array, typed or plain.

    Raises:
        DtypeError: if it is not a key.
        ShapeError: if there are several.
    """
    x: Array = given if type(given) is Array and given.dtype == KEY else _keys(given, what)
    if x.ndim != (x.dtype != KEY):
        raise ShapeError(
            f"{what} accepts a single key, but was given a key array of shape {x.shape}. Index it, "
            "as in keys[0]."
        )
    return x


def key_words(key: Array, what: str) -> int:
    """Return the 64 bits of one key that exists.

    Raises:
        NotAddressableError: if this process does not hold it.
    """
    kind, blocks = key._type, key._live()
    if not kind.complete:
        raise NotAddressableError(
            f"{what}: every process needs the key, and process {here().process_index} holds "
            f"{len(kind.local)} of its {kind.layout.piece_count} pieces. Replicate it with "
            "meshard.device_put(key, NamedSharding(mesh, P())), or make the same key everywhere."
        )
    block = blocks[0] if len(blocks) == 1 else gathered(here(), kind, blocks)
    assert block is not None
    return key_value(block)


# new keys from keys


def key_term(operand: Operand) -> str:
    """Return the dims of one key in a sharding rule."""
    return "" if operand[1] == KEY else "!words"


def _split_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    term = key_term(operands[0])
    sizes = {f"d{i}": n for i, n in enumerate(params["shape"])}
    return f"{term} -> {' '.join(sizes)} {term.lstrip('!')}", sizes


def _split(key: Block, *, shape: tuple[int, ...]) -> Block:
    children = Stream(key_value(key), DOMAINS["split"]).words(math.prod(shape))
    return _as_keys(children.reshape(shape), key.dtype == KEY)


def _fold_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    term = key_term(operands[0])
    return f"{term}, -> {term.lstrip('!')}"


def _fold(key: Block, data: Any) -> Block:
    child = Stream(key_value(key), DOMAINS["fold_in"]).words(1, int(data) % _WORD)
    return _as_keys(child.reshape(()), key.dtype == KEY)


def _wrap(words: Block) -> Block:
    return np.ascontiguousarray(words).view(KEY).reshape(words.shape[:-1])


def _row(name: str, rule: Any, kernel: Any, dtype: Dtype | None, style: Any = "plain") -> None:
    """Add a row; its result has a dtype of its own, or that of the key that it is made of."""

    def law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
        found: Any = operands[0][1] if dtype is None else dtype
        return (found,)

    register(Op(name, rule, kernel, dtypes=law, style=style))


_UINT32, _TWO = np.dtype(np.uint32), {"words": 2}
_row("random_split", _split_rule, _split, None)
_row("random_fold_in", _fold_rule, _fold, None)
_row(
    "random_seed",
    lambda *_: ("-> words", _TWO),
    lambda x: _words(np.uint64(int(x) % _WORD)),
    _UINT32,
)
_row("random_wrap", "... !words -> ...", _wrap, KEY)
_row("random_unwrap", lambda *_: ("... -> ... words", _TWO), lambda x: x["prng"], _UINT32, "view")


def split(key: ArrayLike, num: ShapeLike = 2) -> Array:
    """Make new keys from one; child ``i`` depends on the key and ``i`` alone.

    Args:
        key: one key, typed or plain.
        num: how many, or a shape of keys.

    Returns:
        An array of keys of that shape; plain keys have a last dim of two words besides.

    Raises:
        DtypeError: if ``key`` is not a key.
        ShapeError: if there are several, or ``num`` is not a shape.

    >>> from meshard.random import PRNGKey, key, split
    >>> a, b = split(key(0))
    >>> a.shape, split(PRNGKey(0), 3).shape
    ((), (3, 2))
    """
    x = single_key(key, "split")
    return _made("random_split", x, shape=shape_of(num, "split"))


def fold_in(key: ArrayLike, data: ArrayLike) -> Array:
    """Make a new key from one and a number, such as a step or a device's position.

    Args:
        key: one key, typed or plain.
        data: an integer of at most 64 bits, or an array of one without dims; inside ``shard_map``
            for example ``lax.axis_index("i")``.

    Raises:
        DtypeError: if ``key`` is not a key, or ``data`` is not an integer.
        ShapeError: if one of them is several.

    >>> from meshard.random import fold_in, key
    >>> fold_in(key(0), 3).shape
    ()
    """
    x = single_key(key, "fold_in")
    if isinstance(data, int):
        if not -(1 << 63) <= data < _WORD:
            raise ArgumentError(f"fold_in: data={data} has more than 64 bits.")
        number = as_array(np.asarray(data, np.int64 if data < 1 << 63 else np.uint64))
    else:
        number = as_array(data)
    if number.dtype.kind not in "iub":
        raise DtypeError(
            f"fold_in: data must be an integer; its dtype is {dtype_name(number.dtype)}."
        )
    if number.shape:
        raise ShapeError(
            f"fold_in accepts a scalar, but was given an array of shape {number.shape}. For many "
            "keys write split(key, num)."
        )
    return _made("random_fold_in", x, number)
