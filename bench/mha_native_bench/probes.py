"""What the benchmark needs of the compiled module beyond the public names of mha_native: this file alone imports it."""

from mha_native._core import active_isa_reason, compiler, measure_fma_gflops, read_memory, scratch_bytes, weight_bytes

__all__ = ["active_isa_reason", "compiler", "measure_fma_gflops", "read_memory", "scratch_bytes", "weight_bytes"]
