"""A language model on a CPU: stream an answer, continue several prompts at once, and score texts.

    python examples/generate_text.py [MODEL [QUESTION]]

The model is a directory, a .gguf file or a name of an instruct model; default: the environment variable
MHA_NATIVE_LANGUAGE_MODEL, or else HuggingFaceTB/SmolLM2-135M-Instruct.
"""

import os
import sys

from mha_native.models import CausalLM

default = os.environ.get("MHA_NATIVE_LANGUAGE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
try:
    model = CausalLM.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else default)
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
question = sys.argv[2] if len(sys.argv) > 2 else "Give me three tips for sleeping well."

for piece in model.chat([{"role": "user", "content": question}], max_new_tokens=80, stream=True):
    print(piece, end="", flush=True)
statistics = model.statistics
print(f"\n\n{statistics.new_tokens} tokens, {statistics.tokens_per_second:.1f} a second\n")

prompts = ["The capital of France is", "Water boils at", "The three primary colours are red,"]
for prompt, text in zip(prompts, model.generate(prompts, max_new_tokens=12, stop="."), strict=True):
    print(f"{prompt}{text}.")
print(f"{model.statistics.tokens_per_second:.1f} tokens a second, of three texts together\n")

for text in ("The cat sat on the mat.", "The mat sat the on cat."):
    print(f"{text}  perplexity {model.score(text).perplexity:.0f}")
