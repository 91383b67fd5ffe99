// Linear layers in FP8 on a GPU against float32 products of the same rounded numbers on the CPU, and a training run.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "millrace/engine/config/families.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine::ops {
namespace {

const StepKernels kInFp8{.fp8 = Fp8Scaling::kCurrent};
const StepKernels kInBlocks{.fp8 = Fp8Scaling::kBlock};

class Fp8CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (at::cuda::getNumGPUs() == 0) GTEST_SKIP() << "there is no GPU";
    if (const Status has = CheckPrecision("precision", ParsePrecision("fp8").value(), at::Device(at::kCUDA, 0)); !has) {
      GTEST_SKIP() << has.error().ToString();
    }
  }
  /// Numbers of bfloat16 on the CPU.
  at::Tensor Random(at::IntArrayRef sizes, double scale = 1) {
    return (at::randn(sizes, generator_) * scale).to(at::kBFloat16);
  }

 private:
  at::Generator generator_ = at::detail::createCPUGenerator(11);
};

float LargestOf(const at::Tensor& x) { return x.to(at::kFloat).abs().max().item<float>(); }

/// Returns the codes of x [rows, columns] on the CPU.
at::Tensor CodesOf(const at::Tensor& x, Fp8Format format) {
  const at::Tensor numbers = x.to(at::kFloat).contiguous();
  at::Tensor codes = at::empty(x.sizes(), at::kByte);
  const float encode = Fp8ScaleOf(format, LargestOf(x)).encode;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    codes.data_ptr<std::uint8_t>()[i] = ToFp8(format, numbers.data_ptr<float>()[i] * encode);
  }
  return codes;
}

/// Returns what is left of x in FP8, in double.
at::Tensor Rounded(const at::Tensor& x, Fp8Format format) {
  const at::Tensor codes = CodesOf(x, format);
  at::Tensor numbers = at::empty(x.sizes(), at::kDouble);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    numbers.data_ptr<double>()[i] = FromFp8(format, codes.data_ptr<std::uint8_t>()[i]);
  }
  return numbers * Fp8ScaleOf(format, LargestOf(x)).decode;
}

double Distance(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor a = got.cpu().to(at::kDouble), b = expected.to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}

// The kernels.

struct Cast {
  at::Tensor codes, transposed;  ///< on the CPU
  float largest, decode;
};

Cast CastOnGpu(const at::Tensor& x_cpu, Fp8Format format) {
  const at::Tensor x = x_cpu.to(at::kCUDA);
  const auto bytes = [&](at::IntArrayRef sizes) { return at::full(sizes, 0xaa, x.options().dtype(at::kByte)); };
  const at::Tensor codes = bytes(x.sizes()), transposed = bytes({x.size(1), x.size(0)});
  const at::Tensor scale = at::zeros({2}, x.options().dtype(at::kFloat));
  auto* const largest = scale.data_ptr<float>();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  engine::cuda::FindLargest(x.data_ptr(), x.numel(), largest, stream);
  engine::cuda::CastToFp8(format,
                          {.x = x.data_ptr(),
                           .codes = codes.data_ptr<std::uint8_t>(),
                           .transposed = transposed.data_ptr<std::uint8_t>(),
                           .rows = x.size(0),
                           .columns = x.size(1)},
                          {.largest = largest, .decode = largest + 1}, stream);
  const at::Tensor on_cpu = scale.cpu();
  return {codes.cpu(), transposed.cpu(), on_cpu[0].item<float>(), on_cpu[1].item<float>()};
}

TEST_F(Fp8CudaTest, CastsAsTheCpuDoes) {
  for (const auto& [rows, columns] :
       {std::pair{16, 16}, std::pair{128, 128}, std::pair{144, 272}, std::pair{1040, 16}, std::pair{16, 2064}}) {
    for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
      // Many magnitudes, so that some numbers are subnormal and some are rounded to zero.
      const at::Tensor x = (Random({rows, columns}) * at::exp2(Random({rows, columns}, 6))).to(at::kBFloat16);
      const Cast cast = CastOnGpu(x, format);
      const at::Tensor expected = CodesOf(x, format);
      EXPECT_EQ(cast.largest, LargestOf(x));
      EXPECT_EQ(cast.decode, Fp8ScaleOf(format, LargestOf(x)).decode);
      EXPECT_TRUE(cast.codes.equal(expected)) << rows << " x " << columns;
      EXPECT_TRUE(cast.transposed.equal(expected.t().contiguous())) << rows << " x " << columns;
    }
  }
}

