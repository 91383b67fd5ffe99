// Every fused op against its reference: results and gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/reference.h"

#include <ATen/core/grad_mode.h>

namespace millrace::engine::ops {
namespace {

/// Two copies of the same inputs, for the fused op and the reference.
class Case {
 public:
  Case(at::ScalarType dtype, std::uint64_t seed) : dtype_(dtype), generator_(at::detail::createCPUGenerator(seed)) {}

  at::Tensor Random(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, generator_) * scale).to(dtype_).set_requires_grad(true);
  }
  at::Tensor Ids(std::int64_t count, std::int64_t below) { return at::randint(below, {count}, generator_, at::kLong); }
  static at::Tensor Copy(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }
  /// A copy for a reference that multiplies. Where a processor does not multiply bfloat16, ATen adds products in
  /// bfloat16, so that long sums have few digits: there, the copy is float32.
  static at::Tensor Exact(const at::Tensor& x) { return Copy(cpu::MultipliesBf16() ? x : x.detach().to(at::kFloat)); }
  /// A weight with a gradient buffer, as a model's.
  static Weight Buffered(const at::Tensor& value) {
    return {.value = Copy(value), .gradient = at::zeros(value.sizes(), at::kFloat)};
  }
  at::ScalarType dtype() const { return dtype_; }
  /// Relative to the largest magnitude: a few units in the last place of the sum's terms.
  double tolerance() const { return dtype_ == at::kFloat ? 1e-5 : 2e-2; }

 private:
  at::ScalarType dtype_;
  at::Generator generator_;
};

void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor a = got.detach().to(at::kDouble), b = want.detach().to(at::kDouble);
  const double most = b.abs().max().item<double>();
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * (most + 1e-3)) << what << ", largest " << most;
}

at::Tensor Weigh(const at::Tensor& y, std::uint64_t seed) {
  return (y.to(at::kFloat) * at::randn(y.sizes(), at::detail::createCPUGenerator(seed))).sum();
}

class OpsTest : public ::testing::TestWithParam<at::ScalarType> {
  /// The references are ATen's. It asks the processor whether oneDNN takes bfloat16, and not oneDNN, which may have
  /// been told to use fewer instructions (DNNL_MAX_CPU_ISA).
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(cpu::MultipliesBf16()); }
  void TearDown() override { at::globalContext().setUserEnabledMkldnn(true); }
};

TEST_P(OpsTest, AddRmsNorm) {
  Case c(GetParam(), 1);
  for (const auto& [with_delta, offset] : {std::pair(false, 0.0), {true, 0.0}, {false, 1.0}, {true, 1.0}}) {
    const at::Tensor x = c.Random({67, 48}, 3), delta = with_delta ? c.Random({67, 48}) : at::Tensor();
    const at::Tensor w = c.Random({48});
    const at::Tensor x2 = Case::Copy(x), delta2 = with_delta ? Case::Copy(delta) : at::Tensor();
    const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
    const RmsNormOptions options{.eps = 1e-5, .offset = offset};
    const Normed a = AddRmsNorm(x, delta, fused, options), b = reference::AddRmsNorm(x2, delta2, plain, options);
    ExpectClose(a.out, b.out, c.tolerance(), "out");
    ExpectClose(a.sum, b.sum, c.tolerance(), "sum");
    (Weigh(a.out, 5) + Weigh(a.sum, 6)).backward();
    (Weigh(b.out, 5) + Weigh(b.sum, 6)).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    if (with_delta) ExpectClose(delta.grad(), delta2.grad(), c.tolerance(), "ddelta");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
  }
}

TEST_P(OpsTest, AddLayerNorm) {
  Case c(GetParam(), 9);
  for (const bool with_delta : {false, true}) {
    // A mean far from zero: the variance is that of differences from it.
    const at::Tensor x = Case::Copy(c.Random({67, 48}, 3).detach() + 5);
    const at::Tensor delta = with_delta ? c.Random({67, 48}) : at::Tensor(), w = c.Random({48}), b = c.Random({48});
    const at::Tensor x2 = Case::Copy(x), delta2 = with_delta ? Case::Copy(delta) : at::Tensor();
    const Weight fused = Case::Buffered(w), fused_bias = Case::Buffered(b);
    const Weight plain{.value = Case::Copy(w)}, plain_bias{.value = Case::Copy(b)};
    const Normed got = AddLayerNorm(x, delta, fused, fused_bias, 1e-5);
    const Normed want = reference::AddLayerNorm(x2, delta2, plain, plain_bias, 1e-5);
    ExpectClose(got.out, want.out, c.tolerance(), "out");
    ExpectClose(got.sum, want.sum, c.tolerance(), "sum");
    (Weigh(got.out, 5) + Weigh(got.sum, 6)).backward();
    (Weigh(want.out, 5) + Weigh(want.sum, 6)).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    if (with_delta) ExpectClose(delta.grad(), delta2.grad(), c.tolerance(), "ddelta");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
    ExpectClose(fused_bias.gradient, plain_bias.value.grad(), c.tolerance(), "dbias");
  }
}

