"""Arrays in files: checkpoints that load into any layout, and other formats.

>>> import meshard, meshard.numpy as mnp, tempfile
>>> from meshard import NamedSharding, P, checkpoint
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> w = mnp.ones((8, 4), device=NamedSharding(mesh, P("x")))
>>> with tempfile.TemporaryDirectory() as folder:
...     handle = checkpoint.save(folder + "/model", {"w": w, "epoch": 3})
...     tree = checkpoint.load(folder + "/model", NamedSharding(mesh, P(None, "y")))
>>> tree["w"].sharding.spec, tree["epoch"]
(P(None, 'y'), 3)
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.errors import (
    CheckpointError as CheckpointError,
    CorruptFileError as CorruptFileError,
    FileInUseError as FileInUseError,
    KeyMapError as KeyMapError,
    MissingFileError as MissingFileError,
    StorageError as StorageError,
)
from meshard.weights.catalogue.verify import Damage as Damage
from meshard.weights.checkpoint.save import clean as clean
from meshard.weights.checkpoint.convert import (
    Conversion as Conversion,
    convert as convert,
)
from meshard.weights.checkpoint.load import (
    load as load,
    load_iter as load_iter,
    plan_load as plan_load,
)
from meshard.weights.checkpoint.plans import LoadPlan as LoadPlan
from meshard.weights.checkpoint.opening import (
    Metadata as Metadata,
    metadata as metadata,
)
from meshard.weights.checkpoint.opening import RankFiles as RankFiles
from meshard.weights.checkpoint.save import (
    SaveHandle as SaveHandle,
    save as save,
)
from meshard.weights.native.files import (
    latest as latest,
    steps as steps,
)
from meshard.weights.checkpoint.plans import (
    SavePlan as SavePlan,
    plan_save as plan_save,
)
from meshard.weights.checkpoint.opening import verify as verify
from meshard.weights.makers.record import record as record
from meshard.weights.makers.templates import template as template
from meshard.weights.maps.keymap import (
    KeyMap as KeyMap,
    Mapped as Mapped,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__, called="meshard.transforms.remat.remat:remat")