TEST_F(Fp8CudaTest, TheLargestIsNanIfThereIsOne) {
  for (const std::int64_t at : {0, 5, 4095}) {
    at::Tensor x = Random({32, 128});
    x.view(-1)[at] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(CastOnGpu(x, Fp8Format::kE4m3).largest, std::numeric_limits<float>::infinity());
    x.view(-1)[4095 - at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(CastOnGpu(x, Fp8Format::kE4m3).largest));
  }
  EXPECT_EQ(CastOnGpu(at::zeros({16, 16}, at::kBFloat16), Fp8Format::kE5m2).decode, 1);
}

// The op.

struct Layer {
  at::Tensor x, w, bias, dout;  ///< on the CPU
};
struct Passed {
  at::Tensor out, dx, dw, dbias;
};

constexpr double kBefore = 0.5;  ///< what the gradients of weights are before

enum class Input { kKept, kMadeAgain, kDeferred };

Passed Pass(const Layer& layer, const StepKernels& kernels, Input input = Input::kKept, bool may_use_fp8 = true) {
  const KernelScope scope(kernels);
  const auto learned = [](const at::Tensor& value) {
    if (!value.defined()) return Weight{};
    const at::Tensor on_gpu = value.to(at::kCUDA).set_requires_grad(true);
    return Weight{on_gpu, at::full(value.sizes(), kBefore, on_gpu.options().dtype(at::kFloat).requires_grad(false))};
  };
  const LinearWeights weights{.matrix = learned(layer.w),
                              .bias = learned(layer.bias),
                              .layer = may_use_fp8 ? std::optional<std::size_t>(0) : std::nullopt};
  const at::Tensor x = layer.x.to(at::kCUDA).set_requires_grad(true);
  const auto again = [x] { return x.detach(); };
  const at::Tensor out = Linear(input == Input::kMadeAgain ? LayerInput(x, again) : LayerInput(x), weights);
  DeferredWork later;
  if (input == Input::kDeferred) {
    const DeferScope defers(later);
    RunBackward({out}, {layer.dout.to(at::kCUDA)});
  } else {
    RunBackward({out}, {layer.dout.to(at::kCUDA)});
  }
  later.RunAll();
  return {out.detach(), x.grad(), weights.matrix.gradient, weights.bias.gradient};
}

class Fp8LinearTest : public Fp8CudaTest {
 protected:
  Layer MakeLayer(std::int64_t tokens, std::int64_t in, std::int64_t out, bool bias = false) {
    return {Random({tokens, in}), Random({out, in}, 0.05), bias ? Random({out}) : at::Tensor(),
            Random({tokens, out}, 1e-3)};
  }
  static void ExpectNear(const Passed& got, const Layer& layer) {
    const at::Tensor x = Rounded(layer.x, Fp8Format::kE4m3), w = Rounded(layer.w, Fp8Format::kE4m3),
                     dout = Rounded(layer.dout, Fp8Format::kE5m2);
    const at::Tensor out =
        x.mm(w.t()) + (layer.bias.defined() ? layer.bias.to(at::kDouble) : at::zeros({1}, at::kDouble));
    constexpr double kBf16 = 3e-3;  // results are rounded to 8 bits
    constexpr double kSums = 2e-3;  // tensor cores keep fewer bits of sums in between than float32 has
    EXPECT_LT(Distance(got.out, out), kBf16);
    EXPECT_LT(Distance(got.dx, dout.mm(w)), kBf16);
    EXPECT_LT(Distance(got.dw.cpu().to(at::kDouble) - kBefore, dout.t().mm(x)), kSums);
    if (layer.bias.defined()) {
      EXPECT_LT(Distance(got.dbias.cpu().to(at::kDouble) - kBefore, layer.dout.to(at::kDouble).sum(0)), 1e-4);
    }
  }
};

