"""The tokenizer: the model's own, or one built from the training data for a model from scratch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rljob_api.v1alpha1 import Model, RLJobSpec
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.rows import is_text, open_rows
from rljob_trainer.errors import DataError
from rljob_trainer.paths import locate
from rljob_trainer.rank.model_source import first_line

if TYPE_CHECKING:  # the driver must not import transformers here: it takes a second
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
ROLES = ("system", "user", "assistant")
SPECIAL = [PAD, END, UNKNOWN, *(f"<|{role}|>" for role in ROLES)]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant, not ' ~ message.role) }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}{% if message.role == 'assistant' %}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""<|user|>abc<|assistant|>cba<|end|>"""


def make_tokenizer(spec: RLJobSpec, base_dir: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of spec.model, with a chat template, an end and a padding token.

    Raises:
        DataError: no such model or file, or the model's tokenizer lacks a required token.
    """
    if spec.model.from_scratch is None:
        tokenizer = load_tokenizer(spec.model, base_dir)
    else:
        tokenizer = build_tokenizer(spec.model.from_scratch.tokenizer, training_texts(spec, base_dir))
    if spec.model.chat_template is not None:
        tokenizer.chat_template = spec.model.chat_template
    return tokenizer


def load_tokenizer(model: Model, base_dir: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of model.path: a folder (a relative one starts at `base_dir`) or a model on the hub.

    Raises:
        DataError: there is none, or it has no end-of-text token.
    """
    from transformers import AutoTokenizer

    folder = locate(str(model.path), base_dir)
    source = str(folder) if folder.is_dir() else str(model.path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:  # also of its own code
        if "trust_remote_code" in str(error):
            message = f"the tokenizer in {source} is Python code; set this field to run it, or choose another model"
            raise DataError(message, field="spec.model.trustRemoteCode") from error
        raise DataError(
            f"no tokenizer in {source}: {first_line(error)}; give a folder with the model's files, or a hub model that"
            " is cached or reachable",
            field="spec.model.path",
        ) from error
    if tokenizer.eos_token_id is None:
        raise DataError(
            "the tokenizer has no end-of-text token (eos_token); choose a model with one", field="spec.model.path"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def build_tokenizer(spec: TokenizerSpec, texts: Iterable[str]) -> "PreTrainedTokenizerFast":
    """A tokenizer for `texts`, with CHAT_TEMPLATE. decode(encode(x)) == x for every text of the data; for byte and bpe,
    for every text. `character` maps unseen characters to UNKNOWN.
    """
    from transformers import PreTrainedTokenizerFast

    if spec.kind == "character":
        tokenizer = _character(texts)
    elif spec.kind == "byte":
        tokenizer = _byte()
    else:
        tokenizer = _bpe(texts, spec.vocab_size or 0)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN if spec.kind == "character" else None,
        additional_special_tokens=[f"<|{role}|>" for role in ROLES],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def training_texts(spec: RLJobSpec, base_dir: Path) -> Iterator[str]:
    """Every text of the training data: messages, responses and ground truths.

    Raises:
        DataError: a file cannot be read.
    """
    lists = [(spec.data.train, "spec.data.train"), (spec.sft.data if spec.sft else [], "spec.sft.data")]
    for files, field in lists:
        for batch in open_rows(files, base_dir, field).batches() if files else ():
            for row in batch:
                yield from _texts(row)


def _texts(row: Any) -> Iterator[str]:
    """The texts of a row, without validating it: the stage that reads it does."""
    reward = row.get("reward_model")
    values = [row.get("response"), reward.get("ground_truth") if isinstance(reward, dict) else None]
    for messages in (row.get("prompt"), row.get("messages")):
        if isinstance(messages, list):
            values += [message.get("content") for message in messages if isinstance(message, dict)]
    yield from (value for value in values if is_text(value))


def _character(texts: Iterable[str]) -> Tokenizer:
    characters: set[str] = set().union(*texts)
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *sorted(characters)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _byte() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [token for token in SPECIAL if token != UNKNOWN]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[token for token in SPECIAL if token != UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
