"""One evaluation, from the job to its numbers and samples."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rljob_api.resolve import ResolvedSpec
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.engines.ends import as_ids, end_ids
from rljob_trainer.errors import JobError
from rljob_trainer.evaluation.passing import summary
from rljob_trainer.evaluation.sampling import groups
from rljob_trainer.evaluation.weights import Source, model_name, start_engine
from rljob_trainer.memory.sequences import MANY_SEQUENCES
from rljob_trainer.rank.model_source import locate_model
from rljob_trainer.rewards.check import check_data_sources
from rljob_trainer.rewards.scorer import Scorer
from rljob_trainer.types import Group, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ALL = "all"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """numbers: by data source, and ALL: the number of prompts, and mean@n and pass@k.

    samples: one JSON object each. dropped: prompts whose rewards failed under rewards.onError drop_group.
    """

    numbers: dict[str, tuple[int, dict[str, float]]]
    samples: list[dict[str, Any]]
    dropped: int


def evaluate(
    spec: ResolvedSpec, base_dir: Path, source: Source, ks: Sequence[int] | None, passing: float,
    say: Callable[[str], None],
) -> Evaluation:  # fmt: skip
    """Answer the validation rows of `spec`, or its training rows if it has none, and score them.

    ks: of pass@k; None: 1 and the number of samples.
    Raises JobError, DataError, RewardError as a run does.
    """
    samples = spec.rollout.validation.samples_per_prompt
    ks = sorted({1, samples}) if ks is None else ks
    _check(spec, ks, samples)
    with tempfile.TemporaryDirectory(prefix="rljob-eval-") as name:
        folder = Path(name)
        path = model_name(source, spec, folder / "exported")
        model = spec.model.model_copy(update={"path": path, "from_scratch": None, "lora": None, "revision": None})
        spec = spec.model_copy(update={"model": model})
        weights, tokenizer = locate_model(model, base_dir), make_tokenizer(spec, base_dir)
        prepare_model_folder(spec, weights, folder / "model", tokenizer)
        ends = end_ids(folder / "model") | set(as_ids(tokenizer.eos_token_id))
        found = _groups(spec, base_dir, folder, weights, tokenizer, say)
    kept = [group for group in found if group.error is None]
    if not kept:
        raise JobError(f"the rewards of every prompt failed: {found[0].error}", field="spec.rewards")
    numbers = {
        source: (len(own), summary([_rewards(group) for group in own], ks, passing)) for source, own in _by(kept)
    }
    answers = [each for group in kept for each in _samples(group, tokenizer, ends)]
    return Evaluation(numbers, answers, len(found) - len(kept))


def _check(spec: ResolvedSpec, ks: Sequence[int], samples: int) -> None:
    if spec.supervised_only or spec.pairs_with_rows:
        raise JobError(
            f"preset {spec.algorithm.preset} has no rewards to evaluate with: choose a preset that reads rewards, such"
            " as reinforce_plus_plus, and set rewards.functions",
            field="spec.algorithm.preset",
        )
    if not spec.rewarded:
        raise JobError("eval scores answers with rewards: set rewards.functions", field="spec.rewards.functions")
    if spec.environment is not None:
        message = "eval samples one answer a prompt and plays no environment: validate in a run, or remove it"
        raise JobError(message, field="spec.environment")
    if spec.rewards.served:
        message = f"eval starts no server for {spec.rewards.served[0].name}: set its url to a server that runs already"
        raise JobError(message, field="spec.rewards.models")
    if wrong := [k for k in ks if not 1 <= k <= samples]:
        message = f"pass@{wrong[0]} needs at least {wrong[0]} samples a prompt: pass --samples, or raise it"
        raise JobError(message, field="spec.rollout.validation.samplesPerPrompt")


def _groups(
    spec: ResolvedSpec, base_dir: Path, folder: Path, weights: Path, tokenizer: "PreTrainedTokenizerBase",
    say: Callable[[str], None],
) -> list[Group]:  # fmt: skip
    part: Literal["train", "validation"] = "validation" if spec.data.validation else "train"
    prompts = load_prompts(spec.data, tokenizer, base_dir, part, now=datetime.now(UTC))
    check_data_sources(spec.rewards, prompts.data_sources)
    tasks, settings = prompts.all("validation"), spec.rollout.validation
    sampling = Sampling(
        spec.data.max_response_tokens, settings.temperature, settings.top_p, stop=tuple(spec.rollout.stop)
    )
    urls = {model.name: model.url for model in spec.rewards.models if model.url}
    scorer = Scorer(
        spec.rewards, folder / "model", base_dir, urls, folder / "rewards.log",
        trust_remote_code=spec.model.trust_remote_code,
    )  # fmt: skip
    say(f"{len(tasks)} rows of data.{part}, {settings.samples_per_prompt} samples each; starting {spec.rollout.engine}")
    with closing(scorer), closing(start_engine(spec, folder / "model", weights)) as engine:
        tenth = max(1, len(tasks) // 10)

        def scored(count: int) -> None:
            if count % tenth == 0 or count == len(tasks):
                say(f"{count} of {len(tasks)} prompts scored")

        return asyncio.run(
            groups(
                tasks, engine, scorer, sampling, settings.samples_per_prompt, spec.rollout.seed,
                spec.rollout.max_num_seqs or MANY_SEQUENCES, scored,
            )
        )  # fmt: skip


def _by(found: Sequence[Group]) -> Iterator[tuple[str, list[Group]]]:
    """Each data source with its groups, then all of them."""
    for source in dict.fromkeys(group.task.data_source for group in found):
        yield source, [group for group in found if group.task.data_source == source]
    yield ALL, list(found)


def _rewards(group: Group) -> list[float]:
    return [float(episode.reward) for episode in group.episodes]


def _samples(group: Group, tokenizer: "PreTrainedTokenizerBase", ends: set[int]) -> Iterator[dict[str, Any]]:
    """Responses are the text that rewards see, without the token that ended it."""
    for episode in group.episodes:
        last = episode.trajectories[-1]
        yield {
            "row": group.task.id.split("/")[1],
            "data_source": group.task.data_source,
            "sample": episode.sample,
            "messages": list(group.task.messages),
            "response": tokenizer.decode(last.response_ids(ends), clean_up_tokenization_spaces=False),
            "ground_truth": group.task.ground_truth,
            "reward": episode.reward,
            "components": dict(episode.components),
            "status": episode.status,
        }
