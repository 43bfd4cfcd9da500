// Attention of cases.toml, and what a call costs however small it is.
#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "attention_reference.hpp"
#include "cases.hpp"
#include "measure.hpp"
#include "mha/mha.hpp"
#include "tensor.hpp"

namespace mha::bench {
namespace {

/// A case with its memory: `copies` of the inputs, of which each call takes the next.
class AttentionRun {
 public:
  AttentionRun(const Case& c, int threads)
      : case_(c), starts_(c.is_ragged() ? c.offsets() : std::vector<std::int64_t>()) {
    const DType dtype = c.element();
    const bool is_ragged = !starts_.empty();
    const Index rows = is_ragged ? Index(starts_.back()) : 0;
    const auto tensor = [&](Index heads, Index length, unsigned seed, double deviation) {
      return is_ragged ? Tensor(dtype, {rows, heads, c.D}, seed, deviation)
                       : Tensor(dtype, {c.B, heads, length, c.D}, seed, deviation);
    };
    copies_.push_back({tensor(c.H, c.Tq, 1, c.scores), tensor(c.Hk, c.Tk, 2, 1), tensor(c.Hk, c.Tk, 3, c.values)});
    out_ = std::make_unique<Tensor>(copies_[0].query);
    if (c.cold) {
      const std::size_t bytes = 2 * copies_[0].key.bytes() + copies_[0].query.bytes();
      while (copies_.size() * bytes < 4 * last_cache_bytes() || copies_.size() < 2) copies_.push_back(copies_[0]);
    }
    options_.is_causal = c.causal;
    options_.window_left = c.window[0];
    options_.window_right = c.window[1];
    options_.softcap = c.softcap;
    options_.num_threads = threads;
    if (c.alibi) {
      slopes_ = std::make_unique<Tensor>(accumulator_of(dtype), std::initializer_list<Index>{c.H}, 0);
      for (Index h = 0; h < c.H; ++h) slopes_->set(h, std::exp2(-8.0 * double(h + 1) / double(c.H)));
      options_.alibi_slopes = slopes_->view();
    }
    if (c.admitted > 0) {
      admitted_.assign(std::size_t(c.Tk), 0);
      std::fill_n(admitted_.begin(), c.admitted, char(1));
      options_.attn_mask = {admitted_.data(), DType::boolean, {c.B, 1, 1, c.Tk}, {0, 0, 0, 1}};
    }
  }

  void operator()() {
    const Copy& copy = copies_[next_];
    next_ = next_ + 1 < copies_.size() ? next_ + 1 : 0;
    if (starts_.empty()) {
      scaled_dot_product_attention(copy.query.view(), copy.key.view(), copy.value.view(), out_->view(), {}, options_);
    } else {
      const RaggedBatch batch = {Index(starts_.size()) - 1, starts_.data(), starts_.data()};
      scaled_dot_product_attention_varlen(copy.query.view(), copy.key.view(), copy.value.view(), batch, out_->view(),
                                          {}, options_);
    }
  }

  /// Compares the first and the last row of the first and the last head, in the first and the last batch element.
  void check() const {
    const Copy& given = copies_[0];
    // The reference reads no 16-bit types.
    const Copy exact = {{given.query, DType::f64}, {given.key, DType::f64}, {given.value, DType::f64}};
    for (Index b : {Index(0), case_.B - 1})
      for (Index h : {Index(0), case_.H - 1}) {
        const Index length = starts_.empty() ? case_.Tq : Index(starts_[std::size_t(b) + 1] - starts_[std::size_t(b)]);
        for (Index i : {Index(0), length - 1}) check_row(exact, b, h, i, starts_.empty() ? case_.Tk : length);
      }
  }

  std::vector<const void*> blocks() const {
    std::vector<const void*> blocks;
    for (const Copy& copy : copies_)
      for (const Tensor* tensor : {&copy.key, &copy.value}) blocks.push_back(tensor->view().data);
    return blocks;
  }
  std::size_t block_bytes() const { return copies_[0].key.bytes(); }

 private:
  struct Copy {
    Tensor query, key, value;
  };

