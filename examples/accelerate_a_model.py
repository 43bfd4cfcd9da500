"""Compare models of transformers with their torch layers and after `accelerate`: equal results, and the time of each.

    python examples/accelerate_a_model.py [THREADS] [BATCH] [LENGTH] [NEW_TOKENS]

A BERT-base and a Llama of 135 million parameters, with random weights, read BATCH texts of LENGTH tokens. Then the
Llama decodes NEW_TOKENS after each text. Each line has the model and task, the milliseconds of torch with its attention
"sdpa", and the milliseconds after `accelerate`. The last line has the ratios.
"""

import copy
import sys
import time

import mha_native as mha

try:
    import torch
    from transformers import BertConfig, BertModel, DynamicCache, LlamaConfig, LlamaForCausalLM
except ImportError:
    sys.exit("this example needs the packages torch and transformers: pip install torch transformers")

from mha_native.interop.torch import accelerate

given = [int(number) for number in sys.argv[1:]]
threads, batch, length, new_tokens = (given + [1, 1, 128, 16][len(given) :])[:4]
torch.set_num_threads(threads)
mha.set_num_threads(threads)
torch.manual_seed(0)

bert = BertModel(BertConfig()).eval()
llama = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
).eval()


def forward(model, tokens):
    out = model(tokens)
    return out.logits[:, -1:] if hasattr(out, "logits") else out.last_hidden_state


def decode(model, prompt):
    """Return the new tokens of each text, and their seconds, excluding the time of the prompt."""
    cache = DynamicCache(config=model.config)
    token = model(prompt, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    begin, chosen = time.perf_counter(), []
    for _ in range(new_tokens):
        token = model(token, past_key_values=cache).logits.argmax(-1)
        chosen.append(token)
    return torch.cat(chosen, 1), time.perf_counter() - begin


def timed(run, *arguments):
    begin = time.perf_counter()
    out = run(*arguments)
    return out if isinstance(out, tuple) else (out, time.perf_counter() - begin)


ratios = []
for name, model, tasks in (("BERT-base", bert, [forward]), ("Llama", llama, [forward, decode])):
    models = {"sdpa": model, "accelerate": copy.deepcopy(model)}
    done = accelerate(models["accelerate"])
    assert len(done.replaced) == model.config.num_hidden_layers, done
    tokens = torch.randint(1000, (batch, length))
    for run in tasks:
        best, results = dict.fromkeys(models, float("inf")), {}
        for _ in range(3):  # in turns, on the same state of the machine; the fastest run counts
            for kind, of_kind in models.items():
                with torch.inference_mode():
                    results[kind], seconds = timed(run, of_kind, tokens)
                best[kind] = min(best[kind], seconds)
        theirs, ours = results["sdpa"], results["accelerate"]
        assert torch.equal(ours, theirs) if run is decode else torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        ratios.append(best["sdpa"] / best["accelerate"])
        print(f"{name:10} {run.__name__:8} {1e3 * best['sdpa']:8.1f} {1e3 * best['accelerate']:8.1f}")
print("torch takes", ", ".join(f"{ratio:.2f}" for ratio in ratios), "times as long")
