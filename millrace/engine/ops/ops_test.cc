// Every fused op against its reference: results and gradients.
#include "millrace/engine/ops/ops.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/reference.h"

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

class OpsTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(OpsTest, AddRmsNorm) {
  Case c(GetParam(), 1);
  for (const bool with_delta : {false, true}) {
    const at::Tensor x = c.Random({67, 48}, 3), delta = with_delta ? c.Random({67, 48}) : at::Tensor();
    const at::Tensor w = c.Random({48});
    const at::Tensor x2 = Case::Copy(x), delta2 = with_delta ? Case::Copy(delta) : at::Tensor();
    const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
    const Normed a = AddRmsNorm(x, delta, fused, 1e-5), b = reference::AddRmsNorm(x2, delta2, plain, 1e-5);
    ExpectClose(a.out, b.out, c.tolerance(), "out");
    ExpectClose(a.sum, b.sum, c.tolerance(), "sum");
    (Weigh(a.out, 5) + Weigh(a.sum, 6)).backward();
    (Weigh(b.out, 5) + Weigh(b.sum, 6)).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    if (with_delta) ExpectClose(delta.grad(), delta2.grad(), c.tolerance(), "ddelta");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
  }
}

TEST_P(OpsTest, Rope) {
  Case c(GetParam(), 2);
  const HeadLayout layout{.heads = 4, .kv_heads = 2, .head_dim = 6};
  const RopeTable table = RopeTable::Make(20, 6, 10000, at::kCPU);
  for (const Sequences& sequences : {Sequences::Even(3, 11, 5), Sequences::Cut({{0, 16, 17, 20, 33}}, 33)}) {
    const at::Tensor x = c.Random({33, layout.columns()}), x2 = Case::Copy(x);
    const at::Tensor a = Rope(x, table, layout, sequences), b = reference::Rope(x2, table, layout, sequences);
    ExpectClose(a, b, c.tolerance(), "out");
    Weigh(a, 5).backward();
    Weigh(b, 5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
  }
  const at::Tensor x = c.Random({33, layout.columns()});
  EXPECT_ANY_THROW(Rope(x, table, layout, Sequences::Even(3, 11, 10)));
  EXPECT_ANY_THROW(Rope(x, table, layout, Sequences::Even(3, 10)));
}

TEST_P(OpsTest, Swiglu) {
  Case c(GetParam(), 3);
  const at::Tensor x = c.Random({29, 70}, 4), x2 = Case::Copy(x);
  const at::Tensor a = Swiglu(x), b = reference::Swiglu(x2);
  ExpectClose(a, b, c.tolerance(), "out");
  Weigh(a, 5).backward();
  Weigh(b, 5).backward();
  ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
}

TEST_P(OpsTest, CausalAttention) {
  Case c(GetParam(), 4);
  std::vector<Sequences> batches = {Sequences::Cut({{0, 1, 64, 65, 130, 137, 288}}, 288)};
  for (const std::int64_t length : {1, 7, 64, 150}) batches.push_back(Sequences::Even(2, length));
  for (const Sequences& sequences : batches) {
    const HeadLayout layout{.heads = 6, .kv_heads = 2, .head_dim = 8};
    const at::Tensor x = c.Random({sequences.tokens(), layout.columns()}, 1.5), x2 = Case::Copy(x);
    const at::Tensor a = CausalAttention(x, layout, sequences), b = reference::CausalAttention(x2, layout, sequences);
    ExpectClose(a, b, c.tolerance(), "out");
    Weigh(a, 5).backward();
    Weigh(b, 5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dqkv");
  }
}

/// Rope and attention of sequences of all kinds of lengths, together and one by one.
TEST_P(OpsTest, ASequenceHasTheSameBitsInAnyCompany) {
  Case c(GetParam(), 8);
  const HeadLayout layout{.heads = 6, .kv_heads = 2, .head_dim = 8};
  const RopeTable table = RopeTable::Make(200, 8, 10000, at::kCPU);
  const auto attend = [&](const at::Tensor& x, const Sequences& sequences) {
    return CausalAttention(Rope(x, table, layout, sequences), layout, sequences);
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
  const at::Tensor x = c.Random({31, 24}), x2 = Case::Copy(x), w = c.Random({40, 24});
  const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
  fused.gradient.fill_(1);
  const at::Tensor a = Linear(x, fused), b = reference::Linear(x2, plain);
  ExpectClose(a, b, c.tolerance(), "out");
  Weigh(a, 5).backward();
  Weigh(b, 5).backward();
  ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
  ExpectClose(fused.gradient - 1, plain.value.grad(), c.tolerance(), "dweight");
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
    const at::Tensor x = c.Random({90, 16}), x2 = Case::Copy(x), w = c.Random({70'000, 16}), labels = c.Ids(90, 70'000);
    if (ignored) labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
    const Weight fused = Case::Buffered(w), plain{.value = Case::Copy(w)};
    const at::Tensor a = LinearCrossEntropy(x, fused, labels), b = reference::LinearCrossEntropy(x2, plain, labels);
    ExpectClose(a, b, c.tolerance(), "loss");
    (a * 0.5).backward();
    (b * 0.5).backward();
    ExpectClose(x.grad(), x2.grad(), c.tolerance(), "dx");
    ExpectClose(fused.gradient, plain.value.grad(), c.tolerance(), "dweight");
    const at::NoGradGuard no_grad;
    EXPECT_EQ(LinearCrossEntropy(x, fused, labels).item<float>(), a.item<float>()) << "loss without gradients";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OpsTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST(LinearCrossEntropy, ALabelOutsideTheVocabularyIsRefused) {
  const at::Tensor x = at::randn({4, 8}), labels = at::full({4}, 5, at::kLong);
  EXPECT_ANY_THROW(LinearCrossEntropy(x, {.value = at::randn({5, 8})}, labels));
}

TEST(LinearCrossEntropy, NothingToPredictCostsNothing) {
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true), labels = at::full({4}, kIgnoreLabel, at::kLong);
  const Weight head = Case::Buffered(at::randn({5, 8}));
  const at::Tensor loss = LinearCrossEntropy(x, head, labels);
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
  const at::Tensor loss = LinearCrossEntropy(x, {.value = at::randn({50, 8})}, at::zeros({4}, at::kLong));
  EXPECT_TRUE(std::isnan(loss.item<float>()));
}

}  // namespace
}  // namespace millrace::engine::ops