TEST_F(Fp8LinearTest, MultipliesRoundedNumbers) {
  for (const bool bias : {false, true}) {
    for (const auto& [tokens, in, out] :
         {std::tuple{16, 16, 16}, std::tuple{128, 64, 96}, std::tuple{80, 272, 144}, std::tuple{512, 1024, 768}}) {
      const Layer layer = MakeLayer(tokens, in, out, bias);
      const Passed got = Pass(layer, kInFp8);
      SCOPED_TRACE(testing::Message() << tokens << " x " << in << " x " << out << ", bias " << bias);
      ExpectNear(got, layer);
      if (in < 64) continue;
      // It is not the product of bfloat16.
      EXPECT_GT(Distance(got.out, Pass(layer, {}).out.cpu()), 5e-3);
    }
  }
}

TEST_F(Fp8LinearTest, TheRightGuessIsAsGoodAsTheLargestValue) {
  const Layer layer = MakeLayer(80, 272, 144, true);
  const auto same = [](const Passed& a, const Passed& b) {
    return a.out.equal(b.out) && a.dx.equal(b.dx) && a.dw.equal(b.dw);
  };
  const Passed current = Pass(layer, kInFp8);
  LargestValues largest(1, at::kCUDA);
  const StepKernels delayed{.fp8 = Fp8Scaling::kDelayed, .largest = &largest};
  EXPECT_TRUE(same(Pass(layer, delayed), current));  // without a guess
  const std::vector<OfFp8Tensors> seen = largest.TakeSeen();
  const auto of = [](const at::Tensor& x) { return static_cast<float>(LargestOf(x)); };
  EXPECT_EQ(seen, (std::vector<OfFp8Tensors>{{of(layer.x), of(layer.w), of(layer.dout)}}));
  largest.SetAmax(seen);
  EXPECT_TRUE(same(Pass(layer, delayed), current));
  EXPECT_EQ(largest.TakeSeen(), seen);
  largest.SetAmax({{seen[0][0] / 8, seen[0][1] / 8, seen[0][2] / 8}});
  const Passed too_small = Pass(layer, delayed);
  EXPECT_FALSE(same(too_small, current));
  EXPECT_TRUE(at::isfinite(too_small.out).all().item<bool>());
  EXPECT_EQ(largest.TakeSeen(), seen);
  {
    const at::NoGradGuard evaluates;
    const KernelScope scope(delayed);
    const Weight weight{layer.w.to(at::kCUDA)};
    Linear(LayerInput(layer.x.to(at::kCUDA)), {.matrix = weight, .layer = 0});
  }
  EXPECT_EQ(largest.TakeSeen(), std::vector<OfFp8Tensors>(1));
}

TEST_F(Fp8LinearTest, AnInfiniteNumberIsSeenThroughAGuess) {
  Layer layer = MakeLayer(32, 64, 48);
  LargestValues largest(1, at::kCUDA);
  const StepKernels delayed{.fp8 = Fp8Scaling::kDelayed, .largest = &largest};
  largest.SetAmax({{4, 0.2F, 4e-3F}});
  layer.x[3][5] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(at::isfinite(Pass(layer, delayed).out[3]).any().item<bool>());
}

/// The numbers of x [rows, columns] after a cast with a scale for each block of `rows` × `columns`.
at::Tensor RoundedByBlocks(const at::Tensor& x, std::int64_t rows, std::int64_t columns) {
  at::Tensor rounded = at::empty(x.sizes(), at::kDouble);
  for (std::int64_t row = 0; row < x.size(0); row += rows) {
    for (std::int64_t column = 0; column < x.size(1); column += columns) {
      const auto part = [&](const at::Tensor& of) {
        return of.narrow(0, row, std::min(rows, x.size(0) - row))
            .narrow(1, column, std::min(columns, x.size(1) - column));
      };
      part(rounded).copy_(Rounded(part(x).contiguous(), Fp8Format::kE4m3));
    }
  }
  return rounded;
}

