/* The library for C and for whatever calls C: what the headers *.hpp have, without exceptions.
 *
 * Functions that can fail return a status; when it is not MHA_OK nothing has been written, and mha_last_error() has the
 * sentence. Pointers that may be null say so. Enumerations are int, so that other languages know their size. Shapes,
 * rules and axis letters are those of attention.hpp, multi_head_attention.hpp and kv_cache.hpp. Functions may be called
 * from several threads at once, those that change a cache one at a time for each cache. */
#ifndef MHA_MHA_H
#define MHA_MHA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mha/export.h"

#ifdef __cplusplus
#define MHA_NOEXCEPT noexcept
extern "C" {
#else
#define MHA_NOEXCEPT
#endif

typedef int mha_status;
enum {
  MHA_OK = 0,
  MHA_INVALID_ARGUMENT, /* a shape or a value breaks a rule */
  MHA_DTYPE_ERROR,      /* an element type breaks a rule */
  MHA_OUT_OF_MEMORY,
  MHA_OTHER_ERROR /* none of these */
};

/* Why the latest call of this thread that returned a status failed; "" if it did not. Valid until the next one. */
MHA_API const char* mha_last_error(void) MHA_NOEXCEPT;

/* "major.minor.patch" */
MHA_API const char* mha_version(void) MHA_NOEXCEPT;
/* The instruction set that calls use; null, and a sentence in mha_last_error(), if the environment asks for one that is
 * not there. */
MHA_API const char* mha_active_isa(void) MHA_NOEXCEPT;
/* For the whole process; null or "" goes back to the environment and detection. */
MHA_API mha_status mha_set_isa(const char* name) MHA_NOEXCEPT;
/* What num_threads = 0 of a call stands for; set for the whole process, 0 goes back to the environment and detection. */
MHA_API int mha_num_threads(void) MHA_NOEXCEPT;
MHA_API mha_status mha_set_num_threads(int num_threads) MHA_NOEXCEPT;

/* A pool of threads of the caller; see executor.hpp for the contract. */
typedef struct mha_executor {
  void (*parallel_for)(void* state, int count, void (*body)(void* context, int i), void* context);
  void* state;
  int num_threads;
} mha_executor;
/* What calls of this thread compute on from now on; it is copied. Null: the threads of the library. */
MHA_API mha_status mha_set_executor(const mha_executor* executor) MHA_NOEXCEPT;

/* MHA_DTYPE_f32, MHA_DTYPE_f64, ... and MHA_DTYPE_boolean, which is one byte, 0 or 1, for masks. */
typedef int mha_dtype;
enum {
#define MHA_DTYPE(name, scalar, accumulator) MHA_DTYPE_##name,
#include "mha/dtypes.def"
#undef MHA_DTYPE
  MHA_DTYPE_boolean
};

/* A borrowed array of up to four axes. Strides count elements and may be zero or negative. Memory is written to only if
 * the tensor is given as an output. */
typedef struct mha_tensor {
  void* data;
  mha_dtype dtype;
  int rank;
  ptrdiff_t extents[4];
  ptrdiff_t strides[4];
} mha_tensor;
/* A dense row-major array: mha_dense(x, MHA_DTYPE_f32, 3, (ptrdiff_t[]){H, T, D}). Of more than four axes none is
 * kept. */
MHA_API mha_tensor mha_dense(const void* data, mha_dtype dtype, int rank, const ptrdiff_t* extents) MHA_NOEXCEPT;

/* AttentionOptions; begin with those of mha_default_options(). Where options may be null, that stands for these. */
typedef struct mha_attention_options {
  const mha_tensor* attn_mask; /* may be null, as all pointers here */
  const mha_tensor* key_mask;
  bool is_causal;
  int64_t query_offset;
  const int64_t* query_offsets; /* [B] */
  const int64_t* key_lengths;   /* [B] */
  int64_t window_left, window_right;
  double scale;
  double softcap;
  const mha_tensor* alibi_slopes;
  const mha_tensor* sinks;
  int num_threads;
} mha_attention_options;
MHA_API mha_attention_options mha_default_options(void) MHA_NOEXCEPT;

/* lse and options may be null. */
MHA_API mha_status mha_scaled_dot_product_attention(const mha_tensor* query, const mha_tensor* key,
                                                    const mha_tensor* value, const mha_tensor* out,
                                                    const mha_tensor* lse,
                                                    const mha_attention_options* options) MHA_NOEXCEPT;

/* Where the sequences of a ragged batch lie: RaggedBatch. */
typedef struct mha_ragged_batch {
  ptrdiff_t size;
  const int64_t* cu_seqlens_q; /* [size + 1] */
  const int64_t* cu_seqlens_k; /* [size + 1] */
} mha_ragged_batch;
MHA_API mha_status mha_scaled_dot_product_attention_varlen(const mha_tensor* query, const mha_tensor* key,
                                                           const mha_tensor* value, const mha_ragged_batch* batch,
                                                           const mha_tensor* out, const mha_tensor* lse,
                                                           const mha_attention_options* options) MHA_NOEXCEPT;

typedef int mha_score_stage;
enum { MHA_SCORES_SCALED, MHA_SCORES_CAPPED, MHA_SCORES_MASKED, MHA_WEIGHTS };
MHA_API mha_status mha_attention_weights(const mha_tensor* query, const mha_tensor* key, const mha_tensor* weights,
                                         const mha_attention_options* options, mha_score_stage stage) MHA_NOEXCEPT;

/* AttentionStatistics; each may be null. */
typedef struct mha_statistics {
  const mha_tensor* entropy;
  const mha_tensor* max_weight;
  int64_t* max_key; /* [B, H, Tq] */
  const mha_tensor* mean_distance;
  const mha_tensor* received_weight;
} mha_statistics;
MHA_API mha_status mha_attention_statistics(const mha_tensor* query, const mha_tensor* key,
                                            const mha_statistics* results,
                                            const mha_attention_options* options) MHA_NOEXCEPT;

/* outs and lses have `shards` tensors each; lse may be null. The rules are those of merge_attention.hpp. */
MHA_API mha_status mha_merge_attention(const mha_tensor* outs, const mha_tensor* lses, ptrdiff_t shards,
                                       const mha_tensor* out, const mha_tensor* lse, int num_threads) MHA_NOEXCEPT;

/* Keys and values of the tokens so far: KVCache. */
typedef struct mha_cache mha_cache;
typedef struct mha_cache_config {
  ptrdiff_t batch_size, num_kv_heads, capacity, head_dim;
  ptrdiff_t value_head_dim; /* 0: head_dim */
  mha_dtype dtype;
} mha_cache_config;
MHA_API mha_status mha_cache_create(const mha_cache_config* config, mha_cache** cache) MHA_NOEXCEPT;
MHA_API void mha_cache_destroy(mha_cache* cache) MHA_NOEXCEPT; /* may be null */
/* [B], which stays where it is */
MHA_API const int64_t* mha_cache_lengths(const mha_cache* cache) MHA_NOEXCEPT;
/* [B, Hk, capacity, D], all of the memory; values [B, Hk, capacity, Dv] */
MHA_API mha_tensor mha_cache_keys(mha_cache* cache) MHA_NOEXCEPT;
MHA_API mha_tensor mha_cache_values(mha_cache* cache) MHA_NOEXCEPT;
/* new_lengths, counts [B]; new_lengths may be null */
MHA_API mha_status mha_cache_append(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                    const int64_t* new_lengths) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_advance(mha_cache* cache, ptrdiff_t count, const int64_t* new_lengths) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_rollback(mha_cache* cache, const int64_t* counts) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_reorder(mha_cache* cache, const int64_t* index) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_keep_last(mha_cache* cache, int64_t count) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_clear(mha_cache* cache) MHA_NOEXCEPT;

/* The layer: MultiHeadAttention. Immutable; the weights are copied. */
typedef struct mha_layer mha_layer;
typedef struct mha_layer_config { /* zeros stand for the usual choice: see MultiHeadAttentionConfig */
  ptrdiff_t embed_dim, num_heads, num_kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim;
  bool add_bias_kv, add_zero_attn;
} mha_layer_config;
typedef struct mha_layer_weights { /* [out_features, in_features]; biases and added_* may be null */
  const mha_tensor *query_weight, *key_weight, *value_weight, *out_weight;
  const mha_tensor *query_bias, *key_bias, *value_bias, *out_bias;
  const mha_tensor *added_key, *added_value;
} mha_layer_weights;
MHA_API mha_status mha_layer_create(const mha_layer_config* config, const mha_layer_weights* weights,
                                    mha_layer** layer) MHA_NOEXCEPT;
MHA_API void mha_layer_destroy(mha_layer* layer) MHA_NOEXCEPT; /* may be null */
/* weights and options may be null. */
MHA_API mha_status mha_layer_forward(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                     const mha_tensor* value, const mha_tensor* out, const mha_tensor* weights,
                                     const mha_attention_options* options) MHA_NOEXCEPT;
MHA_API mha_status mha_layer_forward_varlen(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                            const mha_tensor* value, const mha_ragged_batch* batch,
                                            const mha_tensor* out, const mha_attention_options* options) MHA_NOEXCEPT;
/* Over a cache, to which the tokens of the call are appended; new_lengths may be null, too. */
MHA_API mha_status mha_layer_forward_cached(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                            const mha_tensor* value, mha_cache* cache, const mha_tensor* out,
                                            const mha_tensor* weights, const mha_attention_options* options,
                                            const int64_t* new_lengths) MHA_NOEXCEPT;
/* Over what is in a cache, appending nothing. */
MHA_API mha_status mha_layer_attend(const mha_layer* layer, const mha_tensor* query, const mha_cache* cache,
                                    const mha_tensor* out, const mha_tensor* weights,
                                    const mha_attention_options* options) MHA_NOEXCEPT;
MHA_API mha_status mha_layer_append_to(const mha_layer* layer, mha_cache* cache, const mha_tensor* key,
                                       const mha_tensor* value, const int64_t* new_lengths,
                                       int num_threads) MHA_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