TEST_P(OpsTest, Activate) {
  Case c(GetParam(), 10);
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu}) {
    const at::Tensor x = c.Random({29, 70}, 4), x2 = Case::Copy(x);
    const at::Tensor a = Activate(x, activation), b = reference::Activate(x2, activation);
    const std::string what = "activation " + std::to_string(static_cast<int>(activation));
    ExpectClose(a, b, c.tolerance(), what);
    Weigh(a, 5).backward();
    Weigh(b, 5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), what + ", dx");
  }
}

/// Far from zero, activations and slopes are those of float64. Whatever is not finite stays so.
TEST_P(OpsTest, ActivationsSaturate) {
  const at::Tensor some = at::tensor({0.0F, 1e-30F, 8.0F, 30.0F, 88.0F, 1e4F, 1e15F, 1e30F, INFINITY, NAN});
  // 40 elements: whole vectors, and the rest of a loop.
  const at::Tensor values = at::cat({some, -some, some, -some}).reshape({4, 10}).to(GetParam());
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    const at::Tensor x = Case::Copy(values), exact = Case::Copy(values.to(at::kDouble));
    const at::Tensor got = Activate(x, activation), want = reference::Activate(exact, activation);
    got.sum().backward();
    want.sum().backward();
    const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
      const at::Tensor wide = a.detach().to(at::kDouble), error = (wide - b.detach()).abs() / (1 + b.detach().abs());
      EXPECT_TRUE(at::isfinite(wide).equal(at::isfinite(b))) << what << static_cast<int>(activation) << wide << b;
      const double most = at::nan_to_num(error, 0, 0, 0).max().item<double>();
      EXPECT_LE(most, GetParam() == at::kFloat ? 1e-5 : 1e-2) << what << static_cast<int>(activation) << wide << b;
    };
    compare(got, want, "activation ");
    compare(x.grad(), exact.grad(), "slope of activation ");
  }
}

TEST_P(OpsTest, Dropout) {
  Case c(GetParam(), 11);
  const DropoutSite site{
      .probability = 0.3, .site = 7, .rows = {.seed = 3, .step = 9, .first_sample = 20, .row_length = 25}};
  for (const std::int64_t columns : {1, 3, 70, 256}) {
    const at::Tensor x = c.Random({100, columns}), x2 = Case::Copy(x);
    const at::Tensor a = Dropout(x, site), b = reference::Dropout(x2, site);
    EXPECT_TRUE(a.equal(b)) << columns;
    Weigh(a, 5).backward();
    Weigh(b, 5).backward();
    EXPECT_TRUE(x.grad().equal(x2.grad())) << columns;
  }
  const at::Tensor x = c.Random({4, 4});
  EXPECT_TRUE(Dropout(x, DropoutSite{}).equal(x)) << "a default site drops nothing";
}

/// The choices for a sample do not depend on the micro-batch that it is in.
TEST(Dropout, ASampleHasTheSameChoicesInAnyCompany) {
  const at::Tensor ones = at::ones({6 * 8, 33});
  DropoutSite site{.probability = 0.5, .site = 2, .rows = {.seed = 1, .step = 4, .first_sample = 10, .row_length = 8}};
  const at::Tensor whole = Dropout(ones, site);
  for (std::int64_t row = 0; row < 6; ++row) {
    site.rows.first_sample = static_cast<std::uint64_t>(10 + row);
    EXPECT_TRUE(Dropout(ones.narrow(0, 0, 8), site).equal(whole.narrow(0, row * 8, 8))) << row;
  }
}

