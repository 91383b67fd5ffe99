// Each optimizer against its textbook in double. float64 values have no fused kernel, so they test the reference.
#include "millrace/engine/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "millrace/engine/optim/make_optimizer.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

using ::testing::HasSubstr;

/// Two joined matrices, a scale, a matrix that is larger than a block and the matrices of an adapter, with gradients.
std::unique_ptr<ParameterBuffer> MakeBuffer(at::ScalarType dtype) {
  auto buffer = std::make_unique<ParameterBuffer>();
  buffer->Declare({.name = "matrix", .shape = {7, 33}, .stddev = 0.5});
  buffer->Declare({.name = "joined", .shape = {5, 33}, .stddev = 0.1, .joins_previous = true});
  buffer->Declare({.name = "scale", .shape = {33}, .init = ParameterSpec::Init::kOnes});
  buffer->Declare({.name = "other", .shape = {300, 401}, .stddev = 0.5});
  buffer->Declare({.name = "table.plain", .shape = {9, 4}, .stddev = 0.5});
  buffer->Declare({.name = "layer.lora_A.weight", .shape = {3, 20}, .stddev = 0.5});
  buffer->Declare({.name = "layer.lora_B.weight", .shape = {10, 3}, .stddev = 0.5});
  buffer->Allocate(dtype, at::kCPU);
  buffer->Initialize(1);
  buffer->EnableGradients();
  return buffer;
}

/// One parameter tensor in double.
struct Textbook {
  std::vector<double> weight, first, second;
  double decay = 0, lr_ratio = 1;
};
using TextbookStep = std::function<void(Textbook&, const std::vector<double>& gradient, double lr, int t)>;

double NormOf(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

TextbookStep AdamwTextbook(const AdamwOptions& o) {
  return [o](Textbook& p, const std::vector<double>& g, double lr, int t) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      p.first[i] = o.beta1 * p.first[i] + (1 - o.beta1) * g[i];
      p.second[i] = o.beta2 * p.second[i] + (1 - o.beta2) * g[i] * g[i];
      const double m = p.first[i] / (1 - std::pow(o.beta1, t)), v = p.second[i] / (1 - std::pow(o.beta2, t));
      p.weight[i] -= lr * (p.decay * p.weight[i] + m / (std::sqrt(v) + o.eps));
    }
  };
}

/// Algorithm 2 of the paper with φ the identity, and FusedLAMB's exception: no trust ratio without decay.
TextbookStep LambTextbook(const LambOptions& o) {
  return [o](Textbook& p, const std::vector<double>& g, double lr, int t) {
    std::vector<double> update(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      p.first[i] = o.beta1 * p.first[i] + (1 - o.beta1) * g[i];
      p.second[i] = o.beta2 * p.second[i] + (1 - o.beta2) * g[i] * g[i];
      const double m = p.first[i] / (1 - std::pow(o.beta1, t)), v = p.second[i] / (1 - std::pow(o.beta2, t));
      update[i] = m / (std::sqrt(v) + o.eps) + p.decay * p.weight[i];
    }
    const double ratio = p.decay > 0 ? NormOf(p.weight) / NormOf(update) : 1;
    for (std::size_t i = 0; i < g.size(); ++i) p.weight[i] -= lr * ratio * update[i];
  };
}

/// torch.optim.SGD, whose first step sets the momentum to the gradient.
TextbookStep SgdTextbook(const SgdOptions& o) {
  return [o](Textbook& p, const std::vector<double>& gradient, double lr, int t) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      double g = gradient[i] + p.decay * p.weight[i];
      if (o.momentum > 0) {
        p.first[i] = t == 1 ? g : o.momentum * p.first[i] + g;
        g = o.nesterov ? g + o.momentum * p.first[i] : p.first[i];
      }
      p.weight[i] -= lr * g;
    }
  };
}

struct Method {
  std::string name;
  OptimizerOptions options;
  TextbookStep textbook;
  double decay = 0;
  std::vector<std::string> state;  ///< kinds
};

constexpr double kLrRatio = 4;

