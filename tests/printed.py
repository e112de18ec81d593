"""What each example prints, among other things: in one process and in four."""

import re

PRINTS = {
    "heat": "tile of one device: (32, 16)",
    "life": "as in plain NumPy: True",
    "collective_matmul": "multiply_while_scattering: P('i'",
    "kmeans": "images on each device: (225, 64)",
    "fft3d": "pencils out: P('a', 'b'",
    "ring_attention": "on each device: (1, 64, 4, 16)",
    "pipeline": "up: (4, 32, 64), of which a device holds (1, 32, 32)",
    "regression": "rows on each device: (1000, 3)",
    "summa": "2.5D tiles of (128, 128), 393,216 bytes to each device",
    "conjugate_gradients": "strip of one device: (4, 32)",
    "block_sort": "by neighbours: 229,376 bytes moved",
    "embedding": "found: (8, 16, 32) by P('data',)",
    "experts": "16 places in a box: 100% of the tokens reach their expert",
    "nbody": "bodies on each device: (16, 2)",
    "inverse_heat": "misfit: 2135.1 in the first round",
    "per_example_gradients": "gradients: (1536, 64, 10) by P('data',)",
    "newton_cg": "step 9: loss 0.05983977",
}

SHORT = {"inverse_heat": (2,), "per_example_gradients": (4,)}
"""Arguments of programs whose ``main`` takes long, in four processes."""

TRAINING = {
    "train_mlp": (
        (2,),
        r"all-reduce   data      49,152  gradient of weights\['in'\]\n(?s:.*)"
        r"epoch  2: loss 0\.3847\ndigits read rightly that were never seen: 9\d\.\d%\n",
    ),
    "nano_transformer": (
        (2, 2),
        r"a device holds 162,728 bytes\n  batch   0: loss 4\.322\n  batch   1: loss 4\.\d{3}\n"
        r"Plan: 44 arrays(?s:.*)a device holds 711,944 bytes\n  batch   0: loss \d\.\d{3}\n"
        r"  batch   1: loss (\d\.\d{3})\nBeautiful(?s:.{101})as the Zen has it: False\n"
        r"largest change .*: 0\.\d\d\n",
    ),
}
"""Programs that train: the steps that tests take of each, and what they then print."""


def assert_trained(name: str, text: str) -> None:
    """Check what a program that trains has printed."""
    assert re.search(TRAINING[name][1], text), text
    for error in re.findall(r"one device by: (\S+)$", text, flags=re.M):
        assert float(error) < 1e-9