TEST_F(Fp8LinearTest, BlocksHaveTheirOwnScales) {
  const Status has_blocks = CheckBlockScaling("scaling", at::Device(at::kCUDA, 0));
  if (!has_blocks) GTEST_SKIP() << has_blocks.error().ToString();
  constexpr std::int64_t kBlock = engine::cuda::kFp8Block;
  for (const bool bias : {false, true}) {
    for (const auto& [tokens, in, out] :
         {std::tuple{128, 128, 128}, std::tuple{80, 272, 144}, std::tuple{512, 1024, 768}}) {
      Layer layer = MakeLayer(tokens, in, out, bias);
      layer.x *= at::exp2(at::arange(tokens) * 10.0 / tokens).unsqueeze(1).to(layer.x.scalar_type());
      const Passed got = Pass(layer, kInBlocks);
      SCOPED_TRACE(testing::Message() << tokens << " x " << in << " x " << out << ", bias " << bias);
      const at::Tensor w = RoundedByBlocks(layer.w, kBlock, kBlock);
      at::Tensor wanted = RoundedByBlocks(layer.x, 1, kBlock).mm(w.t());
      if (bias) wanted += layer.bias.to(at::kDouble);
      constexpr double kBf16 = 3e-3, kSums = 2e-3;
      EXPECT_LT(Distance(got.out, wanted), kBf16);
      EXPECT_LT(Distance(got.dx, RoundedByBlocks(layer.dout, 1, kBlock).mm(w)), kBf16);
      const at::Tensor dw = RoundedByBlocks(layer.dout, kBlock, 1).t().mm(RoundedByBlocks(layer.x, kBlock, 1));
      EXPECT_LT(Distance(got.dw.cpu().to(at::kDouble) - kBefore, dw), kSums);
    }
  }
}

TEST_F(Fp8LinearTest, HasTheSameBitsHoweverTheInputIsKept) {
  const Layer layer = MakeLayer(256, 128, 320, true);
  const Passed kept = Pass(layer, kInFp8);
  for (const Input input : {Input::kKept, Input::kMadeAgain, Input::kDeferred}) {
    const Passed got = Pass(layer, kInFp8, input);
    EXPECT_TRUE(got.out.equal(kept.out));
    EXPECT_TRUE(got.dx.equal(kept.dx));
    EXPECT_TRUE(got.dw.equal(kept.dw));
    EXPECT_TRUE(got.dbias.equal(kept.dbias));
  }
}

TEST_F(Fp8LinearTest, OtherSizesAndLayersAreMultipliedInBfloat16) {
  const auto same = [](const Passed& a, const Passed& b) {
    return a.out.equal(b.out) && a.dx.equal(b.dx) && a.dw.equal(b.dw);
  };
  for (const auto& [tokens, in, out] : {std::tuple{17, 64, 64}, std::tuple{64, 72, 64}, std::tuple{64, 64, 40}}) {
    const Layer layer = MakeLayer(tokens, in, out);
    EXPECT_TRUE(same(Pass(layer, kInFp8), Pass(layer, {}))) << tokens << " x " << in << " x " << out;
  }
  const Layer layer = MakeLayer(64, 64, 64);
  EXPECT_TRUE(same(Pass(layer, kInFp8, Input::kKept, /*may_use_fp8=*/false), Pass(layer, {})));
  EXPECT_FALSE(same(Pass(layer, kInFp8), Pass(layer, {})));
}

TEST_F(Fp8LinearTest, ZerosStayZeros) {
  Layer layer = MakeLayer(32, 64, 48);
  layer.x.zero_();
  const Passed of_input = Pass(layer, kInFp8);
  EXPECT_EQ(LargestOf(of_input.out), 0);
  EXPECT_TRUE(of_input.dw.eq(kBefore).all().item<bool>());
  EXPECT_TRUE(at::isfinite(of_input.dx).all().item<bool>());
  layer = MakeLayer(32, 64, 48);
  layer.dout.zero_();
  const Passed of_gradient = Pass(layer, kInFp8);
  EXPECT_EQ(LargestOf(of_gradient.dx), 0);
  EXPECT_TRUE(of_gradient.dw.eq(kBefore).all().item<bool>());
}

TEST_F(Fp8LinearTest, WhatIsNotFiniteIsSeen) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Layer layer = MakeLayer(32, 64, 48);
    layer.x[3][5] = value;
    const Passed of_input = Pass(layer, kInFp8);
    EXPECT_FALSE(at::isfinite(of_input.out[3]).any().item<bool>()) << value;
    EXPECT_FALSE(at::isfinite(of_input.dw).all().item<bool>()) << value;
    layer = MakeLayer(32, 64, 48);
    layer.dout[3][5] = value;
    const Passed of_gradient = Pass(layer, kInFp8);
    EXPECT_FALSE(at::isfinite(of_gradient.dx[3]).any().item<bool>()) << value;
    EXPECT_FALSE(at::isfinite(of_gradient.dw).all().item<bool>()) << value;
  }
}