std::vector<Method> Methods() {
  const AdamwOptions adamw{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  const LambOptions lamb{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05};
  const SgdOptions plain{.momentum = 0, .weight_decay = 0.1}, heavy{.momentum = 0.9, .weight_decay = 0.1};
  const SgdOptions nesterov{.momentum = 0.8, .nesterov = true, .weight_decay = 0.1};
  const ParameterRules rules{.no_decay = {"*.plain"}, .loraplus_lr_ratio = kLrRatio};
  return {{"adamw", {adamw, rules}, AdamwTextbook(adamw), 0.1, {"exp_avg", "exp_avg_sq"}},
          {"lamb", {lamb, rules}, LambTextbook(lamb), 0.05, {"exp_avg", "exp_avg_sq"}},
          {"sgd", {plain, rules}, SgdTextbook(plain), 0.1, {}},
          {"sgd", {heavy, rules}, SgdTextbook(heavy), 0.1, {"momentum"}},
          {"sgd", {nesterov, rules}, SgdTextbook(nesterov), 0.1, {"momentum"}}};
}

class OptimizerTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  /// Returns all precisions that state can have beside such weights.
  static std::vector<StateStorage> Precisions() {
    std::vector<StateStorage> all = {{}, {.bf16_moments = true, .seed = 3}};
    if (GetParam() == at::kBFloat16) {
      all.push_back({.rounds_weights = true, .seed = 3});
      all.push_back({.bf16_moments = true, .rounds_weights = true, .seed = 3});
    }
    return all;
  }
  /// Returns all methods with all precisions.
  static std::vector<Method> MethodsAndPrecisions() {
    std::vector<Method> all;
    for (const StateStorage& storage : Precisions()) {
      for (Method& method : Methods()) {
        method.options.storage = storage;
        all.push_back(std::move(method));
      }
    }
    return all;
  }
};

TEST_P(OptimizerTest, FollowsTheTextbook) {
  for (const Method& method : Methods()) {
    const auto buffer = MakeBuffer(GetParam());
    const auto optimizer = MakeOptimizer(*buffer, method.options).value();
    EXPECT_EQ(optimizer->name(), method.name);
    const at::Tensor start = buffer->values().to(at::kDouble).clone();
    std::vector<Textbook> textbooks;
    for (const NamedParameter& p : buffer->parameters()) {
      const double* values = start.data_ptr<double>() + p.begin;
      Textbook& book = textbooks.emplace_back();
      book.weight.assign(values, values + p.elements());
      book.first.resize(p.elements());
      book.second.resize(p.elements());
      book.lr_ratio = p.name == "scale" || p.name == "layer.lora_B.weight" ? kLrRatio : 1;
      book.decay = p.tensor.dim() >= 2 && p.name != "table.plain" ? method.decay : 0;
    }
    const auto generator = at::detail::createCPUGenerator(7);
    for (int t = 1; t <= 4; ++t) {
      const double lr = 0.01 * t, scale = 0.5;
      for (std::size_t i = 0; i < textbooks.size(); ++i) {
        const NamedParameter& p = buffer->parameters()[i];
        const at::Tensor gradient = at::randn({p.elements()}, generator);
        p.gradient.copy_(gradient.view(p.tensor.sizes()));
        const at::Tensor scaled = gradient.to(at::kDouble) * scale;
        const double* g = scaled.data_ptr<double>();
        method.textbook(textbooks[i], std::vector<double>(g, g + p.elements()), lr * textbooks[i].lr_ratio, t);
      }
      optimizer->Step(lr, scale);
    }
    EXPECT_EQ(optimizer->steps(), 4);
    EXPECT_EQ(buffer->gradients().abs().sum().item<float>(), 0);
    const double tolerance = GetParam() == at::kBFloat16 ? 1.0 / 128 : 3e-6;  // relative, of the rounded weights
    const at::Tensor end = buffer->values().to(at::kDouble);
    for (std::size_t k = 0; k < textbooks.size(); ++k) {
      const NamedParameter& p = buffer->parameters()[k];
      const double* values = end.data_ptr<double>() + p.begin;
      for (std::size_t i = 0; i < textbooks[k].weight.size(); ++i) {
        const double want = textbooks[k].weight[i];
        ASSERT_NEAR(values[i], want, tolerance * (0.1 + std::abs(want))) << method.name << " " << p.name << " " << i;
      }
    }
  }
}

