"""Weight sync as it is needed: whole models from a trainer's layout to an inference layout."""

import json
import math
import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard.resharding import Plan, plan_reshard, reshard, topology
from meshard.sharding import Mesh, NamedSharding, P
from tests.worlds import everywhere, whole

SYNC = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "weight_sync.py"))


def test_a_trillion_parameters_from_256_devices_to_128() -> None:
    assert 1.0e12 < sum(math.prod(s) for s in SYNC["shapes"]().values()) < 1.1e12
    plan = SYNC["plan"]()
    assert plan.bytes_moved == plan.lower_bound_bytes
    assert len(plan.leaves) == 2 + 60 * 6
    assert len(plan.choices) <= 8  # all layers share a few
    sent = plan.sent_tally
    assert set(sent.units.tolist()) >= set(range(256))
    trainers = sent.amounts[:256]
    assert trainers.max() <= 1.01 * trainers.mean()  # balanced over all that hold a part
    found = plan.simulate(topology("8-gpu hosts"))
    assert found.bytes == plan.bytes_moved
    assert 0 < found.seconds < 10


def test_its_json_is_read_again_and_says_the_same() -> None:
    plan = SYNC["plan"](2)
    again = Plan.from_json(plan.to_json())
    assert str(again) == str(plan)
    assert again.bytes_moved == plan.bytes_moved
    listed = json.loads(SYNC["plan"](0).to_json(transfers=True))
    assert listed


@pytest.mark.parametrize("donate", [False, True])
def test_a_real_model_goes_from_fsdp_to_tensor_parallel(donate: bool) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    model = pytest.importorskip("meshard.cli.model")
    if find_spec(model.PACKAGE) is None:
        pytest.skip(f"the package {model.PACKAGE} is not installed")
    weights_file, _ = model.model_files(None)
    read = safetensors.load_file(weights_file)
    tensors = {k: v for k, v in read.items() if v.dtype == np.float32}

    def body():
        devices = meshard.devices()
        line = Mesh(devices, "data")
        grid = Mesh(np.array(devices[2:8]).reshape(3, 2), ("replica", "tensor"))
        source = {
            k: NamedSharding(line, P("data") if v.shape[0] % 8 == 0 else P())
            for k, v in tensors.items()
        }
        target = {
            k: NamedSharding(grid, P("tensor") if v.ndim and v.shape[0] % 2 == 0 else P())
            for k, v in tensors.items()
        }
        weights = meshard.device_put(tensors, source)
        plan = plan_reshard(weights, target)
        assert plan.bytes_moved == plan.lower_bound_bytes
        moved = reshard(weights, target, donate=donate)
        assert all(x.is_deleted() == donate for x in weights.values())
        return {k: whole(v) for k, v in moved.items()}

    found = everywhere(body)
    for name, value in tensors.items():
        assert found[name].tobytes() == value.tobytes()
