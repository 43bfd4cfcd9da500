/* The library for C and for languages that call C: everything in the headers *.hpp, without exceptions.
 *
 * Functions that can fail return a status. If it is not MHA_OK, mha_last_error() has a sentence, and the call has
 * written nothing, except to the outputs of a cancelled call. Pointers must not be null unless a comment allows it.
 * Enumerations are int, so that other languages know their size. Comments name a function or class of a header *.hpp,
 * which defines shapes, rules and axis letters. You may call functions from several threads at once; a call that
 * changes a cache must run alone on that cache.
 *
 * The library checks dtypes, ranks, shapes, strides, options, enumerators, the entries of arrays of integers, overlaps,
 * and null pointers to structs, handles and elements of tensors; an empty tensor needs no memory. It cannot check the
 * size of memory, or that a handle has not been destroyed. Functions that return no status accept no null, except
 * mha_..._destroy().
 *
 * The caller owns the result of mha_..._create() until mha_..._destroy(). The result copies its arguments, and is
 * immutable unless it is a cache. Zeros and nulls in a struct select the default, except in mha_attention_options,
 * which you initialize by mha_default_options(). */
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
  MHA_OTHER_ERROR, /* none of these */
  MHA_CANCELLED    /* see mha_set_cancellation() */
};

/* Why the latest call of this thread that returned a status failed; "" if it did not. Valid until the next one. */
MHA_API const char* mha_last_error(void) MHA_NOEXCEPT;

/* "major.minor.patch" */
MHA_API const char* mha_version(void) MHA_NOEXCEPT;
/* Instruction sets that were compiled in, in rising order of preference, whether this machine runs them, and a clause
 * that says why they run here or not, and may be the default or not; null, or false, and a sentence in
 * mha_last_error(), if index is not in [0, mha_num_built_isas()). */
MHA_API int mha_num_built_isas(void) MHA_NOEXCEPT;
MHA_API const char* mha_built_isa(int index) MHA_NOEXCEPT;
MHA_API bool mha_isa_supported(int index) MHA_NOEXCEPT;
MHA_API const char* mha_isa_reason(int index) MHA_NOEXCEPT;
/* The instruction set that calls use; null, and a sentence in mha_last_error(), if the environment asks for one that is
 * not there. */
MHA_API const char* mha_active_isa(void) MHA_NOEXCEPT;
/* One sentence: why it is that; null as above. */
MHA_API const char* mha_active_isa_reason(void) MHA_NOEXCEPT;
/* For the whole process; null or "" goes back to the environment and detection. */
MHA_API mha_status mha_set_isa(const char* name) MHA_NOEXCEPT;
/* mha_built_isa(index) for all later calls of this thread, also while another thread calls mha_set_isa(); -1: as that
 * says. For several calls whose results must fit each other. */
MHA_API mha_status mha_set_thread_isa(int index) MHA_NOEXCEPT;
/* The instruction set of the latest call of this thread that computed; "" before the first. */
MHA_API const char* mha_last_used_isa(void) MHA_NOEXCEPT;
/* The default for num_threads = 0, for the whole process; setting 0 goes back to the environment and detection. */
MHA_API int mha_num_threads(void) MHA_NOEXCEPT;
MHA_API const char* mha_num_threads_reason(void) MHA_NOEXCEPT; /* one sentence */
MHA_API mha_status mha_set_num_threads(int num_threads) MHA_NOEXCEPT;
/* Whether this process was forked after the library was loaded: its calls are serial then. */
MHA_API bool mha_in_forked_child(void) MHA_NOEXCEPT;
/* The largest scratch memory that calls of this thread have taken, in bytes. */
MHA_API size_t mha_scratch_bytes(void) MHA_NOEXCEPT;

/* A pool of threads of the caller; see executor.hpp for the contract. */
typedef struct mha_executor {
  void (*parallel_for)(void* state, int count, void (*body)(void* context, int i), void* context);
  void* state;
  int num_threads;
} mha_executor;
/* Sets the executor, which is copied, for all later calls of this thread. Null: the library's threads. */
MHA_API mha_status mha_set_executor(const mha_executor* executor) MHA_NOEXCEPT;

/* Asked by calls of this thread from now on, now and then, whether they are to end; see cancellation.hpp. A call that is
 * told so returns MHA_CANCELLED. Null: nobody is asked. */
MHA_API mha_status mha_set_cancellation(bool (*should_cancel)(void* state), void* state) MHA_NOEXCEPT;

/* MHA_DTYPE_f32, MHA_DTYPE_f64, MHA_DTYPE_f16, MHA_DTYPE_bf16, whose elements of 16 bits are uint16_t here; and
 * MHA_DTYPE_boolean, which is one byte, 0 or 1, for masks, and MHA_DTYPE_int8 for weights. */
