/* The same in C11: attention to equal keys is the mean of the values, an error is a status. */
#include <math.h>
#include <mha/mha.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  enum { T = 6, D = 4 };
  float same[T * D], value[T * D], out[D];
  for (int i = 0; i < T * D; ++i) {
    same[i] = 1;
    value[i] = (float)(i / D);
  }
  const ptrdiff_t rows[] = {T, D}, row[] = {1, D};
  const mha_tensor query = mha_dense(same, MHA_DTYPE_f32, 2, row), keys = mha_dense(same, MHA_DTYPE_f32, 2, rows);
  const mha_tensor values = mha_dense(value, MHA_DTYPE_f32, 2, rows), result = mha_dense(out, MHA_DTYPE_f32, 2, row);
  mha_attention_options options = mha_default_options();
  options.is_causal = true;
  options.query_offset = T - 2; /* the last key is hidden */
  if (mha_scaled_dot_product_attention(&query, &keys, &values, &result, NULL, &options) != MHA_OK) {
    fprintf(stderr, "consumer_in_c: %s\n", mha_last_error());
    return 1;
  }
  for (int i = 0; i < D; ++i) {
    if (fabsf(out[i] - 2.f) > 1e-5f) {
      fprintf(stderr, "consumer_in_c: %g is not the mean of 0 to 4\n", (double)out[i]);
      return 1;
    }
  }
  const mha_status status = mha_scaled_dot_product_attention(&query, &keys, &query, &result, NULL, NULL);
  if (status != MHA_INVALID_ARGUMENT || strstr(mha_last_error(), "value") == NULL) {
    fprintf(stderr, "consumer_in_c: status %d, \"%s\"\n", status, mha_last_error());
    return 1;
  }
  printf("mha_native %s, %s, in C\n", mha_version(), mha_active_isa());
  return 0;
}