TEST_F(Fp8LinearTest, TheUnitOfNumbersDoesNotMatter) {
  Layer layer = MakeLayer(64, 128, 96);
  const Passed ones = Pass(layer, kInFp8);
  constexpr double kLarge = 0x1p30, kSmall = 0x1p-40;
  layer.x = layer.x * kSmall;
  layer.w = layer.w * kLarge;
  layer.dout = layer.dout * kSmall;
  const Passed scaled = Pass(layer, kInFp8);
  EXPECT_LT(Distance(scaled.out, ones.out.cpu().to(at::kDouble) * kSmall * kLarge), 1e-6);
  EXPECT_LT(Distance(scaled.dx, ones.dx.cpu().to(at::kDouble) * kSmall * kLarge), 1e-6);
  EXPECT_TRUE(at::isfinite(scaled.dw).all().item<bool>());
}

// A model.

std::vector<double> Losses(StepKernels kernels) {
  const Json json = {{"model_type", "llama"},  {"hidden_size", 128},           {"intermediate_size", 352},
                     {"num_hidden_layers", 4}, {"num_attention_heads", 4},     {"num_key_value_heads", 2},
                     {"vocab_size", 256},      {"max_position_embeddings", 64}};
  constexpr std::int64_t kRows = 8, kLength = 32, kPeriod = 16;
  const auto model = MakeModel(ParseModelConfig(json, "tiny").value(), at::kBFloat16, at::kCUDA, 1).value();
  model->buffer().EnableGradients();
  Adamw optimizer(model->buffer(), {});
  LargestValues largest(model->linear_layers().size(), at::kCUDA);
  std::vector<OfFp8Tensors> amaxes(largest.layers());
  if (kernels.fp8 == Fp8Scaling::kDelayed) kernels.largest = &largest;
  const KernelScope scope(kernels);
  const auto generator = at::detail::createCPUGenerator(3);
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    // Rows that repeat: new ones in each step, of a few tokens, which a model learns first.
    const at::Tensor ids = at::randint(32, {kRows, kPeriod}, generator, at::kLong).repeat({1, kLength / kPeriod + 1});
    const at::Tensor loss = model->LossSum({.inputs = ids.narrow(1, 0, kLength).contiguous().to(at::kCUDA),
                                            .labels = ids.narrow(1, 1, kLength).contiguous()});
    model->Backward(0, loss);
    constexpr double kScale = 1.0 / (kRows * kLength);
    losses.push_back(loss.item<double>() * kScale);
    optimizer.Step(1e-3, kScale * ClipScale(GradientNorm(model->buffer(), kScale), 1));
    const std::vector<OfFp8Tensors> seen = largest.TakeSeen();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      std::ranges::transform(amaxes[i], seen[i], amaxes[i].begin(), DecayedAmax);
    }
    largest.SetAmax(amaxes);
  }
  return losses;
}

/// A model that computes in this way learns as in bfloat16, and alike each time.
void ExpectAsIn(const std::vector<double>& bf16, const StepKernels& way) {
  SCOPED_TRACE(Fp8ScalingName(way.fp8));
  const std::vector<double> fp8 = Losses(way);
  for (std::size_t i = 0; i < fp8.size(); ++i) EXPECT_NEAR(fp8[i], bf16[i], 0.02 * bf16[i]) << "step " << i;
  EXPECT_NE(fp8.front(), bf16.front());
  EXPECT_LT(fp8.back(), 0.8 * fp8.front());
  EXPECT_EQ(Losses(way), fp8);  // to the bit
}

TEST_F(Fp8CudaTest, AModelLearnsAsInBfloat16) {
  const std::vector<double> bf16 = Losses({});
  std::vector<StepKernels> ways = {kInFp8, {.fp8 = Fp8Scaling::kDelayed}};
  if (CheckBlockScaling("scaling", at::Device(at::kCUDA, 0))) ways.push_back(kInBlocks);
  for (const StepKernels& way : ways) ExpectAsIn(bf16, way);
}

}  // namespace
}  // namespace millrace::engine::ops