TEST_P(OptimizerTest, MasterCopyKeepsWhatRoundingWouldLose) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{AdamwOptions{.weight_decay = 0}}, OptimizerOptions{LambOptions{.weight_decay = 1e-9}},
        OptimizerOptions{SgdOptions{.momentum = 0}}}) {
    ParameterBuffer buffer;
    buffer.Declare({.name = "w", .shape = {4, 4}});
    buffer.Allocate(GetParam(), at::kCPU);
    buffer.parameters()[0].tensor.fill_(1);
    buffer.EnableGradients();
    const auto optimizer = MakeOptimizer(buffer, options).value();
    for (int i = 0; i < 100; ++i) {  // each step is below bfloat16's resolution at 1
      buffer.gradients().fill_(1);
      optimizer->Step(1e-4, 1);
    }
    EXPECT_NEAR(buffer.values()[0].item<double>(), 0.99, 0.004) << optimizer->name();
  }
}

/// Returns the distance between bfloat16 numbers of the size of `value`.
double Bf16Distance(double value) { return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7); }

/// A step computes as with float32 state, from what is kept, and rounds what it keeps to one of the two neighbours.
TEST_P(OptimizerTest, RoundsWhatAFloat32StepComputes) {
  for (const Method& method : MethodsAndPrecisions()) {
    const StateStorage& storage = method.options.storage;
    if (!storage.bf16_moments && !storage.rounds_weights) continue;
    OptimizerOptions wide_options = method.options;
    wide_options.storage = {};
    const auto buffer = MakeBuffer(GetParam()), wide_buffer = MakeBuffer(GetParam());
    const auto optimizer = MakeOptimizer(*buffer, method.options).value();
    const auto wide = MakeOptimizer(*wide_buffer, wide_options).value();
    std::int64_t rounded = 0, nearest = 0;
    double excess = 0;  // in distances between bfloat16 numbers
    for (int t = 0; t < 3; ++t) {
      const std::vector<NamedState> state = optimizer->State(), wide_state = wide->State();
      const auto of = [](const std::vector<NamedState>& all, std::string_view name) -> const at::Tensor* {
        const auto found = std::ranges::find(all, name, &NamedState::name);
        return found == all.end() ? nullptr : &found->tensor;
      };
      // The twin begins each step with what the optimizer has kept.
      wide_buffer->values().detach().copy_(buffer->values());
      for (const NamedState& into : wide_state) {
        const at::Tensor* from = of(state, into.name);
        const at::Tensor& values = into.piece->values;
        into.tensor.detach().copy_(from != nullptr ? *from : values);  // of a master copy that is not kept
      }
      const at::Tensor gradients = at::randn({buffer->size()}, at::detail::createCPUGenerator(t));
      buffer->gradients().copy_(gradients);
      wide_buffer->gradients().copy_(gradients);
      optimizer->Step(0.01, 0.5);
      wide->Step(0.01, 0.5);
      const auto compare = [&](const std::string& name, const at::Tensor& got, const at::Tensor& want) {
        if (got.scalar_type() != at::kBFloat16) {
          // Compilers contract the two programs' multiplications and additions differently.
          EXPECT_TRUE(at::allclose(got, want, /*rtol=*/1e-6, /*atol=*/1e-7)) << name;
          return;
        }
        const at::Tensor a = got.to(at::kDouble).contiguous(), b = want.to(at::kDouble).contiguous();
        const at::Tensor near = want.to(at::kBFloat16).to(at::kDouble).contiguous();
        for (std::int64_t i = 0; i < a.numel(); ++i) {
          const double x = b.data_ptr<double>()[i], y = a.data_ptr<double>()[i];
          ASSERT_LT(std::abs(x - y), Bf16Distance(x) * (1 + 1e-5)) << method.name << " " << name << " " << i;
          if (near.data_ptr<double>()[i] == x) continue;
          ++rounded;
          nearest += y == near.data_ptr<double>()[i] ? 1 : 0;
          excess += (y - x) / Bf16Distance(x);
        }
      };
      for (const NamedState& one : state) compare(one.name, one.tensor, *of(wide_state, one.name));
      if (storage.rounds_weights) {
        for (const NamedState& one : wide_state) {
          if (one.name.starts_with("master/")) {
            compare(one.name, buffer->parameters()[one.piece->parameter].tensor.flatten(), one.tensor);
          }
        }
      }
    }
    if (rounded == 0) {
      EXPECT_TRUE(method.state.empty() && !storage.rounds_weights) << "SGD without momentum rounds no moments";
      continue;
    }
    // A number is nearest with probability 3/4 if values are spread evenly, and the error has a variance of 1/6.
    const auto count = static_cast<double>(rounded);
    EXPECT_NEAR(static_cast<double>(nearest) / count, 0.75, 0.02) << method.name;
    EXPECT_NEAR(excess / count, 0, 5 * std::sqrt(1 / 6.0 / count)) << method.name;
  }
}

