"""Columns of a Hugging Face data set: the paths and URLs in them are data, which nothing opens."""

import json

from k2jax.agents.registry import load_tasks
from k2jax.files.readers import huggingface
from tests.data.images.counting import HITS, counting_server

CARD = """---
dataset_info:
  features:
  - {name: text, dtype: string}
  - {name: answer, dtype: string}
  - {name: image, dtype: image}
---
"""


def test_columns_of_a_hugging_face_data_set_are_not_opened(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "README.md").write_text(CARD)
    HITS.clear()
    with counting_server() as port:
        url = f"http://127.0.0.1:{port}"
        lines = [json.dumps({"text": str(n), "answer": "1", "image": f"{url}/{n}.png"}) + "\n" for n in range(3)]
        for split, some in (("train", lines[:2]), ("test", lines[2:])):
            (rows / f"{split}.jsonl").write_text("".join(some))
        said = []

        def column(field):
            report = lambda where, why: said.append(why)  # noqa: E731
            return [text for _, text in huggingface(str(rows), "", "train", field, report)]

        assert (column("text"), column("image"), column("none")) == (["0", "1"], [], [])
        assert said == 2 * ["field 'image' is dict, not a string"] + 2 * [
            "no field 'none', only 'text', 'answer', 'image'"
        ]
        tasks = load_tasks("math", (f"hub={rows}", "question=text", "answer=answer"))
        assert [task.id for task in tasks] == ["1", "2"] and not HITS
