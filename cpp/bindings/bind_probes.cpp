// Peak and bandwidth of the machine, which benchmarks divide by. They are not public.
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings.hpp"
#include "numpy_dtypes.hpp"
#include "probes.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

double measure(py::handle dtype, double seconds) {
  const DType measured = dtype_from("measure_fma_gflops", dtype);
  return without_gil([&] { return probes::measure_fma_gflops(measured, seconds); });
}

std::uint64_t read(const py::list& arrays, py::handle threads) {
  const int num_threads = positive("read_memory", "num_threads", threads, 1);
  std::vector<py::buffer_info> buffers;
  std::vector<const void*> blocks;
  for (py::handle array : arrays) {
    auto view = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(array.ptr(), view.get(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
      throw py::error_already_set();
    buffers.emplace_back(view.release());
    blocks.push_back(buffers.back().ptr);
    if (buffers.back().view()->len != buffers.front().view()->len)
      throw py::value_error("read_memory: arrays must be of one size");
  }
  if (buffers.empty()) return 0;
  const auto bytes = static_cast<std::size_t>(buffers.front().view()->len);
  return without_gil(
      [&] { return probes::read_memory(blocks.data(), static_cast<int>(blocks.size()), bytes, num_threads); });
}

}  // namespace

void bind_probes(py::module_& m) {
  m.def("measure_fma_gflops", &measure, "(dtype, seconds) -> GFLOP/s of one core's multiply-add units");
  m.def("read_memory", &read, "(arrays of one size, num_threads) -> XOR of their 8-byte words");
}

}  // namespace mha::bindings
