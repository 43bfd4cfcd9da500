"""The families that there are, by the name that config.json has for them."""

from . import gemma2, gemma3, gpt2, llama, mistral, qwen2, qwen3

# A family is a module beside this one and an entry here; all that is read by it follows.
FAMILIES = {
    model_type: family
    for family in (
        gemma2.FAMILY,
        gemma3.FAMILY,
        gpt2.FAMILY,
        llama.FAMILY,
        mistral.FAMILY,
        qwen2.FAMILY,
        qwen3.FAMILY,
    )
    for model_type in family.model_types
}
