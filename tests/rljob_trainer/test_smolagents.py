"""An agent of the framework smolagents, which knows only base_url and api_key, is recorded as it was sampled."""

import pytest

from tests.rljob_trainer import chat_templates as templates
from tests.rljob_trainer.environments_support import playing

SOURCE = '''
from smolagents import OpenAIModel, ToolCallingAgent, tool

@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b

def run(task, base_url, api_key):
    model = OpenAIModel("policy", api_base=base_url, api_key=api_key)
    agent = ToolCallingAgent(tools=[multiply], model=model, max_steps=3, verbosity_level=0)
    return float(str(agent.run(task.messages[-1]["content"])) == task.ground_truth)
'''


@pytest.mark.slow
def test_an_agent_of_smolagents_is_trained_unchanged(tmp_path):
    calls = (
        '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call><|im_end|>',
        '<tool_call>{"name": "final_answer", "arguments": {"answer": "42"}}</tool_call><|im_end|>',
    )
    prompt = [{"role": "user", "content": "6 * 7?"}]
    with playing(tmp_path, source=SOURCE, template=templates.TOOLS, tokens=100_000) as play:
        episode = play(*calls, truth="42", prompt=prompt)
    assert (episode.status, episode.reward) == ("finished", 1), episode.reason
    assert episode.counts == {"turns": 2, "splits": 1}, "smolagents writes the calls into its history in its own words"
    sampled = [
        play.tokenized.text(part.token_ids[turn.start : turn.end].tolist())
        for part in episode.trajectories
        for turn in part.turns
    ]
    assert sampled == list(calls)
