// The ops on a GPU against their references on the CPU: results, gradients, and the same bits when they run again.
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "millrace/collectives/connect.h"
#include "millrace/engine/ops/cached_attention.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/quantized/coded_product.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/embedding.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/quantized_product.h"
#include "millrace/engine/ops/reference.h"
#include "millrace/engine/testing/in_memory_codes.h"

namespace millrace::engine::ops {
namespace {

/// Inputs of an op: tensors and weights.
struct Operands {
  TensorList tensors;
  std::vector<Weight> weights;
};
using Op = std::function<TensorList(const Operands&)>;

/// What an op made of its operands.
struct Made {
  TensorList outputs, gradients;  ///< gradients of tensors, then of weights
};

class OpsCudaTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU here";
    generator_ = at::detail::createCPUGenerator(::testing::UnitTest::GetInstance()->random_seed() + 1);
  }
  /// A tensor of this type, on the CPU.
  at::Tensor Random(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, generator_) * scale).to(GetParam());
  }
  std::int64_t Below(std::int64_t end) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end));
  }
  /// Relative to the largest magnitude.
  static double Tolerance() { return GetParam() == at::kFloat ? 2e-5 : GetParam() == at::kHalf ? 4e-3 : 2e-2; }

  /// Copies operands to where an op runs. `misaligned`: the tensors begin one element behind a vector.
  static Operands Place(const Operands& from, at::Device device, at::ScalarType type, bool misaligned) {
    Operands to;
    const auto copy = [&](const at::Tensor& x) {
      if (!x.defined()) return x;
      at::Tensor memory = at::empty({x.numel() + 1}, at::TensorOptions().dtype(type).device(device));
      at::Tensor view = memory.narrow(0, misaligned ? 1 : 0, x.numel()).view(x.sizes());
      view.copy_(x);
      return view.set_requires_grad(true);
    };
    for (const at::Tensor& x : from.tensors) to.tensors.push_back(copy(x));
    for (const Weight& weight : from.weights) {
      const at::Tensor value = copy(weight.value);
      to.weights.push_back(
          {value, value.defined() ? at::zeros(value.sizes(), value.options().dtype(at::kFloat).requires_grad(false))
                                  : at::Tensor()});
    }
    return to;
  }

  static Made Run(const Op& op, const Operands& operands) {
    Made made{.outputs = op(operands)};
    TensorList upstream;
    for (std::size_t i = 0; i < made.outputs.size(); ++i) {
      const at::Tensor& out = made.outputs[i];
      upstream.push_back(at::randn(out.sizes(), at::detail::createCPUGenerator(50 + i)).to(out.options()));
    }
    RunBackward(made.outputs, upstream);
    for (const at::Tensor& x : operands.tensors) made.gradients.push_back(x.defined() ? x.grad() : x);
    for (const Weight& weight : operands.weights) made.gradients.push_back(weight.gradient);
    return made;
  }

  static void ExpectClose(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
    ASSERT_EQ(got.defined(), want.defined()) << what;
    if (!got.defined() || got.numel() == 0) return;
    ASSERT_EQ(got.sizes(), want.sizes()) << what;
    const at::Tensor a = got.detach().cpu().to(at::kDouble), b = want.detach().cpu().to(at::kDouble);
    // Where terms cancel each other, as in rows of one column, rounding errors of numbers around 1 are left.
    const double most = b.abs().max().item<double>(), terms = b.numel() < 16 ? 1 : 1e-2;
    EXPECT_LE((a - b).abs().max().item<double>(), Tolerance() * (most + terms)) << what << ", largest " << most;
  }

  /// Holds a fused op against its reference in float32.
  static void Compare(const std::string& what, const Operands& operands, const Op& fused, const Op& reference) {
    const Made want = Run(reference, Place(operands, at::kCPU, at::kFloat, false));
    for (const bool misaligned : {false, true}) {
      const Made got = Run(fused, Place(operands, at::kCUDA, GetParam(), misaligned));
      const Made again = Run(fused, Place(operands, at::kCUDA, GetParam(), misaligned));
      for (std::size_t i = 0; i < want.outputs.size(); ++i) {
        const std::string which = fmt::format("{}, output {}, misaligned {}", what, i, misaligned);
        ExpectClose(got.outputs[i], want.outputs[i], which);
        EXPECT_TRUE(got.outputs[i].equal(again.outputs[i])) << which << ": other bits";
      }
      for (std::size_t i = 0; i < want.gradients.size(); ++i) {
        const std::string which = fmt::format("{}, gradient {}, misaligned {}", what, i, misaligned);
        ExpectClose(got.gradients[i], want.gradients[i], which);
        if (!got.gradients[i].defined()) continue;
        EXPECT_TRUE(got.gradients[i].equal(again.gradients[i])) << which << ": other bits";
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  at::Generator generator_;
  std::mt19937_64 engine_{7};
};

/// Shapes of rows: small ones, odd ones, empty ones, and those where kernels change their ways.
const std::vector<std::pair<std::int64_t, std::int64_t>>& Shapes() {
  static const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {1, 1},     {0, 16},    {7, 1},      {1, 17},    {67, 48},   {33, 64},   {300, 128},
      {5, 255},   {130, 256}, {1001, 768}, {64, 1024}, {41, 2048}, {19, 4096}, {9, 5000},
      {1500, 72}, {11, 8192}, {3, 16384},  {2, 16383}, {2, 40000}};
  return shapes;
}

TEST_P(OpsCudaTest, AddRmsNorm) {
  for (const auto& [rows, columns] : Shapes()) {
    for (const auto& [with_delta, offset] : {std::pair(false, 0.0), {true, 0.0}, {false, 1.0}}) {
      const Operands operands{{Random({rows, columns}, 3), with_delta ? Random({rows, columns}) : at::Tensor()},
                              {{.value = Random({columns})}}};
      // Without a large eps, one column is +1 or -1, and gradients are rounding errors.
      const RmsNormOptions options{.eps = columns == 1 ? 1 : 1e-5, .offset = offset};
      const auto run = [options](auto&& norm) {
        return [norm, options](const Operands& o) {
          const Normed normed = norm(o.tensors[0], o.tensors[1], o.weights[0], options);
          return o.tensors[1].defined() ? TensorList{normed.sum, normed.out} : TensorList{normed.out};
        };
      };
      Compare(fmt::format("{} x {}, delta {}, offset {}", rows, columns, with_delta, offset), operands,
              run(cuda::AddRmsNorm), run(reference::AddRmsNorm));
    }
  }
}

TEST_P(OpsCudaTest, AddLayerNorm) {
  for (const auto& [rows, columns] : Shapes()) {
    for (const bool with_delta : {false, true}) {
      const Operands operands{{Random({rows, columns}, 3) + 5, with_delta ? Random({rows, columns}) : at::Tensor()},
                              {{.value = Random({columns})}, {.value = Random({columns})}}};
      const double eps = columns == 1 ? 1 : 1e-5;  // without it, the rounding errors of one column grow 300 times
      const auto run = [eps](auto&& norm) {
        return [norm, eps](const Operands& o) {
          const Normed normed = norm(o.tensors[0], o.tensors[1], o.weights[0], o.weights[1], eps);
          return o.tensors[1].defined() ? TensorList{normed.sum, normed.out} : TensorList{normed.out};
        };
      };
      Compare(fmt::format("{} x {}, delta {}", rows, columns, with_delta), operands, run(cuda::AddLayerNorm),
              run(reference::AddLayerNorm));
    }
  }
}

/// The gradient of the sum joins that of the norm; a norm whose output is not used passes the sum's on.
TEST_P(OpsCudaTest, NormsTakeEitherGradient) {
  for (const bool of_sum : {false, true}) {
    const Operands operands{{Random({70, 96}), Random({70, 96})}, {{.value = Random({96})}}};
    const auto run = [of_sum](auto&& norm) {
      return [norm, of_sum](const Operands& o) {
        const Normed normed = norm(o.tensors[0], o.tensors[1], o.weights[0], {.eps = 1e-5});
        return TensorList{of_sum ? normed.sum : normed.out};
      };
    };
    const Made want = Run(run(reference::AddRmsNorm), Place(operands, at::kCPU, at::kFloat, false));
    const Made got = Run(run(cuda::AddRmsNorm), Place(operands, at::kCUDA, GetParam(), false));
    for (const std::size_t i : {0, 1})
      ExpectClose(got.gradients[i], want.gradients[i], fmt::format("of sum {}", of_sum));
  }
}

TEST_P(OpsCudaTest, Activate) {
  for (const auto& [rows, columns] : Shapes()) {
    for (const Activation activation :
         {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu, Activation::kRelu}) {
      const auto run = [activation](auto&& op) {
        return [op, activation](const Operands& o) { return TensorList{op(o.tensors[0], activation)}; };
      };
      Compare(fmt::format("{} x {}, activation {}", rows, columns, static_cast<int>(activation)),
              {{Random({rows, columns}, 4)}, {}}, run(cuda::Activate), run(reference::Activate));
    }
  }
}

TEST_P(OpsCudaTest, Gated) {
  for (const auto& [rows, columns] : Shapes()) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const auto run = [activation](auto&& op) {
        return [op, activation](const Operands& o) { return TensorList{op(o.tensors[0], activation)}; };
      };
      Compare(fmt::format("{} x {}, activation {}", rows, columns, static_cast<int>(activation)),
              {{Random({rows, 2 * columns}, 4)}, {}}, run(cuda::Gated), run(reference::Gated));
    }
  }
}

