// The optimizers on a GPU against those on the CPU, and the norm of gradients.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/engine/optim/make_optimizer.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

/// Parameters that lie in many ways: joined at odd places, with and without decay, smaller and larger than a block.
std::unique_ptr<ParameterBuffer> BufferOn(at::Device device, at::ScalarType dtype) {
  auto buffer = std::make_unique<ParameterBuffer>();
  buffer->Declare({.name = "matrix", .shape = {7, 33}, .stddev = 0.5});
  buffer->Declare({.name = "joined.bias", .shape = {5}, .stddev = 0.1, .joins_previous = true});
  buffer->Declare({.name = "joined", .shape = {5, 33}, .stddev = 0.1, .joins_previous = true});
  buffer->Declare({.name = "scale", .shape = {33}, .init = ParameterSpec::Init::kOnes});
  buffer->Declare({.name = "zeros", .shape = {4, 8}, .init = ParameterSpec::Init::kZeros});
  buffer->Declare({.name = "other", .shape = {300, 401}, .stddev = 0.5});
  buffer->Declare({.name = "layer.lora_B.weight", .shape = {10, 3}, .stddev = 0.5});
  buffer->Declare(
      {.name = "columns", .shape = {70, 96}, .slice = {.dim = 1, .begin = 24, .extent = 24}, .stddev = 0.5});
  buffer->Allocate(dtype, device);
  buffer->EnableGradients();
  return buffer;
}

struct OptimizerCase {
  const char* name;
  OptimizerOptions options;
  at::ScalarType dtype;
};

class OptimizerCudaTest : public ::testing::TestWithParam<OptimizerCase> {
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_P(OptimizerCudaTest, UpdatesAsTheCpu) {
  const auto& [name, options, dtype] = GetParam();
  const auto on_cpu = BufferOn(at::kCPU, dtype), on_gpu = BufferOn(at::kCUDA, dtype),
             again = BufferOn(at::kCUDA, dtype);
  on_cpu->Initialize(1);
  const auto each = {on_cpu.get(), on_gpu.get(), again.get()};
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (ParameterBuffer* buffer : each) {
    buffer->values().copy_(on_cpu->values());
    optimizers.push_back(MakeOptimizer(*buffer, options).value());
  }
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradients = at::randn(on_cpu->gradients().sizes(), at::detail::createCPUGenerator(step));
    for (ParameterBuffer* buffer : each) {
      for (const NamedParameter& parameter : buffer->parameters()) {
        parameter.gradient.copy_(
            gradients.narrow(0, parameter.begin, parameter.elements()).view(parameter.tensor.sizes()));
      }
    }
    const double want = GradientNorm(*on_cpu, 0.5);
    EXPECT_NEAR(GradientNorm(*on_gpu, 0.5), want, 1e-12 * want);
    for (const auto& optimizer : optimizers) optimizer->Step(0.01, 0.7);
    for (ParameterBuffer* buffer : each) EXPECT_EQ(buffer->gradients().abs().max().item<float>(), 0) << name;
  }
  const auto want = optimizers[0]->State(), got = optimizers[1]->State(), twin = optimizers[2]->State();
  ASSERT_EQ(want.size(), got.size());
  // The reference of a CPU computes with the betas in double, and kernels in float32.
  const double relative = dtype == at::kHalf ? 5e-5 : 2e-6;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const at::Tensor difference = (got[i].tensor.cpu() - want[i].tensor).abs();
    const double most = want[i].tensor.abs().max().item<double>();
    EXPECT_LE(difference.max().item<double>(), relative * most + 1e-12) << want[i].name;
    EXPECT_TRUE(got[i].tensor.equal(twin[i].tensor)) << want[i].name << ": other bits";
  }
  const at::Tensor values = on_gpu->values().cpu().to(at::kFloat), expected = on_cpu->values().to(at::kFloat);
  const double tolerance = dtype == at::kFloat ? 2e-6 : 8e-3;  // a number between two of bfloat16 may go either way
  EXPECT_LE((values - expected).abs().max().item<double>(), tolerance * expected.abs().max().item<double>()) << name;
  EXPECT_TRUE(on_gpu->values().equal(again->values())) << name;
}

class RoundedStateCudaTest : public OptimizerCudaTest {};

