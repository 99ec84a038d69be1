"""A student and a teacher for tests of ranks, and what plain torch makes of both."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.rljob_trainer.rank_support import write_model


def student_and_teacher(tmp_path_factory):
    """Their folders; the teacher is of another architecture."""
    student, teacher = (tmp_path_factory.mktemp(name) for name in ("student", "teacher"))
    return write_model(student), write_model(teacher, "llama", seed=1)


def begin(worker, folders):
    worker.load(folders[0], None, folders[1])
    worker.begin_stage("rl")


def logits_of(model, trajectory):
    """Those that predict the tokens in the loss, at their temperature, [R, vocabulary]."""
    states = model(input_ids=torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]).logits[0]
    places = np.flatnonzero(trajectory.in_loss)
    temperatures = np.concatenate([np.full(turn.end - turn.start, turn.temperature) for turn in trajectory.turns])
    return states[torch.from_numpy(places - 1)] / torch.from_numpy(temperatures).float()[:, None]


def log_probs_of(model, trajectory):
    sampled = torch.from_numpy(trajectory.token_ids[trajectory.in_loss].astype(np.int64))
    return logits_of(model, trajectory).log_softmax(-1).gather(-1, sampled[:, None])[:, 0]


def models_of(folders):
    return [AutoModelForCausalLM.from_pretrained(each, attn_implementation="eager").eval() for each in folders]