/// Each step is far below bfloat16's resolution, which is 2^-8 below 1: rounding to nearest would lose it.
TEST(StochasticRounding, SmallUpdatesAddUp) {
  ParameterBuffer buffer;
  buffer.Declare({.name = "w", .shape = {64, 64}});
  buffer.Allocate(at::kBFloat16, at::kCPU);
  buffer.parameters()[0].tensor.fill_(1);
  buffer.EnableGradients();
  const auto optimizer = MakeOptimizer(buffer, {.method = AdamwOptions{.weight_decay = 0},
                                                .storage = {.bf16_moments = true, .rounds_weights = true}})
                             .value();
  for (int i = 0; i < 100; ++i) {
    buffer.gradients().fill_(1);
    optimizer->Step(1e-4, 1);
  }
  // A step adds a variance of 1e-4 · 2^-8, so the mean of 4,096 weights has a standard deviation of 1e-4.
  EXPECT_NEAR(buffer.values().to(at::kDouble).mean().item<double>(), 0.99, 5e-4);
}

/// Ranks that divide a matrix by rows or by columns, and ranks that hold it alike, round each weight alike.
TEST(StochasticRounding, IsTheSameUnderAnyDivision) {
  constexpr std::int64_t kRows = 24, kColumns = 40;
  const auto after_steps = [&](TensorSlice slice) {
    ParameterBuffer buffer;
    buffer.Declare({.name = "before", .shape = {5}});
    buffer.Declare({.name = "w", .shape = {kRows, kColumns}, .slice = slice, .stddev = 0.5});
    buffer.Allocate(at::kBFloat16, at::kCPU);
    buffer.Initialize(1);
    buffer.EnableGradients();
    const auto optimizer =
        MakeOptimizer(buffer, {.method = AdamwOptions(), .storage = {.bf16_moments = true, .rounds_weights = true}})
            .value();
    const NamedParameter& w = buffer.parameters()[1];
    for (int t = 0; t < 3; ++t) {
      const at::Tensor whole = at::randn({kRows, kColumns}, at::detail::createCPUGenerator(t));
      w.gradient.copy_(slice.whole() ? whole
                                     : whole.narrow(static_cast<std::int64_t>(slice.dim), slice.begin, slice.extent));
      optimizer->Step(0.01, 1);
    }
    return w.tensor.detach().clone();
  };
  const at::Tensor whole = after_steps({});
  for (const TensorSlice& slice :
       {TensorSlice{.dim = 0, .begin = 8, .extent = 8}, TensorSlice{.dim = 1, .begin = 10, .extent = 20},
        TensorSlice{.dim = 1, .begin = 30, .extent = 10}}) {
    const at::Tensor want = whole.narrow(static_cast<std::int64_t>(slice.dim), slice.begin, slice.extent);
    EXPECT_TRUE(after_steps(slice).equal(want)) << "dimension " << slice.dim << " from " << slice.begin;
  }
}

TEST(StochasticRounding, TheSeedDecides) {
  const auto weights = [](std::uint64_t seed) {
    const auto buffer = MakeBuffer(at::kBFloat16);
    const auto optimizer =
        MakeOptimizer(*buffer, {.method = AdamwOptions(), .storage = {.rounds_weights = true, .seed = seed}}).value();
    buffer->gradients().fill_(1);
    optimizer->Step(0.01, 1);
    return buffer->values().detach().clone();
  };
  EXPECT_TRUE(weights(1).equal(weights(1)));
  EXPECT_FALSE(weights(1).equal(weights(2)));
}