typedef int mha_dtype;
enum {
#define MHA_DTYPE(name, scalar, accumulator) MHA_DTYPE_##name,
#include "mha/dtypes.def"
#undef MHA_DTYPE
  MHA_DTYPE_boolean,
  MHA_DTYPE_int8
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

/* AttentionOptions; initialize them by mha_default_options(), which null selects where options may be null. The fields,
 * with their types, are the rows of attention_options.def; their meaning is in attention.hpp. A pointer may be null:
 * the option is not given. query_offsets and key_lengths have one entry per batch element, positions one per row. */
typedef struct mha_attention_options {
#define MHA_OPTION(field, type, argument, reading) type field;
#include "mha/attention_options.def"
#undef MHA_OPTION
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
  const int64_t* sequences;    /* [size] or null: over a cache, which sequence of it each one continues */
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

/* AttentionGradients; each may be null. dlse may be null, too. attention_gradient.hpp has the rules. */
typedef struct mha_attention_gradients {
  const mha_tensor* query;
  const mha_tensor* key;
  const mha_tensor* value;
  const mha_tensor* attn_mask;
  const mha_tensor* alibi_slopes;
  const mha_tensor* position_bias;
  const mha_tensor* sinks;
} mha_attention_gradients;
MHA_API mha_status mha_attention_gradient(const mha_tensor* query, const mha_tensor* key, const mha_tensor* value,
                                          const mha_tensor* out, const mha_tensor* lse, const mha_tensor* dout,
                                          const mha_attention_gradients* gradients,
                                          const mha_attention_options* options, const mha_tensor* dlse) MHA_NOEXCEPT;
MHA_API mha_status mha_attention_gradient_varlen(const mha_tensor* query, const mha_tensor* key,
                                                 const mha_tensor* value, const mha_ragged_batch* batch,
                                                 const mha_tensor* out, const mha_tensor* lse, const mha_tensor* dout,
                                                 const mha_attention_gradients* gradients,
                                                 const mha_attention_options* options,
                                                 const mha_tensor* dlse) MHA_NOEXCEPT;

/* outs and lses have `shards` tensors each; lse may be null. merge_attention.hpp has the rules. */
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
/* Over memory of the caller's, which must outlive the cache; lengths: [B] or null */
MHA_API mha_status mha_cache_create_over(const mha_tensor* keys, const mha_tensor* values, const int64_t* lengths,
                                         mha_cache** cache) MHA_NOEXCEPT;
MHA_API void mha_cache_destroy(mha_cache* cache) MHA_NOEXCEPT; /* may be null */
/* The sizes with every zero resolved. */
MHA_API mha_cache_config mha_cache_config_of(const mha_cache* cache) MHA_NOEXCEPT;
/* [B], which stays where it is */
MHA_API const int64_t* mha_cache_lengths(const mha_cache* cache) MHA_NOEXCEPT;
/* The largest of them once `count` tokens, or the first new_lengths[b] of them, are appended; new_lengths: [B] or
 * null. */
MHA_API ptrdiff_t mha_cache_longest(const mha_cache* cache, ptrdiff_t count, const int64_t* new_lengths) MHA_NOEXCEPT;
/* [B, Hk, capacity, D], all of the memory; values [B, Hk, capacity, Dv] */
MHA_API mha_tensor mha_cache_keys(mha_cache* cache) MHA_NOEXCEPT;
MHA_API mha_tensor mha_cache_values(mha_cache* cache) MHA_NOEXCEPT;
/* new_lengths, counts [B]; new_lengths may be null */
MHA_API mha_status mha_cache_append(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                    const int64_t* new_lengths) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_assign(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                    const int64_t* new_lengths) MHA_NOEXCEPT;
/* Of a cache of int8 the scales of keys and values, [B, Hk, capacity, 1]; of others no tensors, of rank 0. */
MHA_API mha_tensor mha_cache_key_scales(const mha_cache* cache) MHA_NOEXCEPT;
MHA_API mha_tensor mha_cache_value_scales(const mha_cache* cache) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_copy_key_scales(const mha_cache* cache, const mha_tensor* out) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_copy_value_scales(const mha_cache* cache, const mha_tensor* out) MHA_NOEXCEPT;
/* mha_cache_assign() with tokens of a cache of int8 as they are stored, and their scales [B, Hk, T, 1]. */
MHA_API mha_status mha_cache_assign_stored(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                           const mha_tensor* key_scale, const mha_tensor* value_scale,
                                           const int64_t* new_lengths) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_advance(mha_cache* cache, ptrdiff_t count, const int64_t* new_lengths) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_rollback(mha_cache* cache, const int64_t* counts) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_rollback_by(mha_cache* cache, int64_t count) MHA_NOEXCEPT; /* of each sequence */
MHA_API mha_status mha_cache_reorder(mha_cache* cache, const int64_t* index) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_keep_last(mha_cache* cache, int64_t count) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_clear(mha_cache* cache) MHA_NOEXCEPT;
/* Attention to the tokens of a cache in place of key and value: scaled_dot_product_attention and its like. out, or `to`,
 * [B, H, Tq, longest]; lse may be null. */
MHA_API mha_status mha_scaled_dot_product_attention_cached(const mha_tensor* query, const mha_cache* cache,
                                                           const mha_tensor* out, const mha_tensor* lse,
                                                           const mha_attention_options* options) MHA_NOEXCEPT;
MHA_API mha_status mha_attention_weights_cached(const mha_tensor* query, const mha_cache* cache,
                                                const mha_tensor* weights, const mha_attention_options* options,
                                                mha_score_stage stage) MHA_NOEXCEPT;
MHA_API mha_status mha_attention_statistics_cached(const mha_tensor* query, const mha_cache* cache,
                                                   const mha_statistics* results,
                                                   const mha_attention_options* options) MHA_NOEXCEPT;
/* Copies to dense rows [B, Hk, T, D] and [B, Hk, T, Dv], with zeros after the tokens of each sequence. */
MHA_API mha_status mha_cache_copy_keys(const mha_cache* cache, const mha_tensor* out) MHA_NOEXCEPT;
MHA_API mha_status mha_cache_copy_values(const mha_cache* cache, const mha_tensor* out) MHA_NOEXCEPT;

/* The same in pages, which sequences share: PagedKVCache. All functions of a cache take it, and mha_cache_destroy. */
typedef struct mha_paged_cache_config {
  ptrdiff_t num_pages, page_size; /* page_size: a multiple of 64 */
  ptrdiff_t batch_size, num_kv_heads, head_dim;
  ptrdiff_t value_head_dim; /* 0: head_dim */
  mha_dtype dtype;
} mha_paged_cache_config;
MHA_API mha_status mha_paged_cache_create(const mha_paged_cache_config* config, mha_cache** cache) MHA_NOEXCEPT;
/* 0 or null for a cache without pages, and for a sequence that does not exist. The table has mha_paged_cache_pages_of()
 * entries. */
MHA_API ptrdiff_t mha_paged_cache_num_pages(const mha_cache* cache) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_paged_cache_page_size(const mha_cache* cache) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_paged_cache_free_pages(const mha_cache* cache) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_paged_cache_pages_of(const mha_cache* cache, ptrdiff_t sequence) MHA_NOEXCEPT;
MHA_API const int32_t* mha_paged_cache_page_table(const mha_cache* cache, ptrdiff_t sequence) MHA_NOEXCEPT;
MHA_API bool mha_paged_cache_check_pages(const mha_cache* cache) MHA_NOEXCEPT; /* always true */
/* length: -1 for all tokens */
MHA_API mha_status mha_paged_cache_fork(mha_cache* cache, ptrdiff_t sequence, ptrdiff_t into,
                                        ptrdiff_t length) MHA_NOEXCEPT;
MHA_API mha_status mha_paged_cache_release(mha_cache* cache, ptrdiff_t sequence) MHA_NOEXCEPT;
/* The N pages that sequences have, each once: rows is mha_cache_keys(), mha_cache_values() or their scales, and out
 * [N, Hk, page_size, columns]. */
MHA_API mha_status mha_paged_cache_copy_pages(const mha_cache* cache, const mha_tensor* rows,
                                              const mha_tensor* out) MHA_NOEXCEPT;
/* Replaces everything by N such pages. tables [B, table_columns]: the pages of each sequence, 0 to N - 1, then -1;
 * lengths [B]. The scales are null unless the cache is of int8. */
MHA_API mha_status mha_paged_cache_assign_pages(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                                const mha_tensor* key_scale, const mha_tensor* value_scale,
                                                const int64_t* tables, ptrdiff_t table_columns,
                                                const int64_t* lengths) MHA_NOEXCEPT;

/* How the weights of projections are stored: MHA_WEIGHT_FORMAT_ and the constant of a row of weight_formats.def, such as
 * MHA_WEIGHT_FORMAT_PLAIN or MHA_WEIGHT_FORMAT_INT8. */
typedef int mha_weight_format;
enum {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) MHA_WEIGHT_FORMAT_##constant,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
};

/* The weights of one linear map, y = x W^T + b: LinearWeights. bias and scale may be null. */
typedef struct mha_linear_weights {
  const mha_tensor* weight;       /* [out_features, in_features]; in blocks [out_features, bytes of a row], of int8 */
  const mha_tensor* bias;         /* [out_features] */
  const mha_tensor* scale;        /* [out_features], of a matrix in int8 */
  mha_weight_format block_format; /* of a matrix in blocks; 0: it has numbers */
} mha_linear_weights;

/* A table of rotary positions: RotaryEmbedding. */
typedef int mha_rotary_pairs;
enum { MHA_ROTARY_HALVES, MHA_ROTARY_NEIGHBOURS };
typedef struct mha_rotary mha_rotary;
/* cos, sin: [P, R / 2], of positions 0 to P - 1, float32; float64 for layers in float64. */
MHA_API mha_status mha_rotary_create(const mha_tensor* cos, const mha_tensor* sin, mha_rotary_pairs pairs,
                                     mha_rotary** rotary) MHA_NOEXCEPT;
MHA_API void mha_rotary_destroy(mha_rotary* rotary) MHA_NOEXCEPT; /* may be null */
/* Rotates rows, [B, H, T, D] or without leading axes, by their positions, [B, T] or null: 0 to T - 1; or backwards, by
 * minus the angles. out: of the shape of x, which it may be, but must not overlap otherwise. */
MHA_API mha_status mha_rotary_rotate(const mha_rotary* rotary, const mha_tensor* x, const int64_t* positions,
                                     const mha_tensor* out, bool backwards, int num_threads) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_rotary_max_positions(const mha_rotary* rotary) MHA_NOEXCEPT; /* P */
MHA_API ptrdiff_t mha_rotary_rotary_dim(const mha_rotary* rotary) MHA_NOEXCEPT;    /* R */
MHA_API mha_rotary_pairs mha_rotary_pairs_of(const mha_rotary* rotary) MHA_NOEXCEPT;
MHA_API mha_dtype mha_rotary_dtype(const mha_rotary* rotary) MHA_NOEXCEPT;
/* The table, to be read only. */
MHA_API mha_tensor mha_rotary_cos(const mha_rotary* rotary) MHA_NOEXCEPT;
MHA_API mha_tensor mha_rotary_sin(const mha_rotary* rotary) MHA_NOEXCEPT;

/* The layer: MultiHeadAttention. */
typedef struct mha_layer mha_layer;
typedef struct mha_layer_config { /* zeros stand for the usual choice: see MultiHeadAttentionConfig */
  ptrdiff_t embed_dim, num_heads, num_kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim;
  bool add_bias_kv, add_zero_attn;
  mha_weight_format weight_format;
} mha_layer_config;
typedef struct mha_layer_weights {
  mha_linear_weights query, key, value, out;
  const mha_tensor *added_key, *added_value; /* with add_bias_kv, else null */
} mha_layer_weights;
MHA_API mha_status mha_layer_create(const mha_layer_config* config, const mha_layer_weights* weights,
                                    mha_layer** layer) MHA_NOEXCEPT;
typedef struct mha_norm mha_norm; /* a norm: mha_norm_create() */
/* Steps that are applied to queries and keys before attention: QueryKeySteps. Each may be null. */
typedef struct mha_query_key_steps {
  const mha_norm *query_norm, *key_norm; /* of [D], or of [H D] and [Hk D] */
  const mha_rotary* rotary;
} mha_query_key_steps;
/* The same with such steps, which may be null. The layer shares them: handles may be destroyed. */
MHA_API mha_status mha_layer_create_with_steps(const mha_layer_config* config, const mha_layer_weights* weights,
                                               const mha_query_key_steps* steps, mha_layer** layer) MHA_NOEXCEPT;
MHA_API void mha_layer_destroy(mha_layer* layer) MHA_NOEXCEPT; /* may be null */
/* The steps of a layer; they live as long as the layer, and must not be destroyed. */
MHA_API mha_query_key_steps mha_layer_steps(const mha_layer* layer) MHA_NOEXCEPT;
/* The sizes with every zero resolved. */
MHA_API mha_layer_config mha_layer_config_of(const mha_layer* layer) MHA_NOEXCEPT;
/* The formats of the matrices of query, key, value and out. */
MHA_API void mha_layer_weight_formats(const mha_layer* layer, mha_weight_format formats[4]) MHA_NOEXCEPT;
MHA_API mha_dtype mha_layer_dtype(const mha_layer* layer) MHA_NOEXCEPT;
/* Copies the weights out again, into those tensors of `outputs` that are not null. */
MHA_API mha_status mha_layer_copy_weights(const mha_layer* layer, const mha_layer_weights* outputs) MHA_NOEXCEPT;
/* weights and options may be null. */
MHA_API mha_status mha_layer_forward(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                     const mha_tensor* value, const mha_tensor* out, const mha_tensor* weights,
                                     const mha_attention_options* options) MHA_NOEXCEPT;
MHA_API mha_status mha_layer_forward_varlen(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                            const mha_tensor* value, const mha_ragged_batch* batch,
                                            const mha_tensor* out, const mha_attention_options* options) MHA_NOEXCEPT;
/* AttentionRecord; multi_head_attention.hpp has the rules. */
typedef struct mha_attention_record {
  const mha_tensor* query;
  const mha_tensor* key;
  const mha_tensor* value;
  const mha_tensor* heads;
  const mha_tensor* lse;
} mha_attention_record;
/* Either, which also writes a record for the gradients. batch is null for a dense call; options may be null. */
MHA_API mha_status mha_layer_forward_and_record(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                                const mha_tensor* value, const mha_ragged_batch* batch,
                                                const mha_attention_record* record, const mha_tensor* out,
                                                const mha_attention_options* options) MHA_NOEXCEPT;
/* Over a cache, to which the tokens of the call are appended; new_lengths may be null, too. */
MHA_API mha_status mha_layer_forward_cached(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                            const mha_tensor* value, mha_cache* cache, const mha_tensor* out,
                                            const mha_tensor* weights, const mha_attention_options* options,
                                            const int64_t* new_lengths) MHA_NOEXCEPT;
/* The same for a ragged batch, whose `sequences` name sequences of the cache. */
MHA_API mha_status mha_layer_forward_varlen_cached(const mha_layer* layer, const mha_tensor* query,
                                                   const mha_tensor* key, const mha_tensor* value,
                                                   const mha_ragged_batch* batch, mha_cache* cache,
                                                   const mha_tensor* out,
                                                   const mha_attention_options* options) MHA_NOEXCEPT;
/* Attends to the tokens in a cache, without appending any. */
MHA_API mha_status mha_layer_attend(const mha_layer* layer, const mha_tensor* query, const mha_cache* cache,
                                    const mha_tensor* out, const mha_tensor* weights,
                                    const mha_attention_options* options) MHA_NOEXCEPT;
MHA_API mha_status mha_layer_append_to(const mha_layer* layer, mha_cache* cache, const mha_tensor* key,
                                       const mha_tensor* value, const int64_t* new_lengths,
                                       int num_threads) MHA_NOEXCEPT;

/* Row t of out, [T, E], becomes sines and cosines of the position first_position + t: sinusoidal_positions. */
MHA_API mha_status mha_sinusoidal_positions(const mha_tensor* out, int64_t first_position) MHA_NOEXCEPT;

/* The tables of mha_embed_tokens(): EmbeddingTables. Neighbours along E are contiguous. */
typedef struct mha_embedding_tables {
  const mha_tensor* words;       /* [V, E] */
  const mha_tensor* positions;   /* [P, E] */
  const mha_tensor* norm_weight; /* [E] or null: 1 */
  const mha_tensor* norm_bias;   /* [E] or null: 0 */
  double norm_eps;
} mha_embedding_tables;
/* Row i of out, [N, E], becomes the layer norm of words[tokens[i]] + positions[places[i]]. tokens: [N], in [0, V).
 * places: [N], in [0, P), or null: the place of each token in its text. cu_seqlens: [batch_size + 1], text b has the
 * tokens [cu_seqlens[b], cu_seqlens[b + 1]). out must not overlap a table, and its neighbours along E lie next to each
 * other. */
MHA_API mha_status mha_embed_tokens(const int64_t* tokens, const int64_t* places, const int64_t* cu_seqlens,
                                    ptrdiff_t batch_size, const mha_embedding_tables* tables, const mha_tensor* out,
                                    int num_threads) MHA_NOEXCEPT;
/* Row b of out, [batch_size, E], becomes the mean of the rows of text b of x, [N, E], or that scaled to length 1. out
 * must not overlap x. */
MHA_API mha_status mha_mean_pool(const mha_tensor* x, const int64_t* cu_seqlens, ptrdiff_t batch_size, bool normalize,
                                 const mha_tensor* out, int num_threads) MHA_NOEXCEPT;

/* Row v of out, [V, E], becomes the sum of the rows i of dout, [..., E], with ids[i] = v. ids: one for each row, in
 * [0, V). out must not overlap dout. */
MHA_API mha_status mha_embedding_gradient(const int64_t* ids, const mha_tensor* dout, const mha_tensor* out,
                                          int num_threads) MHA_NOEXCEPT;

/* What becomes of the losses of rows: Reduction. */
typedef int mha_reduction;
enum { MHA_REDUCTION_MEAN, MHA_REDUCTION_SUM, MHA_REDUCTION_NONE };
typedef struct mha_cross_entropy_options {
  int64_t ignore_index;
  double label_smoothing;
  mha_reduction reduction;
  int num_threads;
} mha_cross_entropy_options;
/* Where gradients of the loss go: CrossEntropyGradients; each may be null. */
typedef struct mha_cross_entropy_gradients {
  const mha_tensor *x, *weight, *bias;
} mha_cross_entropy_gradients;
/* weight: [V, E]; bias: [V] or null; targets: one for each row of x, [..., E]; loss: [N], with a reduction [1]. gradients
 * may be null; options, too: the defaults of CrossEntropyOptions. */
MHA_API mha_status mha_cross_entropy(const mha_tensor* x, const mha_tensor* weight, const mha_tensor* bias,
                                     const int64_t* targets, const mha_tensor* loss,
                                     const mha_cross_entropy_gradients* gradients,
                                     const mha_cross_entropy_options* options) MHA_NOEXCEPT;

/* Matrices of token vectors, one after another: TokenMatrices. scale is null but for int8. */
typedef struct mha_token_matrices {
  const mha_tensor *tokens, *scale;
  ptrdiff_t count;
  const int64_t* cu_seqlens; /* [count + 1] */
} mha_token_matrices;
/* The numbers of a query and a document: QueryAndDocument. */
typedef struct mha_query_and_document {
  int64_t query, document;
} mha_query_and_document;
typedef struct mha_maxsim_options {
  const mha_query_and_document* pairs; /* null: every query with every document */
  ptrdiff_t pair_count;
  int num_threads;
} mha_maxsim_options;
/* scores: [queries, documents], with pairs [pair_count]. options may be null: the defaults of MaxSimOptions. */
MHA_API mha_status mha_maxsim(const mha_token_matrices* queries, const mha_token_matrices* documents,
                              const mha_tensor* scores, const mha_maxsim_options* options) MHA_NOEXCEPT;
/* x: [T, D] f32; integers: [T, D] int8; scale: [T] f32. */
MHA_API mha_status mha_quantize_tokens(const mha_tensor* x, const mha_tensor* integers, const mha_tensor* scale,
                                       int num_threads) MHA_NOEXCEPT;

/* The numbers of a step of AdamW: AdamWStep, whose zeros stand for nothing. */
typedef struct mha_adamw_step {
  double lr, beta1, beta2, eps, weight_decay, gradient_norm, max_norm;
  int64_t step; /* counted from 1 */
} mha_adamw_step;
/* Changes weight, m and v in place; all are of the shape of weight. adamw.hpp has the equations. */
MHA_API mha_status mha_adamw(const mha_tensor* weight, const mha_tensor* gradient, const mha_tensor* m,
                             const mha_tensor* v, const mha_adamw_step* step, int num_threads) MHA_NOEXCEPT;
/* The root of the sum of the squares of all elements of `count` tensors. */
MHA_API mha_status mha_gradient_norm(const mha_tensor* gradients, ptrdiff_t count, int num_threads,
                                     double* norm) MHA_NOEXCEPT;

/* Which norm one is: NormKind. */
typedef int mha_norm_kind;
enum { MHA_NORM_LAYER, MHA_NORM_RMS, MHA_NORM_RMS_UNIT_OFFSET };
/* mha_norm is a norm over the last axis: Norm, made as a LayerNorm ... */
/* weight: [E]; bias: [E] or null; eps: at least 0, 1e-5 for the usual choice. */
MHA_API mha_status mha_norm_create(const mha_tensor* weight, const mha_tensor* bias, double eps,
                                   mha_norm** norm) MHA_NOEXCEPT;
/* ... or as an RMSNorm. weight: [E]; unit_offset: multiply by 1 + weight; eps: at least 0, 1e-6 for the usual choice. */
MHA_API mha_status mha_rms_norm_create(const mha_tensor* weight, double eps, bool unit_offset,
                                       mha_norm** norm) MHA_NOEXCEPT;
MHA_API void mha_norm_destroy(mha_norm* norm) MHA_NOEXCEPT; /* may be null */
/* x: [..., E]; out: of the shape of x, which it may be, but must not overlap otherwise. */
MHA_API mha_status mha_norm_forward(const mha_norm* norm, const mha_tensor* x, const mha_tensor* out,
                                    int num_threads) MHA_NOEXCEPT;
/* sum = x + residual; out = norm(sum). Without a norm, null, out is null, too. norm.hpp has the rules. */
MHA_API mha_status mha_add_and_normalize(const mha_tensor* x, const mha_tensor* residual, const mha_norm* norm,
                                         const mha_tensor* sum, const mha_tensor* out, int num_threads) MHA_NOEXCEPT;
MHA_API mha_norm_kind mha_norm_kind_of(const mha_norm* norm) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_norm_embed_dim(const mha_norm* norm) MHA_NOEXCEPT;
MHA_API double mha_norm_eps(const mha_norm* norm) MHA_NOEXCEPT;
MHA_API bool mha_norm_has_bias(const mha_norm* norm) MHA_NOEXCEPT;
MHA_API mha_dtype mha_norm_dtype(const mha_norm* norm) MHA_NOEXCEPT;
/* Copies the weights out again, [E]; each may be null. */
MHA_API mha_status mha_norm_copy_weights(const mha_norm* norm, const mha_tensor* weight,
                                         const mha_tensor* bias) MHA_NOEXCEPT;

/* Where gradients of a norm go: NormGradients; each may be null. norm_gradient.hpp has the rules. */
typedef struct mha_norm_gradients {
  const mha_tensor *x, *weight, *bias;
} mha_norm_gradients;
/* weight: [E] or null; dout: of the shape of x. */
MHA_API mha_status mha_norm_gradient(mha_norm_kind kind, const mha_tensor* x, const mha_tensor* weight, double eps,
                                     const mha_tensor* dout, const mha_norm_gradients* gradients,
                                     int num_threads) MHA_NOEXCEPT;

/* x W^T + b of each row: Linear. */
typedef struct mha_linear mha_linear;
MHA_API mha_status mha_linear_create(const mha_linear_weights* weights, mha_weight_format weight_format,
                                     mha_linear** linear) MHA_NOEXCEPT;
MHA_API void mha_linear_destroy(mha_linear* linear) MHA_NOEXCEPT; /* may be null */
/* x: [..., in_features]; out: [..., out_features], which must not overlap x. */
MHA_API mha_status mha_linear_forward(const mha_linear* linear, const mha_tensor* x, const mha_tensor* out,
                                      int num_threads) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_linear_in_features(const mha_linear* linear) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_linear_out_features(const mha_linear* linear) MHA_NOEXCEPT;
MHA_API bool mha_linear_has_bias(const mha_linear* linear) MHA_NOEXCEPT;
MHA_API mha_dtype mha_linear_dtype(const mha_linear* linear) MHA_NOEXCEPT;
MHA_API mha_weight_format mha_linear_weight_format(const mha_linear* linear) MHA_NOEXCEPT;
/* Copies the weights out again, into those tensors of `outputs` that are not null. */
MHA_API mha_status mha_linear_copy_weights(const mha_linear* linear, const mha_linear_weights* outputs) MHA_NOEXCEPT;
/* Of a matrix in blocks; features [count], rows [count, in_features] in f32. */
MHA_API mha_status mha_linear_dequantize_rows(const mha_linear* linear, const int64_t* features, ptrdiff_t count,
                                              const mha_tensor* rows) MHA_NOEXCEPT;

/* linear(): the same with weights that are packed for this call alone; no scale. out must not overlap weights either. */
MHA_API mha_status mha_linear_once(const mha_tensor* x, const mha_linear_weights* weights, const mha_tensor* out,
                                   int num_threads) MHA_NOEXCEPT;
/* The numbers of a matrix in blocks: dequantize(). out: float32 [out_features, in_features], with dense rows. */
MHA_API mha_status mha_dequantize(const mha_linear_weights* weights, const mha_tensor* out,
                                  int num_threads) MHA_NOEXCEPT;
/* LinearGradients; each may be null. linear_gradient.hpp has the rules, and says when x or weight may be null, too. */
typedef struct mha_linear_gradients {
  const mha_tensor* x;
  const mha_tensor* weight;
  const mha_tensor* bias;
} mha_linear_gradients;
MHA_API mha_status mha_linear_gradient(const mha_tensor* x, const mha_tensor* weight, const mha_tensor* dout,
                                       const mha_linear_gradients* gradients, int num_threads) MHA_NOEXCEPT;

typedef int mha_activation;
enum {
  MHA_ACTIVATION_NONE,
  MHA_ACTIVATION_RELU,
  MHA_ACTIVATION_GELU,
  MHA_ACTIVATION_GELU_TANH,
  MHA_ACTIVATION_SILU,
  MHA_ACTIVATION_SWIGLU_OAI, /* its factor is 1 + clamp(up, -7, 7), not up */
  MHA_ACTIVATION_QUICK_GELU
};
/* out = activation(x) * up. up: null for 1; all are of the shape of x. */
MHA_API mha_status mha_activate(mha_activation activation, const mha_tensor* x, const mha_tensor* up,
                                const mha_tensor* out, int num_threads) MHA_NOEXCEPT;
/* Where gradients of it go: ActivationGradients; each may be null. */
typedef struct mha_activation_gradients {
  const mha_tensor *x, *up;
} mha_activation_gradients;
MHA_API mha_status mha_activation_gradient(mha_activation activation, const mha_tensor* x, const mha_tensor* up,
                                           const mha_tensor* dout, const mha_activation_gradients* gradients,
                                           int num_threads) MHA_NOEXCEPT;

/* down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)), of each row: FeedForward. */
typedef struct mha_feed_forward mha_feed_forward;
typedef struct mha_feed_forward_weights {
  mha_linear_weights up;   /* [F, E] */
  mha_linear_weights down; /* [E, F] */
  mha_linear_weights gate; /* [F, E], or nulls: none */
} mha_feed_forward_weights;
MHA_API mha_status mha_feed_forward_create(const mha_feed_forward_weights* weights, mha_activation activation,
                                           mha_weight_format weight_format,
                                           mha_feed_forward** feed_forward) MHA_NOEXCEPT;
MHA_API void mha_feed_forward_destroy(mha_feed_forward* feed_forward) MHA_NOEXCEPT; /* may be null */
/* x and out as for mha_norm_forward() */
MHA_API mha_status mha_feed_forward_forward(const mha_feed_forward* feed_forward, const mha_tensor* x,
                                            const mha_tensor* out, int num_threads) MHA_NOEXCEPT;
/* The linear maps, as handles that share the weights: destroy them. A layer without a gate has no third. */
MHA_API mha_status mha_feed_forward_up(const mha_feed_forward* feed_forward, mha_linear** linear) MHA_NOEXCEPT;
MHA_API mha_status mha_feed_forward_down(const mha_feed_forward* feed_forward, mha_linear** linear) MHA_NOEXCEPT;
MHA_API mha_status mha_feed_forward_gate(const mha_feed_forward* feed_forward, mha_linear** linear) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_feed_forward_embed_dim(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_feed_forward_feedforward_dim(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API mha_activation mha_feed_forward_activation(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API bool mha_feed_forward_has_up_bias(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API bool mha_feed_forward_has_down_bias(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API bool mha_feed_forward_has_gate(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API bool mha_feed_forward_has_gate_bias(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API mha_dtype mha_feed_forward_dtype(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
MHA_API mha_weight_format mha_feed_forward_weight_format(const mha_feed_forward* feed_forward) MHA_NOEXCEPT;
/* Copies the weights out again, into those tensors of `outputs` that are not null. */
MHA_API mha_status mha_feed_forward_copy_weights(const mha_feed_forward* feed_forward,
                                                 const mha_feed_forward_weights* outputs) MHA_NOEXCEPT;

/* A feed-forward network with experts, of which each row goes through a few: Experts. */
typedef struct mha_experts mha_experts;
typedef struct mha_experts_config { /* ExpertsConfig */
  ptrdiff_t experts_per_token;
  bool is_sigmoid; /* scores are the logistic function of logits, not their softmax */
  bool normalizes; /* the scores of the chosen are divided by their sum */
  double scale;    /* multiplies them then */
} mha_experts_config;
/* router: [N, E]; feed_forwards: [num_experts], of one E, F and dtype; config: not null; shared, shared_gate [1, E] and
 * correction [N] in f32 may be null. The weights are shared: the handles of the parts may be destroyed. */
MHA_API mha_status mha_experts_create(const mha_linear* router, const mha_feed_forward* const* feed_forwards,
                                      ptrdiff_t num_experts, const mha_experts_config* config,
                                      const mha_feed_forward* shared, const mha_linear* shared_gate,
                                      const mha_tensor* correction, mha_experts** experts) MHA_NOEXCEPT;
MHA_API void mha_experts_destroy(mha_experts* experts) MHA_NOEXCEPT; /* may be null */
/* x and out as for mha_norm_forward() */
MHA_API mha_status mha_experts_forward(const mha_experts* experts, const mha_tensor* x, const mha_tensor* out,
                                       int num_threads) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_experts_num_experts(const mha_experts* experts) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_experts_embed_dim(const mha_experts* experts) MHA_NOEXCEPT;
MHA_API mha_dtype mha_experts_dtype(const mha_experts* experts) MHA_NOEXCEPT;
MHA_API mha_experts_config mha_experts_config_of(const mha_experts* experts) MHA_NOEXCEPT;

/* Where the norm of a sublayer stands: NormPlacement. */
typedef int mha_norm_placement;
enum { MHA_NORM_AFTER, MHA_NORM_BEFORE, MHA_NORM_PARALLEL };
/* One layer of a transformer, of parts of one dtype and one E: TransformerLayer. */
typedef struct mha_transformer_layer {
  const mha_layer* self_attention;
  const mha_layer* cross_attention;     /* null: the layer reads no memory */
  const mha_feed_forward* feed_forward; /* null: there are experts */
  const mha_norm *norm1, *norm2; /* of the sublayers in the order in which they run; each may be null, for none */
  const mha_norm* norm3;         /* of the third one with a cross_attention, else null */
  mha_norm_placement norm_placement;
  const mha_norm *output_norm1, *output_norm2, *output_norm3; /* of the result of each sublayer; each may be null */
  const mha_experts* experts;                                 /* null: there is a feed_forward */
} mha_transformer_layer;
/* Layers one after another, and a last norm if there is one, an encoder or a decoder: TransformerStack. */
typedef struct mha_transformer mha_transformer;
typedef struct mha_transformer_extras {  /* TransformerExtras; each may be null */
  const mha_tensor* memory;              /* [B, S, Em] or [S, Em], which cross-attention reads; or else ... */
  const mha_cache* const* memory_caches; /* ... [count]: filled from it by mha_layer_append_to() of cross_attention */
  const mha_attention_options* memory_options; /* of cross-attention */
  const mha_attention_options* layer_options;  /* [count]: of self-attention, in place of the same for all layers */
  mha_cache* const* caches;                    /* [count]: one for each layer, which keys and values of the call join */
  const int64_t* new_lengths;                  /* [B]: with caches, only the first new_lengths[b] rows of x count */
  const int64_t* sequences;                    /* [num_sequences]: of a ragged batch over caches: mha_ragged_batch */
  const int64_t* memory_sequences;             /* [num_sequences]: the memory of each sequence of a ragged batch */
  const mha_tensor* weights;                   /* [count]: for each layer [B, H, T, Tk], or rank 0: not wanted */
} mha_transformer_extras;
/* layers: [count], all with a cross_attention, or none. The stack shares the weights of the parts, whose handles may be
 * destroyed. final_norm may be null. */
MHA_API mha_status mha_transformer_create(const mha_transformer_layer* layers, ptrdiff_t count,
                                          const mha_norm* final_norm, mha_transformer** transformer) MHA_NOEXCEPT;
MHA_API void mha_transformer_destroy(mha_transformer* transformer) MHA_NOEXCEPT; /* may be null */
/* x: [B, T, E] or [T, E]; out: of the shape of x, which it may be, but must not overlap otherwise. options, of the
 * self-attention of every layer, and extras may be null. If it fails, no cache has changed. */
MHA_API mha_status mha_transformer_forward(const mha_transformer* transformer, const mha_tensor* x,
                                           const mha_tensor* out, const mha_attention_options* options,
                                           const mha_transformer_extras* extras) MHA_NOEXCEPT;
/* x: [N, E]; cu_seqlens: [num_sequences + 1], where sequences begin, and N; options may be null, and extras, of which a
 * ragged batch takes memory_caches, memory_options, layer_options, caches, sequences and memory_sequences. */
MHA_API mha_status mha_transformer_forward_varlen(const mha_transformer* transformer, const mha_tensor* x,
                                                  const int64_t* cu_seqlens, ptrdiff_t num_sequences,
                                                  const mha_tensor* out, const mha_attention_options* options,
                                                  const mha_transformer_extras* extras) MHA_NOEXCEPT;
MHA_API ptrdiff_t mha_transformer_num_layers(const mha_transformer* transformer) MHA_NOEXCEPT;
/* Layer i; nulls, if there is none. Its parts live as long as the stack, and are not to be destroyed. */
MHA_API mha_transformer_layer mha_transformer_layer_of(const mha_transformer* transformer, ptrdiff_t i) MHA_NOEXCEPT;
MHA_API mha_dtype mha_transformer_dtype(const mha_transformer* transformer) MHA_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
