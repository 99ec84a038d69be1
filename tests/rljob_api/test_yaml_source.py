"""YAML as Kubernetes reads it. The expected values are those of sigs.k8s.io/yaml 1.6.0, run on the same texts."""

import pytest

from rljob_api.validation.source import MAX_DEPTH, MAX_NODES, dotted, read_documents, read_value

SCALARS = {
    "0": 0,
    "+5": 5,
    "007": 7,
    "08": 8,
    "010": 8,
    "0o17": 15,
    "0x1F": 31,
    "-0x10": -16,
    "0b101": 5,
    "1_000": 1000,
    "_1": "_1",
    "1.": 1,
    ".5": 0.5,
    "1e3": 1000,
    "1e-6": 1e-6,
    "1E+2": 100,
    "8.0": 8,
    "8.50": 8.5,
    "9223372036854775807": 9223372036854775807,
    "9223372036854775808": 9223372036854775808.0,
    "1e21": 1e21,
    "1e400": "1e400",
    "y": True,
    "N": False,
    "yes": True,
    "yEs": "yEs",
    "Off": False,
    "TRUE": True,
    "~": None,
    "Null": None,
    "nULL": "nULL",
    "1:30": "1:30",
    "2024-01-01": "2024-01-01",
    "1.2.3": "1.2.3",
    "0b2": "0b2",
    "1e": "1e",
    "=": "=",
    "'y'": "y",
    '"1"': "1",
    "!!str 1": "1",
    '!!int "7"': 7,
    "[1, 2.0]": [1, 2],
    "{y: 1, 1: 2, 1.5: 3}": {"true": 1, "1": 2, "1.5": 3},
    "{a: 2, <<: [{a: 1, b: 1}, {b: 2, c: 3}]}": {"a": 2, "b": 1, "c": 3},
    "a # c": "a",
    "": None,
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_a_value_means_what_it_means_to_kubernetes(text, value):
    read = read_value(text)
    assert (read, type(read)) == (value, type(value))


def test_keys_and_values_know_their_places():
    ((document,), problems) = read_documents("a: 1\nb:\n- {c: x}\n", "f.yaml")
    assert problems == []
    assert document.locate(("b", 0, "c"), key=True) == ("f.yaml", 3, 4)
    assert document.locate(("b", 0, "c"), key=False) == ("f.yaml", 3, 7)
    assert document.locate(("b", 0, "missing"), key=False) == ("f.yaml", 3, 3)
    assert document.locate(("missing",), key=False) == ("f.yaml", 1, 1)


def test_documents_after_unreadable_ones_are_not_guessed_at():
    documents, problems = read_documents("a: 1\n---\nb: [\n---\nc: 1\n", "f.yaml")
    assert [document.value for document in documents] == [{"a": 1}]
    (problem,) = problems
    assert (problem.line, problem.column) == (4, 1)
    assert problem.message.startswith("not readable as YAML: ")


@pytest.mark.parametrize(
    "text",
    [
        "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
        "[" * 2500 + "]" * 2500,
        "a: &a {<<: *a}",
        "\n".join(["a: &a0 [x]", *(f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(9))]),
    ],
    ids=["deep", "deeper than Python", "a merge of itself", "a billion laughs"],
)
def test_a_file_that_explodes_is_refused(text):
    documents, problems = read_documents(text, "f.yaml")
    assert documents == []
    assert f"more than {MAX_NODES} values or {MAX_DEPTH} levels" in problems[0].message


def test_a_path_is_written_as_people_write_it():
    assert dotted(("spec", "rewards", "functions", 0, "name")) == "spec.rewards.functions[0].name"
    assert dotted(("metadata", "labels", "kueue.x-k8s.io/queue-name")) == "metadata.labels[kueue.x-k8s.io/queue-name]"
    assert dotted(()) == ""
