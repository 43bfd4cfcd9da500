"""Whatever the C++ headers offer has a form in mha.h: functions, members of classes, fields of structs, enumerators."""

import re
from collections import Counter
from pathlib import Path

import pytest
from check_exports import MARKED, declarations, marked

INCLUDE = Path(__file__).resolve().parents[2] / "cpp" / "include" / "mha"


def with_tables(header: str) -> str:
    """A header in which the rows of each table (.def) that it includes are written out as its macro has them."""

    def written_out(match: re.Match[str]) -> str:
        macro, parameters, body, table = match.groups()
        rows = re.findall(rf"^{macro}\((.*)\)$", (INCLUDE / table).read_text(encoding="utf-8"), re.M)
        names = parameters.split(", ")
        for name in names:
            body = re.sub(rf"(?:##)?\b{name}\b", f"{{{name}}}", body)
        return "\n".join(body.format(**dict(zip(names, row.split(", "), strict=True))) for row in rows)

    return re.sub(r'^#define (\w+)\((.*?)\) (.*)\n#include "mha/(\w+\.def)"$', written_out, header, flags=re.M)


CPP = "\n".join(declarations(with_tables(path.read_text(encoding="utf-8"))) for path in sorted(INCLUDE.glob("*.hpp")))
C = declarations(with_tables((INCLUDE / "mha.h").read_text(encoding="utf-8")))

# Classes and what stands for them in the names of C; the functions of a class are mha_<that>_<member>.
HANDLES = {
    "KVCache": "cache",
    "PagedKVCache": "paged_cache",
    "MultiHeadAttention": "layer",
    "Norm": "norm",
    "Linear": "linear",
    "RotaryEmbedding": "rotary",
    "FeedForward": "feed_forward",
    "Experts": "experts",
    "TransformerStack": "transformer",
}

# What is called something else in C. Overloads have one name each, in the order of the header.
OTHER_NAMES = {
    "ExecutorScope": ["mha_set_executor"],  # scopes nest; in C a thread has one executor or none
    "CancellationScope": ["mha_set_cancellation"],  # likewise
    "IsaScope": ["mha_set_thread_isa"],  # likewise
    "scaled_dot_product_attention": ["mha_scaled_dot_product_attention", "mha_scaled_dot_product_attention_cached"],
    "attention_weights": ["mha_attention_weights", "mha_attention_weights_cached"],
    "attention_statistics": ["mha_attention_statistics", "mha_attention_statistics_cached"],
    "PagedKVCache": ["mha_paged_cache_create"],  # which gives a handle as mha_cache_create() does
    "KVCache": ["mha_cache_create", "mha_cache_create_over"],
    "KVCache::config": ["mha_cache_config_of"],  # the name without "of" is that of a type
    "KVCache::keys": ["mha_cache_keys", "mha_cache_keys"],  # const or not is all one to a tensor
    "KVCache::values": ["mha_cache_values", "mha_cache_values"],
    "KVCache::rollback": ["mha_cache_rollback_by", "mha_cache_rollback"],
    "linear": ["mha_linear_once"],  # mha_linear is a type
    "Experts::config": ["mha_experts_config_of"],  # the name without "of" is that of a type
    "MultiHeadAttention::config": ["mha_layer_config_of"],
    "RotaryEmbedding::pairs": ["mha_rotary_pairs_of"],  # the name without "of" is that of a type
    "MultiHeadAttention::forward": ["mha_layer_forward", "mha_layer_forward_cached"],
    "MultiHeadAttention::forward_varlen": ["mha_layer_forward_varlen", "mha_layer_forward_varlen_cached"],
    "Norm": ["mha_norm_destroy"],
    "LayerNorm": ["mha_norm_create"],
    "RMSNorm": ["mha_rms_norm_create"],
    "Norm::kind": ["mha_norm_kind_of"],  # the name without "of" is that of a type
    "TransformerStack::layer": ["mha_transformer_layer_of"],
    # Statuses.
    "DTypeError": [],
    "AllocationError": [],
    "AllocationError::what": [],
    "Cancelled": [],
    "Cancelled::what": [],
    # For the library itself.
    "KVCache::storage": [],
    "MultiHeadAttention::packed": [],
    "Linear::packed": [],
    "FeedForward::packed": [],
    "Experts::packed": [],
    "Norm::weights": [],
    "RotaryEmbedding::table": [],
}

STRUCTS = {
    "BasicFeedForwardWeights": "mha_feed_forward_weights",
    "BasicLinearWeights": "mha_linear_weights",
    "BasicMultiHeadAttentionWeights": "mha_layer_weights",
    "BasicTensorView": "mha_tensor",
    "ActivationGradients": "mha_activation_gradients",
    "AdamWStep": "mha_adamw_step",
    "AttentionOptions": "mha_attention_options",
    "AttentionGradients": "mha_attention_gradients",
    "AttentionRecord": "mha_attention_record",
    "AttentionStatistics": "mha_statistics",
    "CrossEntropyGradients": "mha_cross_entropy_gradients",
    "CrossEntropyOptions": "mha_cross_entropy_options",
    "EmbeddingTables": "mha_embedding_tables",
    "Executor": "mha_executor",
    "ExpertsConfig": "mha_experts_config",
    "KVCacheConfig": "mha_cache_config",
    "LinearGradients": "mha_linear_gradients",
    "MaxSimOptions": "mha_maxsim_options",
    "MultiHeadAttentionConfig": "mha_layer_config",
    "NormGradients": "mha_norm_gradients",
    "PagedKVCacheConfig": "mha_paged_cache_config",
    "QueryAndDocument": "mha_query_and_document",
    "QueryKeySteps": "mha_query_key_steps",
    "RaggedBatch": "mha_ragged_batch",
    "TokenMatrices": "mha_token_matrices",
    "TransformerExtras": "mha_transformer_extras",
    "TransformerLayer": "mha_transformer_layer",
}

