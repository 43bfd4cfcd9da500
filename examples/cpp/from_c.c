/* A layer over a cache, in C: handles, statuses, and error messages. */
#include <mha/mha.h>
#include <stdio.h>

enum { E = 16, H = 2, D = E / H, T = 5 };

static int check(mha_status status) {
  if (status != MHA_OK) fprintf(stderr, "from_c: %s\n", mha_last_error());
  return status == MHA_OK;
}

int main(void) {
  float identity[E * E] = {0}, x[E], y[E];
  for (int i = 0; i < E; ++i) {
    identity[i * E + i] = 1;
    x[i] = (float)i;
  }
  const mha_tensor weight = mha_dense(identity, MHA_DTYPE_f32, 2, (const ptrdiff_t[]){E, E});
  const mha_tensor token = mha_dense(x, MHA_DTYPE_f32, 2, (const ptrdiff_t[]){1, E});
  const mha_tensor out = mha_dense(y, MHA_DTYPE_f32, 2, (const ptrdiff_t[]){1, E});

  mha_layer* layer = NULL;
  mha_cache* cache = NULL;
  const mha_layer_config config = {.embed_dim = E, .num_heads = H};
  const mha_linear_weights projection = {.weight = &weight};
  const mha_layer_weights weights = {.query = projection, .key = projection, .value = projection, .out = projection};
  const mha_cache_config sizes = {
      .batch_size = 1, .num_kv_heads = H, .capacity = T, .head_dim = D, .dtype = MHA_DTYPE_f32};
  int good = check(mha_layer_create(&config, &weights, &layer)) && check(mha_cache_create(&sizes, &cache));

  for (int t = 0; good && t < T; ++t)
    good = check(mha_layer_forward_cached(layer, &token, &token, &token, cache, &out, NULL, NULL, NULL));
  if (good) printf("%d tokens in the cache, y[3] is %g\n", (int)mha_cache_lengths(cache)[0], (double)y[3]);

  /* One more token does not fit. */
  if (good && mha_layer_forward_cached(layer, &token, &token, &token, cache, &out, NULL, NULL, NULL) != MHA_OK)
    printf("expected error: %s\n", mha_last_error());
  else
    good = 0;
  mha_cache_destroy(cache);
  mha_layer_destroy(layer);
  return !good;
}
