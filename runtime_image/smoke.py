"""Whether an image works: `python smoke.py` in it. Imports what jobs need, and trains a tiny model for one step."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PACKAGES = ("torch", "vllm", "ray", "transformers", "rljob_trainer")

JOB = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "smoke"},
    "spec": {
        "model": {"fromScratch": {"layers": 1, "hiddenSize": 32, "heads": 1}},
        "data": {
            "train": ["synthetic://reverse-text?rows=64&letters=10&maxLength=3"],
            "maxPromptTokens": 16,
            "maxResponseTokens": 8,
            "promptsPerStep": 4,
        },
        "algorithm": {"preset": "grpo"},
        "rollout": {"engine": "hf", "samplesPerPrompt": 4},
        "actor": {"learningRate": 1.0e-3, "miniBatchSize": 4, "recompute": "none"},
        "rewards": {"functions": [{"name": "exact", "builtin": "exact_match"}]},
        "training": {"steps": 1},
        "checkpoint": {"everySteps": 1},
        "cluster": {"gpusPerNode": 0},
    },
}


def main() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # one step is not worth compiling; an image for CPUs has no compiler
    for name in PACKAGES:
        print(name, getattr(importlib.import_module(name), "__version__", ""), flush=True)
    if shutil.which("gcc") and not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit("Triton will compile with gcc what includes Python.h, which is not here")
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps(JOB))  # which is YAML too
        run = Path(folder, "run")
        ended = subprocess.run(["rljob", "run", str(job), "--dir", str(run)], check=False)
        checkpoints = sorted(each.name for each in run.glob("checkpoints/step-*"))
    if ended.returncode or not checkpoints:
        sys.exit(f"the run ended with {ended.returncode} and left {checkpoints or 'no checkpoint'}")
    print("trained, with", *checkpoints)


if __name__ == "__main__":
    main()