  /// Element (row i of head h of batch element b, 0), counted in elements.
  Index at(const TensorView& x, Index b, Index h, Index i) const {
    if (starts_.empty()) return b * x.strides[0] + h * x.strides[1] + i * x.strides[2];
    return (Index(starts_[std::size_t(b)]) + i) * x.strides[0] + h * x.strides[1];
  }

  /// [1, 1, rows, D]
  TensorView part(const TensorView& x, Index b, Index h, Index i, Index rows) const {
    const Index element = at(x, b, h, i) * size_of(x.dtype);
    const Index step = x.strides[starts_.empty() ? 2 : 0];
    return {static_cast<const char*>(x.data) + element, x.dtype, {1, 1, rows, case_.D}, {0, 0, step, 1}};
  }

  void check_row(const Copy& exact, Index b, Index h, Index i, Index keys) const {
    const Index key_head = h / (case_.H / case_.Hk);
    AttentionOptions options = options_;
    options.query_offset = i;
    if (slopes_) {
      const DType dtype = slopes_->view().dtype;
      options.alibi_slopes = {static_cast<const char*>(slopes_->view().data) + h * size_of(dtype), dtype, {1}};
    }
    if (options.attn_mask) options.attn_mask.extents[0] = 1;
    const auto expected = reference::scaled_dot_product_attention(
        part(exact.query.view(), b, h, i, 1), part(exact.key.view(), b, key_head, 0, keys),
        part(exact.value.view(), b, key_head, 0, keys), options);
    double largest = 0, error = 0;
    bool is_nan = false;
    for (Index d = 0; d < case_.D; ++d) {
      const double wanted = expected.out[std::size_t(d)];
      const double difference = std::abs((*out_)[at(out_->view(), b, h, i) + d] - wanted);
      is_nan = is_nan || std::isnan(difference);
      largest = std::max(largest, std::abs(wanted));
      error = std::max(error, difference);
    }
    if (is_nan || error > case_.tolerance(largest))
      throw std::runtime_error(case_.name + " is off by " + std::to_string(error) + " from the reference");
  }

  Case case_;
  std::vector<std::int64_t> starts_;  // of a ragged batch; empty: dense
  std::vector<Copy> copies_;
  std::size_t next_ = 0;
  std::unique_ptr<Tensor> out_, slopes_;
  std::vector<char> admitted_;
  AttentionOptions options_;
};

Subject attention_of(const Case& c, int threads) {
  const auto run = std::make_shared<AttentionRun>(c, threads);
  Subject subject;
  subject.product = c.product();
  subject.threads = threads;
  subject.work = {c.flops(), c.least_bytes(), c.key_value_bytes()};
  subject.call = [run] { (*run)(); };
  subject.check = [run] { run->check(); };
  if (c.kind == "sdpa" && c.Tq == 1 && !c.has_options()) {
    subject.blocks = run->blocks();
    subject.block_bytes = run->block_bytes();
  }
  return subject;
}

/// One query, one key: nothing but the call.
Subject smallest_call() {
  const auto x = std::make_shared<Tensor>(DType::f32, std::initializer_list<Index>{1, 1, 1, 8}, 1);
  const auto out = std::make_shared<Tensor>(*x);
  Subject subject;
  subject.call = [x, out] { scaled_dot_product_attention(x->view(), x->view(), x->view(), out->view()); };
  subject.check = [x, out] {
    for (Index d = 0; d < 8; ++d)
      if (!((*x)[d] == (*out)[d])) throw std::runtime_error("the softmax of one score is not 1");
  };
  return subject;
}

}  // namespace

void add_attention(const Settings& settings) {
  add_benchmark("overhead/attention-1x1x1x8", settings, smallest_call);
  for (const Case& c : cases()) {
    if (c.E > 0 || c.is_of_python() || !settings.wants(c.flops())) continue;
    for (int threads : settings.threads)
      add_benchmark(with_threads("attention/" + c.name, threads), settings,
                    [&c, threads] { return attention_of(c, threads); });
  }
}

}  // namespace mha::bench