/// What a checkpoint has is the whole state: a second optimizer that is given it makes the same steps.
TEST_P(OptimizerTest, StateIsAllOfIt) {
  for (const Method& method : MethodsAndPrecisions()) {
    const auto one = MakeBuffer(GetParam()), two = MakeBuffer(GetParam());
    const auto first = MakeOptimizer(*one, method.options).value();
    const auto step = [&](ParameterBuffer& buffer, Optimizer& optimizer, std::uint64_t seed) {
      buffer.gradients().copy_(at::randn({buffer.size()}, at::detail::createCPUGenerator(seed)));
      optimizer.Step(0.01, 0.5);
    };
    for (int t = 0; t < 3; ++t) step(*one, *first, t);
    const auto second = MakeOptimizer(*two, method.options).value();
    two->values().detach().copy_(one->values());
    const std::vector<NamedState> from = first->State(), into = second->State();
    const bool has_master = GetParam() != at::kFloat && !method.options.storage.rounds_weights;
    const std::size_t kinds = method.state.size() + (has_master ? 1 : 0);
    ASSERT_EQ(from.size(), kinds * one->parameters().size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].name, into[i].name);
      into[i].tensor.detach().copy_(from[i].tensor);
    }
    for (std::size_t k = 0; k < method.state.size(); ++k) {
      EXPECT_EQ(from[k * one->parameters().size()].name, method.state[k] + "/matrix");
    }
    second->Restore(first->steps());
    for (int t = 3; t < 5; ++t) {
      step(*one, *first, t);
      step(*two, *second, t);
    }
    EXPECT_TRUE(one->values().equal(two->values())) << method.name;
  }
}

TEST_P(OptimizerTest, ThreadsDoNotChangeTheBits) {
  const int threads = at::get_num_threads();
  for (const Method& method : MethodsAndPrecisions()) {
    at::Tensor values[2];
    for (int run = 0; run < 2; ++run) {
      at::set_num_threads(1 + 2 * run);
      const auto buffer = MakeBuffer(GetParam());
      const auto optimizer = MakeOptimizer(*buffer, method.options).value();
      for (int t = 0; t < 3; ++t) {
        buffer->gradients().copy_(at::randn({buffer->size()}, at::detail::createCPUGenerator(t)));
        optimizer->Step(0.01, ClipScale(GradientNorm(*buffer, 1), 1));
      }
      values[run] = buffer->values().detach().clone();
    }
    if (GetParam() != at::kDouble) EXPECT_TRUE(values[0].equal(values[1])) << method.name;
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble),
                         [](const auto& info) {
                           return info.param == at::kFloat ? "F32" : info.param == at::kBFloat16 ? "BF16" : "Reference";
                         });

TEST(Optimizer, NormDoesNotDependOnThreads) {
  const auto made = MakeBuffer(at::kFloat);
  ParameterBuffer& buffer = *made;
  buffer.gradients().copy_(at::randn({buffer.size()}, at::detail::createCPUGenerator(3)));
  const Adamw optimizer(buffer);
  const double expected = buffer.gradients().to(at::kDouble).norm().item<double>();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = GradientNorm(buffer, 2);
  at::set_num_threads(2);
  EXPECT_EQ(GradientNorm(buffer, 2), one);
  at::set_num_threads(threads);
  EXPECT_NEAR(one, 2 * expected, 1e-9 * expected);
}

TEST(Lamb, ATensorOfZerosMoves) {
  ParameterBuffer buffer;
  buffer.Declare({.name = "w", .shape = {2, 2}, .init = ParameterSpec::Init::kZeros});
  buffer.Allocate(at::kFloat, at::kCPU);
  buffer.EnableGradients();
  Lamb optimizer(buffer);
  buffer.gradients().fill_(3);
  optimizer.Step(0.1, 1);
  EXPECT_NEAR(buffer.values()[0].item<float>(), -0.1, 1e-6) << "the ratio is 1: a step of Adam";
}

TEST(Optimizer, APatternThatMatchesNothingIsRefused) {
  const auto buffer = MakeBuffer(at::kFloat);
  const auto made =
      MakeOptimizer(*buffer, {.method = AdamwOptions(), .rules = {.no_decay = {"*.plain", "*LayerNrm*"}}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(made.error().ToString(), HasSubstr("*LayerNrm*"));
}

TEST(ClipScale, OnlyShrinks) {
  EXPECT_EQ(ClipScale(0.5, 1), 1);
  EXPECT_EQ(ClipScale(4, 1), 0.25);
  EXPECT_EQ(ClipScale(4, 0), 1);
}

}  // namespace
}  // namespace millrace::engine