TEST_P(OpsCudaTest, Rotate) {
  const HeadLayout layouts[] = {{4, 2, 8}, {3, 1, 64}, {6, 6, 80}, {2, 1, 6}, {8, 2, 128}};
  for (const HeadLayout& layout : layouts) {
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      for (const std::int64_t dim : {layout.head_dim, layout.head_dim / 4 * 2}) {
        if (dim == 0) continue;
        const std::vector<float> frequencies = RotaryFrequencies(dim, 10000);
        for (const Sequences& sequences : {Sequences::Even(3, 11, 5), Sequences::Cut({{0, 16, 17, 20, 33}}, 33)}) {
          const auto run = [&](auto&& op, at::Device device) {
            const RotaryTable table = RotaryTable::Make(20, frequencies, pairs, device);
            return [=](const Operands& o) { return TensorList{op(o.tensors[0], table, layout, sequences)}; };
          };
          Compare(fmt::format("{} heads of {}, {} turn", layout.heads, layout.head_dim, dim),
                  {{Random({33, layout.columns()})}, {}}, run(cuda::Rotate, at::kCUDA),
                  run(reference::Rotate, at::kCPU));
        }
      }
    }
  }
}

/// The same elements as on the CPU, to the bit, for every place in a model and in a batch.
TEST_P(OpsCudaTest, DropoutDropsWhatTheCpuDrops) {
  for (const auto& [rows, columns] : Shapes()) {
    for (const std::int64_t first_column : {0, 3, 64}) {
      DropoutSite site{.probability = 0.3,
                       .site = 9,
                       .rows = {.seed = 4, .step = 2, .first_sample = 5'000'000'000, .row_length = 7}};
      site.first_token = Below(50);
      site.first_column = first_column;
      const at::Tensor x = Random({rows, columns});
      const at::Tensor want = reference::Dropout(x, site), got = cuda::Dropout(x.cuda(), site).cpu();
      EXPECT_TRUE(got.equal(want)) << rows << " x " << columns << " from column " << first_column;
      const auto run = [site](auto&& op) {
        return [op, site](const Operands& o) { return TensorList{op(o.tensors[0], site)}; };
      };
      Compare(fmt::format("{} x {}", rows, columns), {{x}, {}}, run(cuda::Dropout), run(reference::Dropout));
    }
  }
}

TEST_P(OpsCudaTest, Embedding) {
  struct Case {
    std::int64_t table, ids, columns, used;  // ids are below `used`: few of them occur often
  };
  const Case cases[] = {{1, 1, 1, 1},          {10, 50, 96, 10},      {50, 1000, 64, 3}, {7, 333, 17, 1},
                        {1000, 64, 768, 1000}, {300, 4097, 136, 299}, {5, 0, 8, 5},      {3, 640, 2100, 2}};
  for (const auto& [table, count, columns, used] : cases) {
    const at::Tensor ids = at::randint(used, {count}, generator_, at::kLong);
    for (const bool on_cpu : {false, true}) {
      const auto fused = [&](const Operands& o) {
        return TensorList{cuda::Embedding(o.weights[0], on_cpu ? ids : ids.cuda())};
      };
      const auto plain = [&](const Operands& o) { return TensorList{reference::Embedding(o.weights[0], ids)}; };
      Compare(fmt::format("{} ids of {}, {} columns", count, used, columns),
              {{}, {{.value = Random({table, columns})}}}, fused, plain);
    }
  }
}

TEST_P(OpsCudaTest, SumsOfRows) {
  for (const auto& [rows, columns] : Shapes()) {
    const at::Tensor x = Random({rows, columns}) + 1;
    const Weight bias{.value = Random({columns}).cuda(), .gradient = at::ones({columns}, at::kFloat).cuda()};
    const at::Tensor want = x.to(at::kDouble).sum(0);
    cuda::AddOrReturnRowSum(bias, x.cuda());
    ExpectClose(bias.gradient - 1, want, fmt::format("{} x {}", rows, columns));
    ExpectClose(cuda::AddOrReturnRowSum({}, x.cuda()), want, fmt::format("{} x {}", rows, columns));
    // Rows with memory between them, as logits have.
    const at::Tensor apart = at::full({rows, (columns + 15) / 8 * 8}, 100, x.options()).cuda().narrow(1, 0, columns);
    apart.copy_(x);
    ExpectClose(cuda::AddOrReturnRowSum({}, apart), want, fmt::format("{} x {}, apart", rows, columns));
  }
}

struct LossCase {
  std::int64_t rows, hidden, vocab;
  bool with_bias, ignored;
  LossOptions options;
};

TEST_P(OpsCudaTest, LinearCrossEntropy) {
  const LossCase cases[] = {{90, 16, 70'000, false, false, {}},
                            {90, 16, 70'000, true, true, {}},
                            {33, 8, 1001, true, true, {.label_smoothing = 0.1, .z_loss = 1e-3}},
                            {5000, 8, 7, false, true, {.label_smoothing = 0.2}},
                            {4500, 16, 1024, true, false, {.z_loss = 1e-3}},
                            {1, 24, 2, false, false, {}}};
  for (const LossCase& c : cases) {
    const Operands operands{
        {Random({c.rows, c.hidden})},
        {{.value = Random({c.vocab, c.hidden}, 0.5)}, {.value = c.with_bias ? Random({c.vocab}) : at::Tensor()}}};
    const at::Tensor labels = at::randint(c.vocab, {c.rows}, generator_, at::kLong);
    if (c.ignored) labels.narrow(0, c.rows / 9, c.rows / 3).fill_(kIgnoreLabel);
    std::int64_t want_correct = 0, correct = 0;
    const auto plain = [&](const Operands& o) {
      return TensorList{
          reference::LinearCrossEntropy(o.tensors[0], o.weights[0], o.weights[1], labels, c.options, &want_correct)};
    };
    for (const bool on_cpu : {false, true}) {
      const auto fused = [&](const Operands& o) {
        correct = 0;
        return TensorList{cuda::LinearCrossEntropy(o.tensors[0], o.weights[0], o.weights[1],
                                                   on_cpu ? labels : labels.cuda(), c.options, &correct, {})};
      };
      want_correct = 0;
      Compare(fmt::format("{} rows, {} classes, labels on the CPU {}", c.rows, c.vocab, on_cpu), operands, fused,
              plain);
      EXPECT_NEAR(correct, want_correct, GetParam() == at::kFloat ? 1 : 2 + 0.02 * static_cast<double>(c.rows));
    }
  }
}

/// A micro-batch may have no labels: the gradients of the head stay as they are.
TEST_P(OpsCudaTest, NothingToPredict) {
  const at::Tensor labels = at::full({20}, kIgnoreLabel, at::kLong);
  for (const bool on_cpu : {false, true}) {
    const Operands operands{{Random({20, 16}), Random({20, 8})},
                            {{.value = Random({37, 16})}, {.value = Random({37})}, {.value = Random({37, 8})}}};
    const auto fused = [&](const Operands& o) {
      return TensorList{cuda::LinearCrossEntropy(o.tensors[0], o.weights[0], o.weights[1],
                                                 on_cpu ? labels : labels.cuda(), {}, nullptr,
                                                 {o.tensors[1], o.weights[2]}, 0)};
    };
    const Made got = Run(fused, Place(operands, at::kCUDA, GetParam(), false));
    EXPECT_EQ(got.outputs[0].item<float>(), 0);
    for (const at::Tensor& gradient : got.gradients) EXPECT_EQ(gradient.abs().max().item<float>(), 0);
  }
}

TEST_P(OpsCudaTest, LinearCrossEntropyOfAnAdaptedHead) {
  const Operands operands{{Random({90, 16}), Random({90, 8})},
                          {{.value = Random({3000, 16}, 0.5)}, {.value = Random({3000, 8}, 0.5)}}};
  const at::Tensor labels = at::randint(3000, {90}, generator_, at::kLong);
  labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
  const auto fused = [&](const Operands& o) {
    return TensorList{
        cuda::LinearCrossEntropy(o.tensors[0], o.weights[0], {}, labels, {}, nullptr, {o.tensors[1], o.weights[1]}, 0)};
  };
  const auto plain = [&](const Operands& o) {
    return TensorList{reference::LinearCrossEntropy(o.tensors[0], o.weights[0], {}, labels, {}, nullptr,
                                                    {o.tensors[1], o.weights[1]})};
  };
  Compare("adapted", operands, fused, plain);
}

TEST_P(OpsCudaTest, ALabelOutsideTheVocabularyIsRefused) {
  const at::Tensor x = Random({4, 8}).cuda(), labels = at::full({4}, 5, at::kLong);
  const Weight head{.value = Random({5, 8}).cuda()};
  EXPECT_ANY_THROW(cuda::LinearCrossEntropy(x, head, {}, labels, {}, nullptr, {}, 0));
  const at::Tensor loss = cuda::LinearCrossEntropy(x, head, {}, labels.cuda(), {}, nullptr, {}, 0);
  EXPECT_TRUE(std::isnan(loss.item<float>())) << "labels on the GPU are not looked at in time";
}

TEST_P(OpsCudaTest, TokenCrossEntropies) {
  const at::Tensor x = Random({90, 16}), w = Random({7000, 16}, 0.5);
  const at::Tensor labels = at::randint(7000, {90}, generator_, at::kLong);
  labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
  const auto plain = [&](const Operands& o) {
    return TensorList{reference::TokenCrossEntropies(o.tensors[0], {.value = w.to(at::kFloat)}, {}, labels, 7000, {})};
  };
  for (const bool on_cpu : {false, true}) {
    const auto fused = [&](const Operands& o) {
      return TensorList{cuda::TokenCrossEntropies(o.tensors[0], {.value = w.cuda()}, {},
                                                  on_cpu ? labels : labels.cuda(), 7000, {}, 0)};
    };
    Compare("tokens", {{x}, {}}, fused, plain);
  }
}

/// Two ranks, threads with the same GPU, against one with the whole head.
TEST_P(OpsCudaTest, DividedCrossEntropy) {
  constexpr std::int64_t kVocab = 1001;  // does not divide evenly
  const LossOptions options{.label_smoothing = 0.1, .z_loss = 1e-3};
  const Operands operands{{Random({90, 16})}, {{.value = Random({kVocab, 16}, 0.5)}, {.value = Random({kVocab})}}};
  const at::Tensor labels = at::randint(kVocab, {90}, generator_, at::kLong);
  labels.narrow(0, 10, 30).fill_(kIgnoreLabel);
  std::int64_t want_correct = 0;
  const auto plain = [&](const Operands& o) {
    return TensorList{
        reference::LinearCrossEntropy(o.tensors[0], o.weights[0], o.weights[1], labels, options, &want_correct)};
  };
  const Made want = Run(plain, Place(operands, at::kCPU, at::kFloat, false));
  for (const bool on_cpu : {false, true}) {
    Made got[2];
    std::int64_t correct[2] = {0, 0};
    auto groups = collectives::ConnectThreads(2);
    const auto work = [&](std::size_t rank) {
      const TensorRanks ranks{.group = groups[rank].get()};
      const auto [first, count] = ranks.ShareOf(kVocab);
      Operands mine = operands;
      for (Weight& weight : mine.weights) weight.value = weight.value.narrow(0, first, count);
      const auto fused = [&](const Operands& o) {
        return TensorList{cuda::DividedCrossEntropy(o.tensors[0], o.weights[0], o.weights[1],
                                                    on_cpu ? labels : labels.cuda(), kVocab, ranks, options,
                                                    &correct[rank], {})};
      };
      got[rank] = Run(fused, Place(mine, at::kCUDA, GetParam(), false));
    };
    std::jthread other(work, 1);
    work(0);
    other.join();
    EXPECT_EQ(correct[0], correct[1]);
    EXPECT_NEAR(correct[0], want_correct, GetParam() == at::kFloat ? 0 : 3);
    for (const Made& made : got) ExpectClose(made.outputs[0], want.outputs[0], "loss");
    ExpectClose(got[0].gradients[0].to(at::kFloat) + got[1].gradients[0].to(at::kFloat), want.gradients[0], "dx");
    for (const std::size_t i : {1, 2}) {
      ExpectClose(at::cat({got[0].gradients[i], got[1].gradients[i]}), want.gradients[i], "dweight");
    }
  }
}

TEST_P(OpsCudaTest, AttendBlocks) {
  struct Case {
    HeadLayout layout;
    std::int64_t block_tokens;
    AttentionRule rule = {};
  };
  const Case cases[] = {{{1, 1, 8}, 16},
                        {{6, 2, 64}, 32},
                        {{32, 8, 128}, 32},
                        {{8, 1, 80}, 7},
                        {{4, 4, 256}, 16},
                        {{16, 1, 96}, 2048},
                        {{4, 2, 64}, 32, {.window = 100}},
                        {{2, 1, 128}, 5, {.window = 1}},
                        {{4, 2, 32}, 16, {.causal = false}},
                        {{4, 2, 64}, 32, {.scale = 0.3}},
                        {{4, 2, 64}, 32, {.window = 100, .scale = 0.3, .softcap = 2}},
                        {{4, 2, 20}, 16}};
  struct Text {
    std::int64_t past, count;
  };
  // Single tokens, short and long parts, and prompts, in an order that divides neighbours of one kind.
  const std::vector<Text> texts = {{0, 1}, {0, 7}, {31, 1}, {32, 1}, {900, 1}, {100, 150}, {0, 130}, {777, 5}, {5, 1}};
  const at::NoGradGuard no_grad;
  const StepKernels plain{.plain = true};
  for (const Case& c : cases) {
    std::vector<at::Tensor> rows[2];  // of the tokens before this step, and of its own
    std::vector<std::int64_t> lengths[2], past[2];
    BlockTables tables[2];
    std::int32_t block = 0;
    for (const Text& text : texts) {
      std::vector<std::int32_t> blocks;
      for (std::int64_t room = 0; room < text.past + text.count; room += c.block_tokens) {
        blocks.push_back(block++ * 37 % 1009);  // neither in order nor side by side
      }
      for (int i = text.past > 0 ? 0 : 1; i < 2; ++i) {
        lengths[i].push_back(i == 0 ? text.past : text.count);
        past[i].push_back(i == 0 ? 0 : text.past);
        tables[i].Add(blocks);
        rows[i].push_back(Random({lengths[i].back(), c.layout.columns()}));
      }
    }
    ASSERT_LE(block, 1009);
    const auto make = [&](at::Device device, at::ScalarType type) {
      CachedLayer layer{.keys = at::empty({1009, c.layout.kv_heads, c.block_tokens, c.layout.head_dim},
                                          at::TensorOptions().device(device).dtype(type))};
      layer.values = at::empty_like(layer.keys);
      // What nobody stored must not reach a result.
      layer.keys.fill_(std::numeric_limits<double>::quiet_NaN());
      layer.values.fill_(std::numeric_limits<double>::quiet_NaN());
      return layer;
    };
    const CachedLayer here = make(at::kCPU, at::kFloat), there = make(at::kCUDA, GetParam());
    for (int i = 0; i < 2; ++i) {
      const Sequences sequences = Sequences::Following(lengths[i], past[i]);
      const at::Tensor qkv = at::cat(rows[i]);
      const std::string what = fmt::format("{} of {} heads of {}, blocks of {}, step {}", c.layout.heads,
                                           c.layout.kv_heads, c.layout.head_dim, c.block_tokens, i);
      at::Tensor want;
      {
        const KernelScope scope(plain);
        want = AttendBlocks(qkv.to(at::kFloat), c.layout, sequences, here, tables[i], c.rule);
      }
      const at::Tensor got = AttendBlocks(qkv.cuda(), c.layout, sequences, there, tables[i], c.rule);
      ExpectClose(got, want, what);
      EXPECT_TRUE(got.equal(AttendBlocks(qkv.cuda(), c.layout, sequences, there, tables[i], c.rule)))
          << what << ": other bits";
    }
  }
}

/// Absent sequences get zeros and store nothing, wherever they stand.
TEST_P(OpsCudaTest, AttendBlocksOfNone) {
  const HeadLayout layout{4, 2, 64};
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(GetParam());
  const CachedLayer layer = MakeCachedLayer(4, 2, 16, 64, options);
  layer.keys.zero_();
  layer.values.zero_();
  const at::Tensor table = at::tensor({2, -1, 1}, at::kInt).view({3, 1}).cuda();
  const at::Tensor positions = at::tensor({3, 0, 0}, at::kInt).cuda();
  const std::vector<std::int64_t> lengths = {1, 1, 1}, past = {9, 9, 9};
  const Sequences sequences = Sequences::Following(lengths, past, positions);
  const at::Tensor qkv = Random({3, layout.columns()}).cuda();
  const at::Tensor out = AttendBlocks(qkv, layout, sequences, layer, BlockTables::Written(table), {});
  EXPECT_EQ(out[1].abs().max().item<float>(), 0);
  // The only key that is not zeros at its position, and the only one at all.
  const auto values_of = [&](std::int64_t token) { return qkv[token].narrow(0, 6 * 64, 128).view({2, 64}); };
  EXPECT_TRUE(layer.values[2].select(1, 3).equal(values_of(0)));
  EXPECT_TRUE(layer.values[1].select(1, 0).equal(values_of(2)));
  EXPECT_EQ(layer.values[0].abs().max().item<float>(), 0);
  EXPECT_EQ(layer.values[3].abs().max().item<float>(), 0);
  EXPECT_TRUE(out[2].view({4, 64}).equal(values_of(2).repeat_interleave(2, 0)));
}

TEST_P(OpsCudaTest, ProductsOfFewRows) {
  struct Case {
    std::int64_t rows, inputs, outputs;
  };
  for (const Case& c : {Case{1, 4096, 300}, {2, 8, 1}, {3, 264, 17}, {4, 2056, 64}, {5, 128, 40}, {1, 20, 9}}) {
    const at::Tensor x = Random({c.rows, c.inputs}), weight = Random({c.outputs, c.inputs}), bias = Random({c.outputs});
    const auto there = [](const at::Tensor& from) { return from.to(at::kCUDA, GetParam()); };
    for (const bool with_bias : {false, true}) {
      at::Tensor want = there(x).cpu().to(at::kDouble).mm(there(weight).cpu().to(at::kDouble).t());
      if (with_bias) want = want + there(bias).cpu().to(at::kDouble);
      const at::Tensor got = Product(there(x), there(weight).t(), with_bias ? there(bias) : at::Tensor());
      ExpectClose(got, want, fmt::format("{} x {} x {}, bias {}", c.rows, c.inputs, c.outputs, with_bias));
    }
  }
}

/// Codes become the numbers of the CPU, also in parts of matrices that begin within a vector or a block.
TEST_P(OpsCudaTest, QuantizedRows) {
  const std::int64_t shapes[][2] = {{64, 128}, {7, 72}, {5, 33}, {1, 1}};
  for (const auto& [rows, columns] : shapes) {
    const auto matrix = testing::ToNf4(Random({rows, columns}).to(at::kFloat));
    for (const MatrixBox& box : {MatrixBox{.rows = rows, .columns = columns},
                                 MatrixBox{rows / 2, columns / 3, rows - rows / 2, columns - columns / 3}}) {
      QuantizedRows all;
      all.Append(matrix, box);
      all.Append(matrix, box);
      const at::Tensor want = Dequantized(all);
      const at::Tensor got = cuda::Dequantized(all, 0, all.rows(), at::device(at::kCUDA).dtype(GetParam()));
      EXPECT_TRUE(got.cpu().equal(want.to(GetParam()))) << rows << " x " << columns << " from " << box.column;
      const at::Tensor x = Random({3, box.columns});
      ExpectClose(Product(x.cuda(), all), Product(x.to(at::kFloat), all), "product");
    }
  }
}

/// Products by kernels that read codes, for all the numbers of rows that choose one, and those of none.
TEST_P(OpsCudaTest, ProductsOfCodes) {
  const at::Tensor weight = Random({200, 640}).to(at::kFloat);
  QuantizedRows nf4;
  nf4.Append(testing::ToNf4(weight), {.rows = 200, .columns = 640});
  nf4.Append(testing::ToNf4(weight), {.row = 20, .rows = 180, .columns = 640});
  QuantizedRows fp8;
  fp8.Append(testing::ToFp8(weight), {.rows = 200, .columns = 640});
  for (const QuantizedRows& all : {nf4, *InInt8(weight), fp8}) {
    const at::Tensor bias = Random({all.rows()});
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 16, 17, 32, 33, 64, 65, 128, 129}) {
      const at::Tensor x = Random({rows, 640});
      for (const bool with_bias : {false, true}) {
        const at::Tensor added = with_bias ? bias : at::Tensor(), there = with_bias ? bias.cuda() : at::Tensor();
        const at::Tensor got = cuda::ProductOfCodes(x.cuda(), all, there);
        const bool takes = rows <= 4 || (rows <= 128 && GetParam() != at::kFloat);
        ASSERT_EQ(got.defined(), takes) << rows;
        if (!takes) continue;
        ExpectClose(got, Product(x.to(at::kFloat), all, with_bias ? added.to(at::kFloat) : added),
                    fmt::format("{} rows, {} outputs", rows, all.rows()));
      }
    }
  }
}

/// More elements than 32 bits count: the last ones are right.
TEST_P(OpsCudaTest, ManyElements) {
  const std::int64_t columns = 65'536, rows = (std::int64_t{1} << 31) / columns + 3;
  if (GetParam() == at::kFloat) GTEST_SKIP() << "two types are enough";
  const at::Tensor x = at::zeros({rows, columns}, at::TensorOptions().dtype(GetParam()).device(at::kCUDA));
  const at::Tensor tail = Random({2, columns});
  x.narrow(0, rows - 2, 2).copy_(tail);
  const at::NoGradGuard no_grad;
  const at::Tensor out = cuda::Activate(x, Activation::kSilu);
  ExpectClose(out.narrow(0, rows - 2, 2), at::silu(tail.to(at::kFloat)), "activation");
  EXPECT_EQ(out.narrow(0, 0, rows - 2).abs().max().item<float>(), 0);
  const at::Tensor gated = cuda::Gated(x, Activation::kSilu);
  ExpectClose(gated.narrow(0, rows - 2, 2), reference::Gated(tail.to(at::kFloat), Activation::kSilu), "gated");
}

INSTANTIATE_TEST_SUITE_P(Types, OpsCudaTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace millrace::engine::ops
