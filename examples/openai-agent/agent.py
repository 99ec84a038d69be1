"""An agent that checks its own answer. It knows no RLJob: base_url and api_key are all that it is given."""

import openai


async def run(task, base_url, api_key):
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    messages = list(task.messages)
    for question in ("again", None):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": question}]
    text = messages[-2].content
    return {"reward": similarity(text, task.ground_truth), "changed": text != messages[-4].content}


def similarity(text, truth):
    """The share of places that have the right letter."""
    return sum(a == b for a, b in zip(text.strip(), truth, strict=False)) / max(len(text.strip()), len(truth))
