// A multi-head attention layer with weights from a file: layer_from_file [weights.bin]. Python writes the file:
//
//     layer = mha_native.MultiHeadAttention(64, 4)
//     state = layer.state_dict()
//     np.concatenate([state[name].ravel() for name in
//         ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]).tofile("weights.bin")
//
// Without an argument, the program writes random weights to a file and reads them again.
#include <mha/mha.hpp>

#include <cstdio>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr mha::Index E = 64, H = 4, T = 10;
constexpr std::size_t kMatrix = E * E, kWeights = 4 * kMatrix + 4 * E;

std::vector<float> random(std::size_t size, float spread) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> numbers(size);
  for (float& x : numbers) x = normal(generator);
  return numbers;
}

std::vector<float> read(const std::string& path) {
  std::vector<float> numbers(kWeights);
  const auto bytes = static_cast<std::streamsize>(numbers.size() * sizeof(float));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(numbers.data()), bytes) || file.get() != std::ifstream::traits_type::eof())
    throw std::runtime_error(path + ": expected " + std::to_string(bytes) + " bytes");
  return numbers;
}

/// The layer copies its weights, so `w` can be destroyed.
mha::MultiHeadAttention make_layer(const std::vector<float>& w) {
  const float *in_bias = w.data() + 3 * kMatrix, *out = in_bias + 3 * E;
  mha::MultiHeadAttentionWeights weights;
  weights.query = {{w.data(), {E, E}}, {in_bias, {E}}};
  weights.key = {{w.data() + kMatrix, {E, E}}, {in_bias + E, {E}}};
  weights.value = {{w.data() + 2 * kMatrix, {E, E}}, {in_bias + 2 * E, {E}}};
  weights.out = {{out, {E, E}}, {out + kMatrix, {E}}};
  return mha::MultiHeadAttention({E, H}, weights);
}

std::vector<float> forward(const mha::MultiHeadAttention& layer) {
  const std::vector<float> x = random(T * E, 1);
  std::vector<float> y(T * E);
  const mha::TensorView tokens(x.data(), {T, E});
  layer.forward(tokens, tokens, tokens, mha::MutableTensorView(y.data(), {T, E}));
  return y;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1) {
    std::printf("the first of %td tokens begins with %g\n", T, forward(make_layer(read(argv[1]))).front());
    return 0;
  }
  const std::vector<float> made_up = random(kWeights, 0.1f);
  const std::string path = "layer_from_file.bin";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(made_up.data()), static_cast<std::streamsize>(kWeights * sizeof(float)));
  const std::vector<float> expected = forward(make_layer(made_up)), y = forward(make_layer(read(path)));
  std::remove(path.c_str());
  std::printf("%zu weights, the first of %td tokens begins with %g\n", kWeights, T, y.front());
  return y != expected;
} catch (const std::exception& error) {
  std::fprintf(stderr, "layer_from_file: %s\n", error.what());
  return 1;
}
