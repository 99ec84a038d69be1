"""vLLM's own `LLM.chat`, alone:  python -m bench.step.vllm_alone SPEC.json MODEL LINES.jsonl

It makes the responses of a step again and again, and writes {"seconds", "length"} for each time.
"""

import json
import os
import sys
import time
from pathlib import Path
from statistics import mean

from rljob_api import ResolvedSpec
from rljob_trainer.data.tasks import read_synthetic
from rljob_trainer.engines.vllm.start import CPU_ENVIRONMENT, ENVIRONMENT

TIMES = 3
"""After a first one that does not count."""


def main() -> None:
    os.environ.update(ENVIRONMENT | CPU_ENVIRONMENT)
    from vllm import LLM, SamplingParams

    spec = ResolvedSpec.model_validate_json(Path(sys.argv[1]).read_text())
    rows = [row for source in spec.data.train for row in read_synthetic(source, "spec.data")]
    prompts = [row["prompt"] for row in rows[: spec.data.prompts_per_step]]
    samples, tokens = spec.rollout.samples_per_prompt, spec.data.max_response_tokens
    length = spec.data.max_prompt_tokens + tokens
    llm = LLM(
        sys.argv[2], dtype="float32", max_model_len=length, max_num_seqs=len(prompts) * samples, enforce_eager=True,
        kv_cache_memory_bytes=1 << 30,
    )  # fmt: skip
    # With a seed as ours: without one vLLM 0.32 takes three times as long on two cores.
    sampling = SamplingParams(n=samples, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0, seed=0)
    with Path(sys.argv[3]).open("w") as output:
        for _ in range(1 + TIMES):
            start = time.perf_counter()
            made = llm.chat(prompts, sampling, use_tqdm=False)
            seconds = time.perf_counter() - start
            lengths = [len(response.token_ids) for prompt in made for response in prompt.outputs]
            output.write(json.dumps({"seconds": seconds, "length": mean(lengths)}) + "\n")


if __name__ == "__main__":
    main()
