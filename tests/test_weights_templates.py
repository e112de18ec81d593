"""Templates: what they make of a small model's names, rank by rank, and that they lead back."""

import doctest

import numpy as np
import pytest

from meshard.errors import KeyMapError
from meshard.weights.makers import templates
from meshard.weights.makers.templates import template
from meshard.weights.maps.keymap import KeyMap, Sources
from tests.recipes import Array, made

Tensors = dict[str, Array]
HEADS, KV_HEADS, SIZE, WIDTH, INNER, EXPERTS = 4, 2, 6, 10, 8, 3


def numbered(*shapes: tuple[str, tuple[int, ...]]) -> Tensors:
    """Return tensors whose elements are all different."""
    tensors, at = {}, 0
    for name, shape in shapes:
        count = int(np.prod(shape))
        tensors[name] = np.arange(at, at + count, dtype="i4").reshape(shape)
        at += count
    return tensors


def attention(layer: str) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{layer}.self_attn.q_proj.weight", (HEADS * SIZE, WIDTH)),
        (f"{layer}.self_attn.k_proj.weight", (KV_HEADS * SIZE, WIDTH)),
        (f"{layer}.self_attn.v_proj.weight", (KV_HEADS * SIZE, WIDTH)),
        (f"{layer}.self_attn.o_proj.weight", (WIDTH, HEADS * SIZE)),
        (f"{layer}.input_layernorm.weight", (WIDTH,)),
        (f"{layer}.post_attention_layernorm.weight", (WIDTH,)),
    ]


def decoder(*layers: tuple[str, tuple[int, ...]]) -> Tensors:
    outer = [("model.embed_tokens.weight", (20, WIDTH)), ("model.norm.weight", (WIDTH,))]
    return numbered(*outer, *layers, ("lm_head.weight", (20, WIDTH)))


def llama() -> Tensors:
    layers = []
    for i in range(2):
        layer = f"model.layers.{i}"
        layers += attention(layer)
        layers += [(f"{layer}.mlp.{n}_proj.weight", (INNER, WIDTH)) for n in ("gate", "up")]
        layers += [(f"{layer}.mlp.down_proj.weight", (WIDTH, INNER))]
    return decoder(*layers)


def mixtral() -> Tensors:
    layers = attention("model.layers.0")
    moe = "model.layers.0.block_sparse_moe."
    layers += [(moe + "gate.weight", (EXPERTS, WIDTH))]
    for e in range(EXPERTS):
        layers += [(f"{moe}experts.{e}.{w}.weight", (INNER, WIDTH)) for w in ("w1", "w3")]
        layers += [(f"{moe}experts.{e}.w2.weight", (WIDTH, INNER))]
    return decoder(*layers)


def bert() -> Tensors:
    layers = []
    for w in ("query", "key", "value"):
        name = f"encoder.layer.0.attention.self.{w}"
        layers += [(f"{name}.weight", (WIDTH, WIDTH)), (f"{name}.bias", (WIDTH,))]
    return numbered(("embeddings.word_embeddings.weight", (30, WIDTH)), *layers)


def sources_of(tensors: Tensors) -> Sources:
    return {n: (x.shape, x.dtype) for n, x in tensors.items()}


def applied(map: KeyMap, tensors: Tensors) -> Tensors:
    recipes = map.apply(sources_of(tensors)).recipes
    return {name: made(recipe, tensors) for name, recipe in recipes.items()}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("rope", ["half", "interleaved"])