TEST(Dropout, DropsTheShareThatWasAskedForAndKeepsTheMean) {
  const at::Tensor ones = at::ones({1000, 1000});
  for (const double p : {0.1, 0.5, 0.9}) {
    const DropoutSite site{.probability = p, .rows = {.seed = 5, .row_length = 100}};
    const at::Tensor dropped = Dropout(ones, site);
    // A million independent choices: five standard deviations.
    const double tolerance = 5 * std::sqrt(p * (1 - p) / 1e6);
    EXPECT_NEAR((dropped == 0).to(at::kFloat).mean().item<double>(), p, tolerance);
    EXPECT_NEAR(dropped.mean().item<double>(), 1, tolerance / (1 - p));
    DropoutSite other = site;
    other.rows.step = 1;
    EXPECT_NEAR(((Dropout(ones, other) == 0) == (dropped == 0)).to(at::kFloat).mean().item<double>(),
                p * p + (1 - p) * (1 - p), 5 * 0.5 / 1e3)
        << "two steps choose independently";
  }
}

TEST_P(OpsTest, Rotate) {
  Case c(GetParam(), 2);
  const HeadLayout layout{.heads = 4, .kv_heads = 2, .head_dim = 8};
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    for (const std::int64_t dim : {4, 8}) {
      const RotaryTable table = RotaryTable::Make(20, RotaryFrequencies(dim, 10000), pairs, at::kCPU);
      for (const Sequences& sequences : {Sequences::Even(3, 11, 5), Sequences::Cut({{0, 16, 17, 20, 33}}, 33)}) {
        const at::Tensor x = c.Random({33, layout.columns()}), x2 = Case::Copy(x);
        const at::Tensor a = Rotate(x, table, layout, sequences), b = reference::Rotate(x2, table, layout, sequences);
        ExpectClose(a, b, c.tolerance(), "out");
        Weigh(a, 5).backward();
        Weigh(b, 5).backward();
        ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
      }
      const at::Tensor x = c.Random({33, layout.columns()});
      EXPECT_ANY_THROW(Rotate(x, table, layout, Sequences::Even(3, 11, 10)));
      EXPECT_ANY_THROW(Rotate(x, table, layout, Sequences::Even(3, 10)));
    }
  }
}

TEST_P(OpsTest, Gated) {
  Case c(GetParam(), 3);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    const at::Tensor x = c.Random({29, 70}, 4), x2 = Case::Copy(x);
    const at::Tensor a = Gated(x, activation), b = reference::Gated(x2, activation);
    const std::string what = fmt::format("activation {}", static_cast<int>(activation));
    ExpectClose(a, b, c.tolerance(), what);
    Weigh(a, 5).backward();
    Weigh(b, 5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), what + ", dx");
  }
}

TEST_P(OpsTest, Attention) {
  Case c(GetParam(), 4);
  std::vector<Sequences> batches = {Sequences::Cut({{0, 1, 64, 65, 130, 137, 288}}, 288)};
  for (const std::int64_t length : {1, 7, 64, 150}) batches.push_back(Sequences::Even(2, length));
  const HeadLayout layout{.heads = 6, .kv_heads = 2, .head_dim = 8};
  const AttentionRule rules[] = {{},
                                 {.causal = false},
                                 {.window = 1},
                                 {.window = 40},
                                 {.window = 100},
                                 {.scale = 0.5},
                                 {.softcap = 1.5},
                                 {.window = 40, .scale = 0.7, .softcap = 2}};
  for (const Sequences& sequences : batches) {
    for (const AttentionRule& rule : rules) {
      for (const double probability : {0.0, 0.25}) {
        const DropoutSite drop{.probability = probability, .rows = {.seed = 2, .row_length = sequences.tokens() / 2}};
        const at::Tensor x = c.Random({sequences.tokens(), layout.columns()}, 1.5), x2 = Case::Copy(x);
        const at::Tensor a = Attention(x, layout, sequences, rule, drop);
        const at::Tensor b = reference::Attention(x2, layout, sequences, rule, drop);
        const std::string what = fmt::format("causal {}, window {}, scale {}, softcap {}, dropout {}", rule.causal,
                                             rule.window, rule.scale, rule.softcap, probability);
        ExpectClose(a, b, c.tolerance(), what);
        Weigh(a, 5).backward();
        Weigh(b, 5).backward();
        ExpectClose(x.grad(), x2.grad(), c.tolerance(), what + ", dqkv");
      }
    }
  }
}

