"""Templates: key maps for the names that well-known models have at Hugging Face.

In: a model's name, and its numbers of heads and of tensor-parallel ranks. Out: a key map to print
and edit, from one tensor per projection to fused and stacked ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from meshard.algebra.arguments import is_text, shown
from meshard.errors import KeyMapError, did_you_mean
from meshard.weights.maps.keymap import KeyMap


def template(model: str, **config: Any) -> KeyMap:
    """Return the key map of a well-known model, to print and edit.

    It takes the names that Hugging Face's files have and fuses what serving systems fuse:
    ``q_proj``, ``k_proj`` and ``v_proj`` to ``qkv_proj``, ``gate_proj`` and ``up_proj`` to
    ``gate_up_proj``, all experts of a layer to one tensor. With ``ranks=n``, equal parts of the
    fused rows are what each of ``n`` tensor-parallel ranks has. Its inverse leads back.

    Args:
        model: "llama" (Llama, Mistral, Qwen and others with its names), "mixtral", "deepseek-v3" or
            "bert".
        config: ``ranks``, the number of tensor-parallel ranks; for llama and mixtral ``heads`` and
            ``kv_heads``, and ``rope``, the order of rows that rotary embeddings are to find:
            "half", as in the files, or "interleaved"; for deepseek-v3 ``scales``, whether there are
            scales of blocks of 128 x 128, and without them ``rope`` ("interleaved" in the files)
            and ``heads``; for bert ``prefix``, such as "bert.".

    Raises:
        KeyMapError: if the model is not known, or takes other parameters.

    >>> from meshard.checkpoint import template
    >>> [rule.key for rule in template("llama", heads=32, kv_heads=8, ranks=16).rules][:4]
    ['repeat', 'repeat', 'fuse', 'keep']
    >>> print(template("bert", prefix="bert.").to_toml()[:60])
    rest = "keep"
    <BLANKLINE>
    [[rule]]
    fuse = ["bert.encoder.layer.{i}.atte
    """
    make = TEMPLATES.get(model) if is_text(model, *TEMPLATES) else None
    if make is None:
        raise KeyMapError(
            f"template: the models are {', '.join(TEMPLATES)}; found {shown(model)}."
            f"{did_you_mean(model, TEMPLATES)} Other models often have llama's names."
        )
    known = inspect.signature(make).parameters
    unknown = [k for k in config if k not in known]
    lacking = [k for k, p in known.items() if k not in config and p.default is p.empty]
    if unknown or lacking:
        what = f"{unknown[0]!r} is not one" if unknown else f"{lacking[0]!r} is missing"
        meant = did_you_mean(unknown[0], known) if unknown else ""
        raise KeyMapError(f"template: {model} takes {', '.join(known)}; {what}.{meant}")
    for name, given in config.items():
        _check(name, given)
    return make(**config)


def _check(name: str, given: object) -> None:
    """Refuse a parameter that is of another kind than its name says."""
    if name in ("heads", "kv_heads", "ranks"):
        count = isinstance(given, int) and not isinstance(given, bool) and given > 0
        fits, allowed = count or (name == "kv_heads" and given is None), "a positive integer"
    elif name == "rope":
        fits, allowed = is_text(given, "half", "interleaved"), "'half' or 'interleaved'"
    elif name == "scales":
        fits, allowed = isinstance(given, bool), "True or False"
    else:
        fits, allowed = isinstance(given, str), "a text"
    if not fits:
        raise KeyMapError(f"template: {name} is {allowed}; found {shown(given)}.")


def _llama(
    *, heads: int, kv_heads: int | None = None, ranks: int = 1, rope: str = "half"
) -> KeyMap:
    layer = "model.layers.{i}."
    map = _attention(KeyMap(), layer + "self_attn.", (heads, kv_heads or heads), ranks, rope)
    map = map.fuse(
        [layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"],
        layer + "mlp.gate_up_proj.weight",
        ranks=ranks,
    )
    return _kept(map.keep(layer + "mlp.down_proj.weight"))


def _mixtral(
    *, heads: int, kv_heads: int | None = None, ranks: int = 1, rope: str = "half"
) -> KeyMap:
    layer = "model.layers.{i}."
    moe = layer + "block_sparse_moe."
    map = _attention(KeyMap(), layer + "self_attn.", (heads, kv_heads or heads), ranks, rope)
    expert = moe + "experts.{e}."
    map = (
        map.fuse([expert + "w1.weight", expert + "w3.weight"], expert + "w13.weight", ranks=ranks)
        .stack(expert + "w13.weight", moe + "experts.w13_weight")
        .stack(expert + "w2.weight", moe + "experts.w2_weight")
        .keep(moe + "gate.weight")
    )
    return _kept(map)


def _attention(
    map: KeyMap, attention: str, heads: tuple[int, int], ranks: int, rope: str
) -> KeyMap:
    """Return a map that fuses the projections to queries, keys and values.

    Rotary embeddings turn pairs of rows of each head. The order of rows is that of whole heads of
    the whole tensor, so that it is changed before anything is fused or cut.
    """
    query, key, value = (f"{attention}{w}_proj" for w in "qkv")
    if rope != "half":
        map = map.rope(query + ".weight", heads[0], rope).rope(key + ".weight", heads[1], rope)
    if ranks > heads[1]:
        if ranks % heads[1]:
            raise KeyMapError(
                f"template: {heads[1]} key and value heads cannot be copied evenly to {ranks} "
                "ranks."
            )
        for each in (key, value):
            map = map.repeat(each + ".weight", ranks // heads[1], groups=heads[1])
    elif heads[0] % ranks or heads[1] % ranks:
        raise KeyMapError(
            f"template: {heads[0]} heads and {heads[1]} key and value heads do not divide into "
            f"{ranks} ranks; a head cannot be cut."
        )
    weights = [query + ".weight", key + ".weight", value + ".weight"]
    map = map.fuse(weights, attention + "qkv_proj.weight", ranks=ranks)
    return map.keep(attention + "o_proj.weight")


def _kept(map: KeyMap) -> KeyMap:
    """Return a map that keeps what all of these models have besides."""
    return (
        map.keep("model.embed_tokens.weight")
        .keep("model.layers.{i}.{name}_layernorm.weight")
        .keep("model.norm.weight")
        .keep("lm_head.weight", optional=True)
        .drop("model.layers.{i}.self_attn.rotary_emb.inv_freq", optional=True)
    )


def _deepseek(
    *, ranks: int = 1, scales: bool = True, rope: str = "interleaved", heads: int = 128
) -> KeyMap:
    """Return the map of DeepSeek-V3 and R1.

    The rotary rows of its files are interleaved: the last 64 of the 192 of each head of
    ``q_b_proj``, and the last 64 of the 576 of ``kv_a_proj_with_mqa``. Where there are scales they
    stay so, because blocks hold rows of both kinds.
    """
    layer = "model.layers.{i}."
    mlp, attention = layer + "mlp.", layer + "self_attn."
    map = KeyMap(rest="keep")
    if scales:
        map = map.scales("{w*}.weight", "{w*}.weight_scale_inv", (128, 128))
    if rope != "interleaved":
        map = map.rope(attention + "q_b_proj.weight", heads, rope, rows=(128, 192))
        map = map.rope(attention + "kv_a_proj_with_mqa.weight", 1, rope, rows=(512, 576))
    map = map.fuse(
        [attention + "q_a_proj.weight", attention + "kv_a_proj_with_mqa.weight"],
        attention + "fused_qkv_a_proj.weight",
    )
    expert = mlp + "experts.{e}."
    for at in (mlp, mlp + "shared_experts.", expert):
        map = map.fuse(
            [at + "gate_proj.weight", at + "up_proj.weight"],
            at + "gate_up_proj.weight",
            ranks=ranks,
        )
    return map.stack(expert + "gate_up_proj.weight", mlp + "experts.w13_weight").stack(
        expert + "down_proj.weight", mlp + "experts.w2_weight"
    )


def _bert(*, ranks: int = 1, prefix: str = "") -> KeyMap:
    attention = prefix + "encoder.layer.{i}.attention.self."
    map = KeyMap(rest="keep")
    for kind in ("weight", "bias"):
        names = [f"{attention}{w}.{kind}" for w in ("query", "key", "value")]
        map = map.fuse(names, f"{attention}qkv.{kind}", ranks=ranks)
    return map


TEMPLATES: Mapping[str, Callable[..., KeyMap]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "deepseek-v3": _deepseek,
    "bert": _bert,
}
