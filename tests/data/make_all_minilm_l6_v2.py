"""Makes the golden file beside it, with transformers and PyTorch, in an environment that has them.

    python make_all_minilm_l6_v2.py DIRECTORY_OF_THE_MODEL

Reads the texts from all_minilm_l6_v2.json and writes their tokens there, and their embeddings to all_minilm_l6_v2.npy.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

golden = Path(__file__).with_name("all_minilm_l6_v2.json")
texts = [entry["text"] for entry in json.loads(golden.read_text(encoding="utf-8"))["texts"]]
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModel.from_pretrained(sys.argv[1]).double().eval()

entries, rows = [], []
for text in texts:  # one by one: nothing is padded
    tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        mean = model(**tokens).last_hidden_state.mean(dim=1)
    rows.append(torch.nn.functional.normalize(mean).numpy())
    entries.append(json.dumps({"text": text, "tokens": tokens["input_ids"][0].tolist()}))

made_by = f"transformers {transformers.__version__}, torch {torch.__version__}, in float64"
lines = ",\n".join(f"  {entry}" for entry in entries)
golden.write_text(f'{{\n "made_by": {json.dumps(made_by)},\n "texts": [\n{lines}\n ]\n}}\n', encoding="utf-8")
np.save(golden.with_suffix(".npy"), np.concatenate(rows).astype(np.float32))