/// Rotation and attention of sequences of all kinds of lengths, together and one by one.
TEST_P(OpsTest, ASequenceHasTheSameBitsInAnyCompany) {
  Case c(GetParam(), 8);
  const HeadLayout layout{.heads = 6, .kv_heads = 2, .head_dim = 8};
  const RotaryTable table = RotaryTable::Make(200, RotaryFrequencies(8, 10000), RotaryPairs::kHalves, at::kCPU);
  const auto attend = [&](const at::Tensor& x, const Sequences& sequences) {
    return Attention(Rotate(x, table, layout, sequences), layout, sequences);
  };
  const Sequences sequences = Sequences::Cut({{0, 3, 4, 68, 69, 70, 199, 230, 401}}, 401);
  const at::Tensor x = c.Random({401, layout.columns()}), weights = c.Random({401, 48}).detach();
  const at::Tensor whole = attend(x, sequences);
  (whole * weights).sum().backward();
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t begin = sequences.begin(i), length = sequences.length(i);
    const at::Tensor alone = Case::Copy(x.narrow(0, begin, length));
    const at::Tensor out = attend(alone, Sequences::Even(1, length));
    EXPECT_TRUE(out.equal(whole.narrow(0, begin, length))) << "sequence " << i;
    (out * weights.narrow(0, begin, length)).sum().backward();
    EXPECT_TRUE(alone.grad().equal(x.grad().narrow(0, begin, length))) << "gradient of sequence " << i;
  }
}

