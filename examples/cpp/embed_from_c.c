/* Embed two texts in C: look up the tokens, run an encoder of two layers over both texts without padding, and take
 * the mean of the rows of each text. The weights are arbitrary numbers. */
#include <mha/mha.h>
#include <stdio.h>
#include <string.h>

enum { V = 20, P = 8, E = 16, H = 2, F = 32, N = 7, LAYERS = 2 };

static int check(mha_status status) {
  if (status != MHA_OK) fprintf(stderr, "embed_from_c: %s\n", mha_last_error());
  return status == MHA_OK;
}

static void fill(float* numbers, int count, unsigned seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    numbers[i] = (float)(seed >> 16) / 65536.f - 0.5f;
  }
}

static mha_tensor dense(const float* data, ptrdiff_t rows, ptrdiff_t columns) {
  return mha_dense(data, MHA_DTYPE_f32, 2, (const ptrdiff_t[]){rows, columns});
}

/* Return an encoder, or null. It shares the weights of its parts, so their handles can be destroyed. */
static mha_transformer* make_encoder(void) {
  static float square[E * E], up[F * E], down[E * F], ones[E];
  fill(square, E * E, 1);
  fill(up, F * E, 2);
  fill(down, E * F, 3);
  for (int i = 0; i < E; ++i) ones[i] = 1;
  const mha_tensor square_weight = dense(square, E, E), up_weight = dense(up, F, E), down_weight = dense(down, E, F);
  const mha_tensor scale = mha_dense(ones, MHA_DTYPE_f32, 1, (const ptrdiff_t[]){E});

  const mha_layer_config sizes = {.embed_dim = E, .num_heads = H};
  const mha_linear_weights projection = {.weight = &square_weight};
  const mha_layer_weights weights = {.query = projection, .key = projection, .value = projection, .out = projection};
  const mha_feed_forward_weights hidden = {.up = {.weight = &up_weight}, .down = {.weight = &down_weight}};
  mha_layer* attention = NULL;
  mha_feed_forward* feed_forward = NULL;
  mha_norm* norm = NULL;
  mha_transformer* encoder = NULL;
  if (check(mha_layer_create(&sizes, &weights, &attention)) &&
      check(mha_feed_forward_create(&hidden, MHA_ACTIVATION_GELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward)) &&
      check(mha_norm_create(&scale, NULL, 1e-5, &norm))) {
    const mha_transformer_layer layer = {
        .self_attention = attention, .feed_forward = feed_forward, .norm1 = norm, .norm2 = norm};
    check(mha_transformer_create((const mha_transformer_layer[LAYERS]){layer, layer}, LAYERS, NULL, &encoder));
  }
  mha_norm_destroy(norm);
  mha_feed_forward_destroy(feed_forward);
  mha_layer_destroy(attention);
  return encoder;
}

/* Write the embeddings [count, E] of `count` texts; offsets delimit their tokens. */
static int embed(const mha_transformer* encoder, const int64_t* tokens, const int64_t* offsets, int count,
                 float* embeddings) {
  float words[V * E], positions[P * E], rows[N * E];
  fill(words, V * E, 4);
  const mha_tensor word_table = dense(words, V, E), position_table = dense(positions, P, E);
  const mha_tensor x = dense(rows, offsets[count], E), means = dense(embeddings, count, E);
  const mha_embedding_tables tables = {.words = &word_table, .positions = &position_table, .norm_eps = 1e-5};
  return check(mha_sinusoidal_positions(&position_table, 0)) &&
         check(mha_embed_tokens(tokens, NULL, offsets, count, &tables, &x, 0)) &&
         check(mha_transformer_forward_varlen(encoder, &x, offsets, count, &x, NULL, NULL)) &&
         check(mha_mean_pool(&x, offsets, count, true, &means, 0));
}

int main(void) {
  const int64_t tokens[N] = {3, 1, 4, 1, 5, 9, 2}, both[] = {0, 3, N}, alone[] = {0, N - 3};
  float embeddings[2][E], second[E];
  mha_transformer* encoder = make_encoder();
  int good =
      encoder != NULL && embed(encoder, tokens, both, 2, embeddings[0]) && embed(encoder, tokens + 3, alone, 1, second);
  if (good) {
    float cosine = 0;
    for (int i = 0; i < E; ++i) cosine += embeddings[0][i] * embeddings[1][i];
    printf("cosine of the two texts: %.3f\n", (double)cosine);
    good = memcmp(embeddings[1], second, sizeof second) == 0;
    printf("the second text has %s bits alone\n", good ? "the same" : "OTHER");
  }
  mha_transformer_destroy(encoder);
  return !good;
}