/// Both round with the same random bits. A number that they compute differently in the last bit of float32 may go
/// another way, which is rare.
TEST_P(RoundedStateCudaTest, RoundsAsTheCpu) {
  const auto& [name, options, dtype] = GetParam();
  const auto on_cpu = BufferOn(at::kCPU, dtype), on_gpu = BufferOn(at::kCUDA, dtype);
  on_cpu->Initialize(1);
  const at::NoGradGuard no_grad;
  on_gpu->values().copy_(on_cpu->values());
  const auto cpu = MakeOptimizer(*on_cpu, options).value(), gpu = MakeOptimizer(*on_gpu, options).value();
  const at::Tensor gradients = at::randn(on_cpu->gradients().sizes(), at::detail::createCPUGenerator(5));
  on_cpu->gradients().copy_(gradients);
  on_gpu->gradients().copy_(gradients);
  cpu->Step(0.01, 0.7);
  gpu->Step(0.01, 0.7);
  const auto expect_same = [&](const std::string& what, const at::Tensor& got, const at::Tensor& want) {
    ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
    const bool rounded = want.scalar_type() == at::kBFloat16;
    const at::Tensor a = got.cpu().to(at::kDouble), b = want.to(at::kDouble), difference = (a - b).abs();
    EXPECT_LE((difference / (b.abs() + 1e-6)).max().item<double>(), rounded ? 0x1p-7 : 1e-4) << what;
    if (rounded) EXPECT_GT(difference.eq(0).to(at::kDouble).mean().item<double>(), 0.99) << what;
  };
  const auto want = cpu->State(), got = gpu->State();
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) expect_same(want[i].name, got[i].tensor, want[i].tensor);
  expect_same("weights", on_gpu->values(), on_cpu->values());
}

/// The same kernels, with state that they reach over the bus.
class StateOnHostCudaTest : public OptimizerCudaTest {};

TEST_P(StateOnHostCudaTest, MakesTheSameBits) {
  OptimizerOptions options = GetParam().options;
  const at::ScalarType dtype = GetParam().dtype;
  const auto initial = BufferOn(at::kCPU, dtype), first = BufferOn(at::kCUDA, dtype),
             second = BufferOn(at::kCUDA, dtype);
  initial->Initialize(1);
  const at::NoGradGuard no_grad;
  first->values().copy_(initial->values());
  second->values().copy_(initial->values());
  const auto on_gpu = MakeOptimizer(*first, options).value();
  options.storage.on_host = true;
  const auto on_host = MakeOptimizer(*second, options).value();
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradients = at::randn(initial->gradients().sizes(), at::detail::createCPUGenerator(step));
    first->gradients().copy_(gradients);
    second->gradients().copy_(gradients);
    on_gpu->Step(0.01, 0.7);
    on_host->Step(0.01, 0.7);
  }
  EXPECT_TRUE(first->values().equal(second->values()));
  // To compare the weights, the CPU has waited for the kernels.
  const auto want = on_gpu->State(), got = on_host->State();
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i].tensor.is_cpu()) << got[i].name;
    EXPECT_TRUE(got[i].tensor.equal(want[i].tensor.cpu())) << got[i].name;
  }
}

std::vector<OptimizerCase> RoundedCases() {
  std::vector<OptimizerCase> cases;
  const OptimizerOptions methods[] = {
      {.method = AdamwOptions()}, {.method = LambOptions()}, {.method = SgdOptions{.momentum = 0.9}}};
  const char* const names[][3] = {{"adamw", "lamb", "sgd"}, {"adamw_weights", "lamb_weights", "sgd_weights"}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool rounds_weights : {false, true}) {
      if (rounds_weights && dtype == at::kFloat) continue;
      for (int i = 0; i < 3; ++i) {
        OptimizerOptions options = methods[i];
        options.storage = {.bf16_moments = true, .rounds_weights = rounds_weights, .seed = 3};
        cases.push_back({names[rounds_weights ? 1 : 0][i], options, dtype});
      }
    }
  }
  return cases;
}

/// Numbers of a type that has no kernel on the CPU: the optimizer on a CPU is its reference.
std::vector<OptimizerCase> AllCases() {
  std::vector<OptimizerCase> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const ParameterRules rules{.no_decay = {"joined"}, .loraplus_lr_ratio = 4};
    cases.push_back({"adamw", {AdamwOptions{}, rules}, dtype});
    cases.push_back({"lamb", {LambOptions{}, rules}, dtype});
    if (dtype == at::kHalf) continue;  // the reference has no rates of its own for some parameters
    cases.push_back({"sgd", {SgdOptions{.momentum = 0.9, .weight_decay = 0.1}, rules}, dtype});
    cases.push_back({"nesterov", {SgdOptions{.momentum = 0.9, .nesterov = true}, rules}, dtype});
    cases.push_back({"plain", {SgdOptions{.momentum = 0, .weight_decay = 0.01}, rules}, dtype});
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<OptimizerCase>& info) {
  return std::string(info.param.name) + at::toString(info.param.dtype);
}
INSTANTIATE_TEST_SUITE_P(Methods, OptimizerCudaTest, ::testing::ValuesIn(AllCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Methods, RoundedStateCudaTest, ::testing::ValuesIn(RoundedCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Methods, StateOnHostCudaTest, ::testing::ValuesIn(AllCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Rounded, StateOnHostCudaTest, ::testing::ValuesIn(RoundedCases()), CaseName);

}  // namespace
}  // namespace millrace::engine
