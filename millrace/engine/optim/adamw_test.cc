#include "millrace/engine/optim/adamw.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "millrace/engine/optim/schedule.h"

namespace millrace::engine {
namespace {

/// Two matrices and a scale, with gradients.
std::unique_ptr<ParameterBuffer> MakeBuffer(at::ScalarType dtype) {
  auto buffer = std::make_unique<ParameterBuffer>();
  buffer->Declare({.name = "matrix", .shape = {7, 33}, .stddev = 0.5});
  buffer->Declare({.name = "scale", .shape = {33}, .init = ParameterSpec::Init::kOnes});
  buffer->Declare({.name = "other", .shape = {300, 401}, .stddev = 0.5});
  buffer->Allocate(dtype, at::kCPU);
  buffer->Initialize(1);
  buffer->EnableGradients();
  return buffer;
}

/// The textbook, element by element in double.
struct Model {
  double weight, m = 0, v = 0;
  void Step(double g, double lr, double decay, const AdamwOptions& o, int t) {
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double update = (m / (1 - std::pow(o.beta1, t))) / (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.eps);
    weight -= lr * (decay * weight + update);
  }
};

class AdamwTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamwTest, FollowsTheTextbook) {
  const auto made = MakeBuffer(GetParam());
  ParameterBuffer& buffer = *made;
  const AdamwOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  Adamw optimizer(buffer, options);
  const at::Tensor start = buffer.values().to(at::kDouble);
  std::vector<Model> models(buffer.size());
  for (std::int64_t i = 0; i < buffer.size(); ++i) models[i].weight = start[i].item<double>();

  std::vector<bool> decays(buffer.size());
  for (const NamedParameter& p : buffer.parameters()) {
    for (std::int64_t i = p.begin; i < p.begin + p.elements(); ++i) decays[i] = p.tensor.dim() >= 2;
  }
  const auto generator = at::detail::createCPUGenerator(7);
  for (int t = 1; t <= 4; ++t) {
    const at::Tensor gradient = at::randn({buffer.size()}, generator);
    for (const NamedParameter& p : buffer.parameters()) {
      p.gradient.copy_(gradient.narrow(0, p.begin, p.elements()).view(p.tensor.sizes()));
    }
    const double lr = 0.01 * t, scale = 0.5;
    optimizer.Step(lr, scale);
    const float* g = gradient.data_ptr<float>();
    for (std::int64_t i = 0; i < buffer.size(); ++i) {
      models[i].Step(scale * g[i], lr, decays[i] ? options.weight_decay : 0, options, t);
    }
  }
  EXPECT_EQ(optimizer.steps(), 4);
  EXPECT_EQ(buffer.gradients().abs().sum().item<float>(), 0);
  const double tolerance = GetParam() == at::kFloat ? 2e-6 : 1.0 / 128;  // relative, of the rounded weights
  const at::Tensor end = buffer.values().to(at::kDouble);
  const double* values = end.data_ptr<double>();
  for (const NamedParameter& p : buffer.parameters()) {
    for (std::int64_t i = p.begin; i < p.begin + p.elements(); ++i) {
      ASSERT_NEAR(values[i], models[i].weight, tolerance * (0.1 + std::abs(models[i].weight))) << p.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AdamwTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST(Adamw, MasterCopyKeepsWhatBf16WouldLose) {
  ParameterBuffer buffer;
  buffer.Declare({.name = "w", .shape = {4, 4}});
  buffer.Allocate(at::kBFloat16, at::kCPU);
  buffer.parameters()[0].tensor.fill_(1);
  buffer.EnableGradients();
  Adamw optimizer(buffer, {.weight_decay = 0});
  for (int i = 0; i < 100; ++i) {  // each step is below bfloat16's resolution at 1
    buffer.gradients().fill_(1);
    optimizer.Step(1e-4, 1);
  }
  EXPECT_NEAR(buffer.values()[0].item<float>(), 0.99, 0.004);
}

TEST(Adamw, NormDoesNotDependOnThreads) {
  const auto made = MakeBuffer(at::kFloat);
  ParameterBuffer& buffer = *made;
  buffer.gradients().copy_(at::randn({buffer.size()}, at::detail::createCPUGenerator(3)));
  const Adamw optimizer(buffer, {});
  const double expected = buffer.gradients().to(at::kDouble).norm().item<double>();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = optimizer.GradientNorm(2);
  at::set_num_threads(2);
  EXPECT_EQ(optimizer.GradientNorm(2), one);
  at::set_num_threads(threads);
  EXPECT_NEAR(one, 2 * expected, 1e-9 * expected);
}

TEST(ClipScale, OnlyShrinks) {
  EXPECT_EQ(ClipScale(0.5, 1), 1);
  EXPECT_EQ(ClipScale(4, 1), 0.25);
  EXPECT_EQ(ClipScale(4, 0), 1);
}

TEST(Schedule, WarmsUpAndComesDown) {
  const Schedule s{.shape = Schedule::Shape::kCosine, .lr = 1, .min_lr = 0.1, .warmup_steps = 10, .total_steps = 110};
  EXPECT_DOUBLE_EQ(s.At(0), 0.1);
  EXPECT_DOUBLE_EQ(s.At(9), 1);
  EXPECT_DOUBLE_EQ(s.At(10), 1);
  EXPECT_NEAR(s.At(60), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(s.At(110), 0.1);
  EXPECT_DOUBLE_EQ(s.At(1000), 0.1);
  const Schedule flat{.shape = Schedule::Shape::kConstant, .lr = 2, .warmup_steps = 2};
  EXPECT_DOUBLE_EQ(flat.At(0), 1);
  EXPECT_DOUBLE_EQ(flat.At(999), 2);
}

}  // namespace
}  // namespace millrace::engine