@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_each_rank_of_a_decoder_has_whole_heads(model: str, rope: str, ranks: int) -> None:
    tensors = {"llama": llama, "mixtral": mixtral}[model]()
    map = template(model, heads=HEADS, kv_heads=KV_HEADS, ranks=ranks, rope=rope)
    fused = applied(map, tensors)["model.layers.0.self_attn.qkv_proj.weight"]
    order = [0, 1, 2, 3, 4, 5] if rope == "half" else [0, 3, 1, 4, 2, 5]
    q, k, v = (
        tensors[f"model.layers.0.self_attn.{w}_proj.weight"].reshape(-1, SIZE, WIDTH) for w in "qkv"
    )
    q, k = q[:, order], k[:, order]
    for rank, own in enumerate(np.split(fused, ranks)):
        queries = range(rank * HEADS // ranks, (rank + 1) * HEADS // ranks)
        values = range(rank * KV_HEADS // ranks, max((rank + 1) * KV_HEADS // ranks, 1))
        values = [rank * KV_HEADS // ranks] if ranks > KV_HEADS else list(values)
        expected = [*[q[h] for h in queries], *[k[h] for h in values], *[v[h] for h in values]]
        np.testing.assert_array_equal(own, np.concatenate(expected))


def test_experts_are_stacked_with_gate_and_up_of_each_rank_together() -> None:
    tensors = mixtral()
    fused = applied(template("mixtral", heads=HEADS, kv_heads=KV_HEADS, ranks=2), tensors)
    moe = "model.layers.0.block_sparse_moe.experts."
    assert fused[moe + "w13_weight"].shape == (EXPERTS, 2 * INNER, WIDTH)
    half = INNER // 2
    for e in range(EXPERTS):
        w1, w3 = (tensors[f"{moe}{e}.{w}.weight"] for w in ("w1", "w3"))
        expected = np.concatenate([w1[:half], w3[:half], w1[half:], w3[half:]])
        np.testing.assert_array_equal(fused[moe + "w13_weight"][e], expected)
        np.testing.assert_array_equal(fused[moe + "w2_weight"][e], tensors[f"{moe}{e}.w2.weight"])


@pytest.mark.parametrize("model", ["llama", "mixtral", "bert"])
def test_a_template_leads_there_and_back_and_to_toml(model: str) -> None:
    tensors = {"llama": llama, "mixtral": mixtral, "bert": bert}[model]()
    heads = {"heads": HEADS, "kv_heads": KV_HEADS, "rope": "interleaved"}
    config = {} if model == "bert" else heads
    map = template(model, ranks=2, **config)
    assert KeyMap.from_toml(map.to_toml()) == map
    back = applied(map.inverse(sources_of(tensors)), applied(map, tensors))
    assert back.keys() == tensors.keys()
    for name, x in tensors.items():
        np.testing.assert_array_equal(back[name], x)


def test_deepseeks_scales_follow_what_is_fused_and_stacked() -> None:
    f8 = "float8_e4m3fn"
    sources: dict[str, tuple[tuple[int, ...], str]] = {}

    def add(name: str, rows: int, columns: int) -> None:
        sources[f"{name}.weight"] = ((rows, columns), f8)
        blocks = (-(-rows // 128), -(-columns // 128))
        sources[f"{name}.weight_scale_inv"] = (blocks, "f4")

    for i in range(2):
        layer = f"model.layers.{i}."
        add(layer + "self_attn.q_a_proj", 256, 512)
        add(layer + "self_attn.kv_a_proj_with_mqa", 192, 512)
        sources[layer + "input_layernorm.weight"] = ((512,), "bfloat16")
        mlps = (
            [layer + "mlp."]
            if i == 0
            else [
                layer + "mlp.shared_experts.",
                *[f"{layer}mlp.experts.{e}." for e in range(4)],
            ]
        )
        for mlp in mlps:
            add(mlp + "gate_proj", 512, 512)
            add(mlp + "up_proj", 512, 512)
            add(mlp + "down_proj", 512, 512)
    map = template("deepseek-v3", ranks=4)
    mapped = map.apply(sources)
    experts = "model.layers.1.mlp.experts.w13_weight"
    assert mapped.recipes[experts].shape == (4, 1024, 512)
    assert mapped.scales[experts] == (experts + "_scale_inv", (1, 128, 128))
    assert mapped.recipes[experts + "_scale_inv"].shape == (4, 8, 4)
    fused = "model.layers.0.self_attn.fused_qkv_a_proj.weight"
    assert mapped.recipes[fused + "_scale_inv"].shape == (4, 4)
    assert map.inverse(sources).rules
    with pytest.raises(KeyMapError, match="its blocks of 128 x 128 elements would be taken apart"):
        template("deepseek-v3", ranks=8).apply(sources)
    bare = {n: s for n, s in sources.items() if not n.endswith("_scale_inv")}
    assert template("deepseek-v3", ranks=8, scales=False).apply(bare).scales == {}


def test_deepseeks_rotary_rows_are_the_last_ones_of_each_head() -> None:
    at = "model.layers.0.self_attn."
    expert = "model.layers.0.mlp.experts.0."
    mlps = ["model.layers.0.mlp.", "model.layers.0.mlp.shared_experts.", expert]
    names = [f"{mlp}{w}_proj.weight" for mlp in mlps for w in ("gate", "up", "down")]
    tensors = numbered(
        (at + "q_b_proj.weight", (2 * 192, 2)),
        (at + "q_a_proj.weight", (3, 2)),
        (at + "kv_a_proj_with_mqa.weight", (576, 2)),
        *[(name, (2, 2)) for name in names],
    )
    map = template("deepseek-v3", scales=False, rope="half", heads=2)
    q = tensors[at + "q_b_proj.weight"].reshape(2, 192, 2)
    expected = np.concatenate([q[:, :128], q[:, 128::2], q[:, 129::2]], 1).reshape(384, 2)
    found = applied(map, tensors)
    np.testing.assert_array_equal(found[at + "q_b_proj.weight"], expected)
    kv = tensors[at + "kv_a_proj_with_mqa.weight"]
    expected = np.concatenate([kv[:512], kv[512::2], kv[513::2]])
    np.testing.assert_array_equal(found[at + "fused_qkv_a_proj.weight"][3:], expected)
    with pytest.raises(KeyMapError, match="rows 128 to 192 are not within a head of 3 rows"):
        template("deepseek-v3", scales=False, rope="half").apply(sources_of(tensors))


def test_models_and_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KeyMapError, match=r"the models are llama, .*; found 'gpt'"):
        template("gpt")
    with pytest.raises(KeyMapError, match=r"llama takes heads, .*; 'heads' is missing"):
        template("llama")
    with pytest.raises(KeyMapError, match="'layers' is not one"):
        template("bert", layers=3)
    with pytest.raises(KeyMapError, match="heads is a positive integer; found '8'"):
        template("llama", heads="8")
    with pytest.raises(KeyMapError, match=r"the models are llama, .*; found \['llama'\]"):
        template(["llama"])  # type: ignore[arg-type]
    with pytest.raises(KeyMapError, match="rope is 'half' or 'interleaved'; found 1"):
        template("llama", heads=8, rope=1)
    with pytest.raises(KeyMapError, match="scales is True or False; found 'no'"):
        template("deepseek-v3", scales="no")
    with pytest.raises(KeyMapError, match="prefix is a text; found None"):
        template("bert", prefix=None)
    with pytest.raises(KeyMapError, match="do not divide into 3 ranks; a head cannot be cut"):
        template("llama", heads=32, kv_heads=8, ranks=3)
    with pytest.raises(KeyMapError, match="cannot be copied evenly to 12 ranks"):
        template("llama", heads=32, kv_heads=8, ranks=12)
    with pytest.raises(KeyMapError, match=r"no rule matches 1 of the tensors: 'model\.extra'"):
        template("llama", heads=HEADS, kv_heads=KV_HEADS).apply(
            sources_of(llama() | numbered(("model.extra", (2,))))
        )


def test_examples_in_docstrings_are_right() -> None:
    assert doctest.testmod(templates).failed == 0
