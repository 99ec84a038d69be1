"""spec.model.lora with everything that an adapter in its path decides. Light: the driver and `rljob run` import it."""

from pathlib import Path

from rljob_api import ResolvedSpec
from rljob_trainer.errors import DataError
from rljob_trainer.lora.files import FIELD, read_config, read_layers
from rljob_trainer.paths import locate


def with_adapter(spec: ResolvedSpec, base_dir: Path) -> ResolvedSpec:
    """The spec with rank, alpha and modules of the adapter in lora.path, which becomes absolute.

    Raises DataError if there is no such adapter, or for one that this trainer does not compute.
    """
    lora = spec.model.lora
    if lora is None or lora.path is None:
        return spec
    folder = locate(lora.path, base_dir)
    if not folder.is_dir():
        raise DataError(f"no folder {lora.path}: correct the path, or download the adapter into a folder", field=FIELD)
    config = read_config(folder)
    known = {
        "rank": config["r"],
        "alpha": float(config["lora_alpha"]),
        "target_modules": read_layers(folder),
        "path": str(folder.resolve()),
    }
    return spec.model_copy(update={"model": spec.model.model_copy(update={"lora": lora.model_copy(update=known)})})
