"""Good documents to break: those of the table that every judge of the API is held to, and the examples."""

from pathlib import Path
from typing import Any

from rljob_api.validation import read_documents
from tests.rljob_api.job_files import GOOD

EXAMPLES = Path(__file__).parents[2] / "examples"


def seeds() -> list[Any]:
    texts = [row.text for row in GOOD] + [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    documents = [document.value for text in texts for document in read_documents(text, "job.yaml")[0]]
    return [document for document in documents if document.get("kind") == "RLJob"]