# What stands for an element of 16 bits is uint16_t in C.
ELEMENTS = {"BFloat16", "Float16"}


def members(header: str) -> list[str]:
    """Public member functions of marked classes, as often as they are declared; none of those that any class has."""
    names = []
    for name, body in re.findall(r"^class MHA_API (\w+)[^;{]*{(.*?)^};", header, re.M | re.S):
        public = body.partition(" private:")[0]
        for member in re.findall(r"^  (?!struct|explicit|~)(?=\w)[^;(]*?(\w+|operator\W+)\(", public, re.M):
            if member != name and not member.startswith("operator"):
                names.append(f"{name}::{member}")
    return names


def entry_points(header: str) -> Counter[str]:
    """Functions and classes that are marked, and members; how often each is declared."""
    return Counter([*("".join(pair) for pair in MARKED.findall(header)), *members(header)])


def expected_in_c(entry: str) -> list[str]:
    name, _, member = entry.partition("::")
    if entry in OTHER_NAMES:
        return OTHER_NAMES[entry]
    if name in HANDLES:
        return [f"mha_{HANDLES[name]}_{part}" for part in ([member] if member else ["create", "destroy"])]
    return [f"mha_{entry}"]


def fields(body: str) -> list[str]:
    """Names of the fields in the body of a struct, in either language."""
    body = re.sub(r"=[^,;]*", "", body)
    while body != (body := re.sub(r"{[^{}]*}", ";", body)):  # bodies of functions
        pass
    body = re.sub(r"\(\*(\w+)\)\([^;]*\)", r"\1", body)  # pointers to functions
    return [
        name
        for statement in body.split(";")
        if "(" not in statement
        for name in re.findall(r"(\w+)\s*(?=,|$)", statement.strip())
    ]


CPP_STRUCTS = dict(re.findall(r"^(?:template <class \w+> )?struct (\w+) {(.*?)^};", CPP, re.M | re.S))
C_STRUCTS = dict(re.findall(r"^typedef struct (\w+) {(.*?)^} \1;", C, re.M | re.S))
ENTRY_POINTS = entry_points(CPP)


@pytest.mark.parametrize("entry", sorted(ENTRY_POINTS))
def test_what_can_be_called_from_cpp_can_be_called_from_c(entry: str) -> None:
    names = expected_in_c(entry)
    assert set(names) <= marked(C)
    if names and entry not in HANDLES:
        assert len(names) == ENTRY_POINTS[entry], "each overload needs a name of its own"


def test_the_lists_name_what_there_is() -> None:
    assert set(OTHER_NAMES) | set(HANDLES) <= set(ENTRY_POINTS)
    assert set(STRUCTS) | ELEMENTS == set(CPP_STRUCTS)


@pytest.mark.parametrize("name", sorted(CPP_STRUCTS.keys() - ELEMENTS))
def test_structs_have_the_same_fields(name: str) -> None:
    assert name in STRUCTS, "a struct needs one in C"
    assert fields(C_STRUCTS[STRUCTS[name]]) == fields(CPP_STRUCTS[name]) != []


def test_enumerations_have_the_same_values() -> None:
    in_cpp = [re.findall(r"\w+", body) for body in re.findall(r"^enum class \w+[^{]*{([^}]*)}", CPP, re.M)]
    in_c = [re.findall(r"(\w+)[^,]*", body.lower()) for body in re.findall(r"^enum {([^}]*)}", C, re.M)]
    assert len(in_cpp) == 8
    for values in in_cpp:
        same = [
            other
            for other in in_c
            if len(other) == len(values)
            and all(c.endswith(f"_{value}") for c, value in zip(other, values, strict=True))
        ]
        assert same, values


HEADER = declarations("""
MHA_API void attend(const TensorView& query,
                    int threads = 0);
class MHA_API Cache {
 public:
  explicit Cache(int size);
  ~Cache();
  Cache& operator=(Cache&&) noexcept;
  /// Not a declaration: append(x);
  void append(int count,
              const Index* lengths = nullptr);
  void append(const Array& array);
  struct Outputs {
    Array keys;
  };
  const Index* lengths() const { return lengths_; }

 private:
  void grow();
};
""")


def test_entry_points_are_found() -> None:
    assert entry_points(HEADER) == Counter(
        {"attend": 1, "Cache": 1, "Cache::append": 2, "Cache::lengths": 1},
    )


def test_fields_are_found() -> None:
    cpp = """
  View mask = {};
  bool add, both = false;
  void (*run)(void* state, void (*body)(int i)) = nullptr;
  double scale = std::numeric_limits<double>::quiet_NaN();
  Index sum() const { return Index{add} + 1; }
  const Index* const* lengths = nullptr;
"""
    c = "const mha_tensor* mask; bool add, both; void (*run)(void*); double scale; const int64_t *const *lengths;"
    assert fields(cpp) == fields(c) == ["mask", "add", "both", "run", "scale", "lengths"]
