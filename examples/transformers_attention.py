"""Compare a model of transformers with the attention of torch and of this library: equal tokens, and the time of each.

    python examples/transformers_attention.py [LENGTH] [NEW_TOKENS]

A Llama of 9 query heads and 3 key-value heads, with random weights, decodes 32 tokens after a prompt of 1024 on one
thread. Each line has an implementation, the milliseconds of the decode, and the milliseconds of its attention. The
matrix products around attention stay in torch; accelerate_a_model.py replaces these, too.
"""

import sys
import time

import mha_native as mha

try:
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
except ImportError:
    sys.exit("this example needs the packages torch and transformers: pip install torch transformers")

from mha_native.interop.transformers import register

length, new_tokens = int((sys.argv[1:] or [1024])[0]), int((sys.argv[2:] or [32])[0])
register()
torch.set_num_threads(1)
mha.set_num_threads(1)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=4096,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=6,
    num_attention_heads=9,
    num_key_value_heads=3,
    eos_token_id=None,
)
model = AutoModelForCausalLM.from_config(config).eval()
prompt = torch.randint(4096, (1, length))
spent = {"sdpa": 0.0, "mha_native": 0.0}


def timed(name, attention):
    """Wrap `attention` to add the time of each call to `spent`."""

    def call(*arguments, **options):
        begin = time.perf_counter()
        try:
            return attention(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - begin

    return call


for name in spent:
    AttentionInterface.register(name, timed(name, AttentionInterface()[name]))

best = {}
tokens = {}
for _ in range(5):  # in turns, on the same state of the machine; the fastest run counts
    for name in spent:
        model.set_attn_implementation(name)
        with torch.inference_mode():
            cache = model(prompt[:, :-1]).past_key_values
            token, chosen = prompt[:, -1:], []
            spent[name], begin = 0.0, time.perf_counter()
            for _ in range(new_tokens):
                token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
                chosen.append(token)
        best[name] = min(best.get(name, (float("inf"), 0.0)), (time.perf_counter() - begin, spent[name]))
        tokens[name] = torch.cat(chosen, 1)

assert torch.equal(tokens["sdpa"], tokens["mha_native"])
for name, (whole, part) in best.items():
    print(f"{name:10}  {1e3 * whole:7.1f}  {1e3 * part:6.1f}")
theirs, ours = (best[name][1] for name in ("sdpa", "mha_native"))
print(f"The tokens are the same. Attention of torch takes {theirs / ours:.2f} times as long.")