TEST_P(OpsTest, LinearAddsToItsGradient) {
  Case c(GetParam(), 5);
  for (const bool with_bias : {false, true}) {
    const at::Tensor x = c.Random({31, 24}), x2 = Case::Copy(x), w = c.Random({40, 24}), b = c.Random({40});
    const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
    const Weight fused_bias = with_bias ? Case::Buffered(b) : Weight{};
    const Weight plain_bias = with_bias ? Weight{.value = Case::Copy(b)} : Weight{};
    fused.gradient.fill_(1);
    const at::Tensor got = Linear(x, {fused, fused_bias}), want = reference::Linear(x2, {plain, plain_bias});
    ExpectClose(got, want, c.tolerance(), "out");
    Weigh(got, 5).backward();
    Weigh(want, 5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    ExpectClose(fused.gradient - 1, plain.value.grad(), c.tolerance(), "dweight");
    if (with_bias) ExpectClose(fused_bias.gradient, plain_bias.value.grad(), c.tolerance(), "dbias");
  }
}

TEST_P(OpsTest, Embedding) {
  Case c(GetParam(), 6);
  const at::Tensor w = c.Random({10, 96}), ids = c.Ids(50, 10);
  const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
  const at::Tensor a = Embedding(fused, ids), b = reference::Embedding(plain, ids);
  ExpectClose(a, b, 0, "out");
  Weigh(a, 5).backward();
  Weigh(b, 5).backward();
  ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
}

TEST_P(OpsTest, LinearCrossEntropy) {
  Case c(GetParam(), 7);
  for (const bool ignored : {false, true}) {
    for (const bool with_bias : {false, true}) {
      const at::Tensor x = c.Random({90, 16}), x2 = Case::Exact(x), w = c.Random({70'000, 16}, 0.5),
                       b = c.Random({70'000});
      const at::Tensor labels = c.Ids(90, 70'000);
      const at::Tensor scores = at::mm(x2.detach(), Case::Exact(w).detach().t()).to(at::kFloat);
      labels.narrow(0, 0, 30).copy_((with_bias ? scores + b.detach() : scores).argmax(1).narrow(0, 0, 30));
      if (ignored) labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
      const Weight fused = Case::Buffered(w), plain{.value = Case::Exact(w)};
      const Weight fused_bias = with_bias ? Case::Buffered(b) : Weight{};
      const Weight plain_bias = with_bias ? Weight{.value = Case::Exact(b)} : Weight{};
      std::int64_t correct = 0, reference_correct = 0;
      const at::Tensor got = LinearCrossEntropy(x, fused, fused_bias, labels, {}, &correct);
      const at::Tensor want = reference::LinearCrossEntropy(x2, plain, plain_bias, labels, {}, &reference_correct);
      EXPECT_GE(correct, ignored ? 8 : 25);
      EXPECT_NEAR(correct, reference_correct, GetParam() == at::kFloat ? 0 : 5);
      ExpectClose(got, want, c.tolerance(), "loss");
      (got * 0.5).backward();
      (want * 0.5).backward();
      ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
      ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
      if (with_bias) ExpectClose(fused_bias.gradient, plain_bias.value.grad(), c.tolerance(), "dbias");
      const at::NoGradGuard no_grad;
      EXPECT_EQ(LinearCrossEntropy(x, fused, fused_bias, labels).item<float>(), got.item<float>())
          << "loss without gradients";
    }
  }
}

/// A frozen head with an adapter: what goes back to the inner products, and the gradient of B.
TEST_P(OpsTest, LinearCrossEntropyOfAnAdaptedHead) {
  Case c(GetParam(), 10);
  for (const bool ignored : {false, true}) {
    const at::Tensor x = c.Random({90, 16}), x2 = Case::Exact(x), w = c.Random({70'000, 16}, 0.5);
    const at::Tensor inner = c.Random({90, 3}), inner2 = Case::Exact(inner), up = c.Random({70'000, 3}, 0.5);
    const at::Tensor labels = c.Ids(90, 70'000);
    if (ignored) labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
    const Weight head{.value = w.detach()}, plain_head{.value = Case::Exact(w).detach()};
    const Weight fused = Case::Buffered(up), plain{.value = Case::Exact(up)};
    const at::Tensor got = LinearCrossEntropy(x, head, {}, labels, {}, nullptr, {inner, fused});
    const at::Tensor want = reference::LinearCrossEntropy(x2, plain_head, {}, labels, {}, nullptr, {inner2, plain});
    ExpectClose(got, want, c.tolerance(), "loss");
    (got * 0.5).backward();
    (want * 0.5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    // The exponential of libtorch 2.11's softmax is exact to 20 units in the last place.
    ExpectClose(inner.grad(), inner2.grad(), 4 * c.tolerance(), "dinner");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dup");
  }
}

/// The gradient is torch's for label smoothing plus that of z-loss. The value is the plain cross-entropy.
TEST_P(OpsTest, LinearCrossEntropySmoothsLabels) {
  Case c(GetParam(), 8);
  for (const LossOptions options : {LossOptions{.label_smoothing = 0.1}, LossOptions{.z_loss = 1e-2},
                                    LossOptions{.label_smoothing = 0.3, .z_loss = 1e-3}}) {
    const at::Tensor x = c.Random({90, 16}), x2 = Case::Exact(x), x3 = Case::Exact(x), w = c.Random({1000, 16}, 0.5);
    const at::Tensor labels = c.Ids(90, 1000);
    labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
    const Weight fused = Case::Buffered(w), plain{.value = Case::Exact(w)};
    const at::Tensor got = LinearCrossEntropy(x, fused, {}, labels, options);
    const at::Tensor want = reference::LinearCrossEntropy(x2, plain, {}, labels, options);
    EXPECT_EQ(got.item<float>(), LinearCrossEntropy(x, fused, {}, labels).item<float>());
    ExpectClose(got, want, c.tolerance(), "loss");
    got.backward();
    want.backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");

    const at::Tensor logits = at::mm(x3, plain.value.detach().t()).to(at::kFloat);
    const at::Tensor squares = at::logsumexp(logits, 1).square().masked_fill(labels == kIgnoreLabel, 0).sum();
    const at::Tensor objective =
        at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoreLabel, options.label_smoothing) +
        squares * options.z_loss;
    objective.backward();
    ExpectClose(x.grad(), x3.grad(), c.tolerance(), "dx of torch's objective");
  }
}

TEST_P(OpsTest, CrossEntropiesOfCappedLogits) {
  Case c(GetParam(), 10);
  constexpr double kSoftcap = 1.5;
  const at::Tensor x = c.Random({90, 16}), x2 = Case::Exact(x), x3 = Case::Exact(x), w = c.Random({1000, 16}, 0.5);
  const at::Tensor labels = c.Ids(90, 1000);
  labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
  const Weight fused = Case::Buffered(w), plain{.value = Case::Exact(w)};
  std::int64_t correct = 0, reference_correct = 0;
  const at::Tensor got = LinearCrossEntropy(x, fused, {}, labels, {.z_loss = 1e-2}, &correct, {}, kSoftcap);
  const at::Tensor want =
      reference::LinearCrossEntropy(x2, plain, {}, labels, {.z_loss = 1e-2}, &reference_correct, {}, kSoftcap);
  ExpectClose(got, want, c.tolerance(), "loss");
  EXPECT_EQ(correct, reference_correct);
  got.backward();
  want.backward();
  ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
  ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");

  const Weight frozen{.value = w.detach()};
  const at::Tensor x4 = Case::Copy(x);
  const at::Tensor each = TokenCrossEntropies(x4, frozen, {}, labels, 1000, {}, kSoftcap);
  const at::Tensor all =
      reference::TokenCrossEntropies(x3, {.value = plain.value.detach()}, {}, labels, 1000, {}, kSoftcap);
  ExpectClose(each, all, c.tolerance(), "losses of tokens");
  each.sum().backward();
  all.sum().backward();
  ExpectClose(x4.grad(), x3.grad(), c.tolerance(), "dx of losses of tokens");
}

/// The losses of single tokens, and the gradient of any function of them.
TEST_P(OpsTest, TokenCrossEntropies) {
  Case c(GetParam(), 9);
  const at::Tensor x = c.Random({90, 16}), x2 = Case::Exact(x), w = c.Random({70'000, 16}, 0.5);
  const at::Tensor labels = c.Ids(90, 70'000), scales = at::randn({90}, at::kDouble);
  labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
  const Weight frozen{.value = w.detach()}, plain{.value = Case::Exact(w).detach()};
  const at::Tensor got = TokenCrossEntropies(x, frozen, {}, labels, 70'000, {});
  const at::Tensor want = reference::TokenCrossEntropies(x2, plain, {}, labels, 70'000, {});
  EXPECT_EQ(got.narrow(0, 10, 30).abs().sum().item<double>(), 0);
  ExpectClose(got, want, c.tolerance(), "losses");
  (got * scales).sum().backward();
  (want * scales).sum().backward();
  ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(TokenCrossEntropies(x, frozen, {}, labels, 70'000, {}).equal(got)) << "losses without gradients";
}

INSTANTIATE_TEST_SUITE_P(Types, OpsTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST(LinearCrossEntropy, ALabelOutsideTheVocabularyIsRefused) {
  const at::Tensor x = at::randn({4, 8}), labels = at::full({4}, 5, at::kLong);
  EXPECT_ANY_THROW(LinearCrossEntropy(x, {.value = at::randn({5, 8})}, {}, labels));
}

TEST(LinearCrossEntropy, NothingToPredictCostsNothing) {
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true), labels = at::full({4}, kIgnoreLabel, at::kLong);
  const Weight head = Case::Buffered(at::randn({5, 8}));
  const at::Tensor loss = LinearCrossEntropy(x, head, {}, labels);
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
}

TEST(Kernels, ExpIsExactToTwoUlps) {
  for (float x = -87; x < 88; x += 0.0137F) {
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(cpu::Exp(x), want, want * 2.4e-7) << x;
  }
  EXPECT_TRUE(std::isnan(cpu::Exp(std::nanf(""))));
  EXPECT_EQ(cpu::Exp(0), 1);
}

/// Vectors of Random123's kat_vectors file.
TEST(Kernels, PhiloxHasTheNumbersOfItsPaper) {
  const auto words = [](std::uint64_t key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
    const cpu::PhiloxWords got = cpu::Philox(key, c0, c1, c2, c3);
    return std::vector<std::uint32_t>(got.words, got.words + 4);
  };
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(words(0, 0, 0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(~0ULL, ~0U, ~0U, ~0U, ~0U), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822ULL, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Kernels, Bf16RoundsToNearestEven) {
  const at::Tensor x = at::cat({at::randn({1000}), at::tensor({0.0F, -0.0F, INFINITY, 1.00390625F, 1.01171875F})});
  const at::Tensor want = x.to(at::kBFloat16);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float got = cpu::ToFloat(cpu::FromFloat<cpu::Bf16>(x[i].item<float>()));
    ASSERT_EQ(got, want[i].to(at::kFloat).item<float>()) << i;
  }
  EXPECT_TRUE(std::isnan(cpu::ToFloat(cpu::FromFloat<cpu::Bf16>(std::nanf("")))));
}

TEST(Kernels, ANanReachesTheLoss) {
  at::Tensor x = at::randn({4, 8});
  x[1][2] = std::nanf("");
  const at::Tensor loss = LinearCrossEntropy(x, {.value = at::randn({50, 8})}, {}, at::zeros({4}, at::kLong));
  EXPECT_TRUE(std::isnan(loss.item<float>()));
}

}  // namespace
}  // namespace millrace::engine::ops
