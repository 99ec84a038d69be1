"""What must start fast or run in a small container imports neither torch nor Ray, and the driver, for which every
recovery waits, imports Ray alone; import-linter cannot tell, as it counts the imports inside functions too."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"ray", "torch", "transformers", "vllm"}


def loaded_by(program: str, *arguments: object) -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules, sep='\\n')", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "it warns of what a person need not know"
    return set(done.stdout.splitlines())


LIGHT = ("agent", "cli.app", "attempt.driver", "rewards.scorer", "journal", "engines.registry", "types")
RAY_ALONE = ("attempt.wiring", "rollouts.rollout_host")


@pytest.mark.parametrize(("modules", "heavy"), [(LIGHT, set()), (RAY_ALONE, {"ray"})], ids=["light", "Ray alone"])
def test_importing_them_loads_no_more(modules: tuple[str, ...], heavy: set[str]) -> None:
    found = loaded_by("\n".join(f"import rljob_trainer.{module}" for module in modules))
    assert found >= {f"rljob_trainer.{module}" for module in modules}
    assert found & HEAVY == heavy


TOKENIZER = """
from rljob_trainer.data.torchless import import_transformers
import_transformers()
from transformers import AutoConfig, AutoTokenizer
from rljob_api.v1alpha1.model import Tokenizer
from rljob_trainer.data.tokenizer import build_tokenizer
folder = sys.argv[1]
build_tokenizer(Tokenizer(kind="byte"), []).save_pretrained(folder)
AutoConfig.for_model("qwen2", dtype="bfloat16").save_pretrained(folder)
read = AutoTokenizer.from_pretrained(folder)
chat = read.apply_chat_template([{"role": "user", "content": "abc"}], tokenize=False)
assert read.decode(read(chat)["input_ids"]) == chat == "<|user|>abc"
assert str(AutoConfig.from_pretrained(folder).dtype).endswith("bfloat16")
"""


def test_tokenizers_and_configurations_need_no_torch(tmp_path: Path) -> None:
    assert loaded_by(TOKENIZER, tmp_path) & HEAVY == {"transformers"}


def test_torch_can_be_imported_after_all() -> None:
    """A model's own code may want it."""
    program = "from rljob_trainer.data.torchless import import_transformers\nimport_transformers()\nimport torch"
    assert loaded_by(program) & HEAVY == {"torch", "transformers"}
