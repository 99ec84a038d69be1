"""Whether a run has anything left to do, as its checkpoints tell before anything is started."""

from pathlib import Path

import pytest

from rljob_trainer.local.prepare import LocalRun, nothing_left
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, job_spec


def local_run(folder: Path, epochs: int | None = None) -> LocalRun:
    spec = job_spec()
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"steps": 100, "epochs": epochs})})
    return LocalRun("job", spec, folder, Volume(folder), gpus=0, environment={}, notes=())


def test_a_run_at_its_last_step_has_nothing_left(tmp_path: Path):
    run = local_run(tmp_path)
    assert nothing_left(run) is None
    first = begin_attempt(run.volume, 1)
    first.save(90)
    assert nothing_left(run) is None
    first.save(110)
    assert str(nothing_left(run)).startswith(f"nothing left to do: the run in {tmp_path} is at step 110 of 100. Raise")


@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize("content", [None, b"", b'{"step": 1'])
def test_a_damaged_checkpoint_does_not_tell(tmp_path: Path, epochs: int | None, content: bytes | None):
    run = local_run(tmp_path, epochs)
    first = begin_attempt(run.volume, 1)
    saved = [first.save(step) for step in ((90, 100) if epochs is None else (90,))]
    state = saved[-1].path / "trainer.json"
    state.unlink() if content is None else state.write_bytes(content)
    assert nothing_left(run) is None, "the driver goes back as far as it has to"
