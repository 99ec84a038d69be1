"""Where a response ends: what the model's files name, and the token with which the chat template ends a turn."""

import json

import pytest
from transformers import AutoConfig

from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.engines.ends import end_ids
from rljob_trainer.engines.stop import end_token_ids
from tests.rljob_trainer import chat_templates as templates
from tests.rljob_trainer.checkpoint_support import make_spec

ENDS = {
    "the template's turn": (templates.CHATML, None, 0, {"<|endoftext|>", "<|im_end|>"}),
    "an answer that the template changes": (templates.UPPER, None, 0, {"<|endoftext|>", "<|im_end|>"}),
    "a conversation with a system message": (templates.NEEDS_SYSTEM, None, 0, {"<|endoftext|>", "<|im_end|>"}),
    "a list of parts": (templates.PARTS_ALONE, None, 0, {"<|endoftext|>", "<|im_end|>"}),
    "a list of the configuration": (templates.CHATML, None, [3, 0], {"<|endoftext|>", "<|im_end|>", "<|eot|>"}),
    "a list for generation": (templates.PHI, [3, 6], None, {"<|endoftext|>", "<|end|>", "<|eot|>", "<|call|>"}),
    "a number for generation": (templates.PLAIN, 3, 0, {"<|endoftext|>", "<|eot|>"}),
}


@pytest.mark.parametrize(("template", "generation", "config", "ends"), ENDS.values(), ids=ENDS)
def test_a_models_folder_names_every_end(tmp_path, template, generation, config, ends):
    tokenizer, source, folder = templates.tokenizer_of(template), tmp_path / "source", tmp_path / "model"
    AutoConfig.for_model("qwen2", eos_token_id=config, pad_token_id=0).save_pretrained(source)
    if generation is not None:
        (source / "generation_config.json").write_text(json.dumps({"eos_token_id": generation, "top_k": 20}))
    for _ in range(2):  # the second attempt finds the folder of the first
        prepare_model_folder(make_spec(model={"path": str(source)}), source, folder, tokenizer)
        assert {tokenizer.decode(token) for token in end_ids(folder)} == ends
    assert end_token_ids(str(folder), trust_remote_code=False) == sorted(end_ids(folder))
    assert ("top_k" in json.loads((folder / "generation_config.json").read_text())) == (generation is not None)
