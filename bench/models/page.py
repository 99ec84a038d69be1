"""docs/models.md."""

from collections.abc import Mapping
from importlib.metadata import version

from bench.models.architectures import ARCHITECTURES
from bench.models.compare import LONGEST, TOLERANCE, Result

_HEAD = """# Which models train

`make models` writes this page. Each row is a tiny random model of an architecture, with windows, chunks and factors
that its sequences of up to {longest} tokens pass, in float32 on a CPU. A comparison loads it as a job does, sends its
weights to an engine, generates, makes one update, and repeats that. The numbers are the largest difference to the
log-probabilities that transformers {transformers} computes for the same tokens, one sequence at a time, in nats; below
{tolerance} they agree.

- **Trainer**: *packs* several sequences into a row, or gives each *a row of its own*. The trainer compares both when it
  loads a model, so an architecture that is not here is laid out correctly too.
- **Refused**: the job ends before the first step, with the text of the note.
- Every other architecture that `AutoModelForCausalLM` loads runs in engine `hf`. If its layers keep more than keys and
  values, the engine reads the whole context for each token, which is slow; the log then has `engine_without_cache`.
- The trainer scales and bounds logits as `logit_scale`, `logits_scaling`, `lm_head_multiplier` and
  `final_logit_softcapping` say. A model that changes its output head's logits in another way is refused.
- The weight sync's probe and each step's own tokens are compared in every run. `EngineMismatch` ends a run that
  differs.

| architecture | trainer | engine hf | engine vllm |
|---|---|---|---|
"""


def page(results: Mapping[str, Mapping[str, Result]]) -> str:
    notes: list[str] = []
    rows = [_row(name, results[name], notes) for name in results]
    head = _HEAD.format(longest=LONGEST, tolerance=TOLERANCE, transformers=version("transformers"))
    ends = [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    return head + "\n".join([*rows, "", "Notes:", "", *ends]) + "\n"


def _row(name: str, found: Mapping[str, Result], notes: list[str]) -> str:
    trained = [each for each in found.values() if each.refused is None]
    trainer = "" if not trained else "a row of its own" if trained[0].apart else "packs"
    if trained:
        trainer += f" ({max(each.trainer or 0 for each in trained):.0e})"
    kind, _, more = name.partition(", ")
    shown = f"`{ARCHITECTURES[name][0]}`" + (f", {more}" if kind and more else "")
    return f"| {shown} | {trainer} | {_cell(found.get('hf'), notes)} | {_cell(found.get('vllm'), notes)} |"


def _cell(result: Result | None, notes: list[str]) -> str:
    if result is None:
        return "not measured"
    if result.refused is None:
        return f"{result.engine:.0e}" if result.right else f"differs ({result.engine:.0e}): `EngineMismatch`"
    if result.refused not in notes:
        notes.append(result.refused)
    return f"refused [{notes.index(result.refused) + 1}]"
