"""A Ray cluster of this machine alone, which ends with this process."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rljob_trainer.errors import InfrastructureError

OBJECT_STORE_BYTES = 512 << 20
"""Groups of responses pass through it: a few MB a step for small models. Ray spills what does not fit."""


@contextmanager
def local_ray(gpus: int) -> Iterator[str]:
    """Start Ray and yield its address; at the end nothing is left, neither processes nor files."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    folder = tempfile.mkdtemp(prefix="rljob-ray-")
    try:
        context = ray.init(
            num_cpus=os.cpu_count(),
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        yield context.address_info["address"]
    except (RuntimeError, ConnectionError, OSError) as error:
        raise InfrastructureError(f"Ray did not start: {error}") from error
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
