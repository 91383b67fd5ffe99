// Times each op of a model on this CPU or GPU, forward and backward, beside what the machine allows: the speed of a
// large product of matrices for ops that multiply, the bandwidth of a sum of two arrays for ops that read and write.
#include <ATen/Parallel.h>
#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>

#include "millrace/base/process/cpu.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/ops/activation.h"
#include "millrace/engine/ops/attention.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/rotary.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/optim/blocks.h"
#include "millrace/engine/runtime.h"

#include <ATen/core/grad_mode.h>

namespace millrace {
namespace {

namespace ops = engine::ops;
namespace cpu = engine::cpu;

/// Sizes of a batch and a model.
struct Sizes {
  std::int64_t tokens = 4096, length = 512, hidden = 2048, intermediate = 5632, heads = 32, vocab = 32000;
  int rounds = 5;
  std::string only;  ///< ops whose names contain it
  std::string device = "cpu";
};

/// Waits until a GPU has done what it was told.
void Synchronize([[maybe_unused]] const at::Device& device) {
#ifdef MILLRACE_CUDA
  if (device.is_cuda()) C10_CUDA_CHECK(cudaDeviceSynchronize());
#endif
}

class Bench {
 public:
  Bench(const Sizes& sizes, at::ScalarType dtype) : sizes_(sizes), dtype_(dtype), device_(sizes.device) {
    if (device_.is_cpu()) generator_ = at::detail::createCPUGenerator(1);
  }

  void RunAll() {
    MeasureLimits();
    if (Wanted("linear")) Linear();
    if (Wanted("LM head and cross-entropy")) Head();
    if (Wanted("attention, causal")) Attention();
    const Weight weight = Parameter({sizes_.hidden}), bias = Parameter({sizes_.hidden});
    Elementwise("RMSNorm, residual", 4, 4,
                [&] {
                  const ops::Normed normed = ops::AddRmsNorm(x_, delta_, weight, {.eps = 1e-5});
                  return Outputs{normed.sum, normed.out};
                },
                {x_, delta_});
    Elementwise("LayerNorm, residual", 4, 4,
                [&] {
                  const ops::Normed normed = ops::AddLayerNorm(x_, delta_, weight, bias, 1e-5);
                  return Outputs{normed.sum, normed.out};
                },
                {x_, delta_});
    Elementwise("GELU", 2, 3, [&] { return Outputs{ops::Activate(x_, ops::Activation::kGeluTanh)}; }, {x_});
    Elementwise("GELU with erf", 2, 3, [&] { return Outputs{ops::Activate(x_, ops::Activation::kGelu)}; }, {x_});
    const at::Tensor gate_up = Random({sizes_.tokens, 2 * sizes_.intermediate}, true);
    const double inner = static_cast<double>(sizes_.intermediate) / static_cast<double>(sizes_.hidden);
    Elementwise("SwiGLU", 3 * inner, 5 * inner, [&] { return Outputs{ops::Gated(gate_up, ops::Activation::kSilu)}; },
                {gate_up});
    Rope();
    if (Wanted("AdamW")) Adamw();
  }

 private:
  using Weight = engine::Weight;
  using Outputs = std::vector<at::Tensor>;
  using Run = std::function<Outputs()>;

  at::Tensor Random(at::IntArrayRef shape, bool gradient = false) {
    return at::randn(shape, generator_, at::TensorOptions(device_)).to(dtype_).set_requires_grad(gradient);
  }
  Weight Parameter(at::IntArrayRef shape) {
    return {.value = Random(shape, true), .gradient = at::zeros(shape, Float())};
  }
  at::TensorOptions Float() const { return at::TensorOptions(device_).dtype(at::kFloat); }

  bool Wanted(std::string_view op) const { return op.contains(sizes_.only); }

  /// Returns the least time of some rounds in seconds. A GPU is told of several passes at once, so that it never waits.
  double Time(const std::function<void()>& work) const {
    work();
    double least = 1e30;
    for (int round = 0; round < sizes_.rounds; ++round) {
      Synchronize(device_);
      const auto start = std::chrono::steady_clock::now();
      for (int pass = 0; pass < passes(); ++pass) work();
      Synchronize(device_);
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least / passes();
  }

  int passes() const { return device_.is_cpu() ? 1 : 8; }

  void MeasureLimits() {
    const at::NoGradGuard no_grad;
    const std::int64_t n = device_.is_cpu() ? 3072 : 8192;
    const at::Tensor a = Random({n, n}), b = Random({n, n}), c = at::zeros({n, n}, Float());
    flops_ = 2.0 * n * n * n / Time([&] { ops::AddProduct(c, a, b); });
    const at::Tensor p = at::ones({64 << 20}, Float()), q = at::ones_like(p);
    at::Tensor sum = at::zeros_like(p);
    bandwidth_ = 3.0 * static_cast<double>(p.nbytes()) / Time([&] { at::add_out(sum, p, q); });
    fmt::print("{}: a product of {} squared makes {:.0f} GFLOP/s, a sum of arrays {:.1f} GB/s\n",
               dtype_ == at::kFloat ? "float32" : "bfloat16", n, flops_ / 1e9, bandwidth_ / 1e9);
  }

  void Print(std::string_view op, std::string_view pass, double seconds, double least) const {
    fmt::print("  {:<28} {:<9} {:7.2f} ms  {:4.0f} %\n", op, pass, seconds * 1e3, 100 * least / seconds);
  }

  /// Times an op whose result's elements are those of the residual stream or more. `forward` and `backward` are how
  /// many arrays of [tokens, hidden] each pass reads and writes at least.
  void Elementwise(std::string_view op, double forward, double backward, const Run& run,
                   const std::vector<at::Tensor>& inputs) const {
    if (!Wanted(op)) return;
    const double array = static_cast<double>(sizes_.tokens * sizes_.hidden) * at::elementSize(dtype_);
    {
      const at::NoGradGuard no_grad;
      Print(op, "forward", Time([&] { run(); }), forward * array / bandwidth_);
    }
    Backward(op, backward * array / bandwidth_, run, inputs);
  }

  /// Times the gradients of the outputs that `run` returns, over `inputs`.
  void Backward(std::string_view op, double least, const Run& run, const std::vector<at::Tensor>& inputs) const {
    double seconds = 1e30;
    for (int round = 0; round <= sizes_.rounds; ++round) {
      std::vector<Outputs> outputs;
      for (int pass = 0; pass < passes(); ++pass) outputs.push_back(run());
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& each : outputs.front()) gradients.push_back(at::ones_like(each));
      Synchronize(device_);
      const auto start = std::chrono::steady_clock::now();
      for (const Outputs& each : outputs) torch::autograd::grad(each, inputs, gradients);
      Synchronize(device_);
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    seconds /= passes();
    Print(op, "backward", seconds, least);
  }

  void Linear() {
    Linear("linear", {});
    const engine::Precision fp8 = {.type = at::kBFloat16, .fp8 = true};
    if (dtype_ != fp8.type || !engine::CheckPrecision("linear, FP8", fp8, at::Device(device_.type(), 0))) return;
    ops::LargestValues largest(1, at::Device(device_.type(), 0));
    largest.SetAmax({{4, 4, 4}});
    Linear("linear, FP8", {.fp8 = ops::Fp8Scaling::kCurrent});
    Linear("linear, FP8 delayed", {.fp8 = ops::Fp8Scaling::kDelayed, .largest = &largest});
    if (engine::CheckBlockScaling("linear, FP8", at::Device(device_.type(), 0))) {
      Linear("linear, FP8 blocks", {.fp8 = ops::Fp8Scaling::kBlock});
    }
    CastToFp8();
  }

  /// The percentages are of the speed of this type's products, also for FP8.
  void Linear(std::string_view op, const ops::StepKernels& kernels) {
    const ops::KernelScope scope(kernels);
    const Weight weight = Parameter({sizes_.intermediate, sizes_.hidden}), bias = Parameter({sizes_.intermediate});
    const double flops = 2.0 * static_cast<double>(sizes_.tokens * sizes_.hidden * sizes_.intermediate);
    const auto run = [&] { return Outputs{ops::Linear(x_, {.matrix = weight, .bias = bias, .layer = 0})}; };
    {
      const at::NoGradGuard no_grad;
      Print(op, "forward", Time(run), flops / flops_);
    }
    Backward(op, 2 * flops / flops_, run, {x_});
  }

  /// Reads the array, then reads it again and writes two of half its size.
  void CastToFp8() const {
#ifdef MILLRACE_CUDA
    namespace gpu = engine::cuda;
    const at::TensorOptions bytes = Float().dtype(at::kByte);
    const at::Tensor codes = at::empty({sizes_.tokens, sizes_.hidden}, bytes), transposed = at::empty_like(codes);
    // The largest value, what a guess sees, one factor for all; then room for the factors of blocks of lines.
    constexpr std::int64_t kFactors = 4;
    const std::int64_t lines = x_.numel() / gpu::kFp8Block + std::max(sizes_.tokens, sizes_.hidden);
    const at::Tensor scales = at::zeros({kFactors + 2 * lines}, Float().dtype(at::kFloat));
    auto* const largest = scales.data_ptr<float>();
    float *const seen = largest + 1, *const decode = largest + 2, *const of_rows = largest + kFactors,
                 *const of_columns = of_rows + lines;
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const double array = static_cast<double>(x_.nbytes());
    const gpu::Fp8Operand all{.x = x_.data_ptr(),
                              .codes = codes.data_ptr<std::uint8_t>(),
                              .transposed = transposed.data_ptr<std::uint8_t>(),
                              .rows = sizes_.tokens,
                              .columns = sizes_.hidden};
    const auto print = [&](std::string_view op, double moved, auto&& start) {
      Print(op, "forward", Time(start), moved / bandwidth_);
    };
    constexpr auto kFormat = engine::Fp8Format::kE4m3;
    print("FP8, largest", array, [&] { gpu::FindLargest(x_.data_ptr(), x_.numel(), largest, stream); });
    print("FP8, cast and transpose", 2 * array, [&] { gpu::CastToFp8(kFormat, all, {largest, decode}, stream); });
    print("FP8, the same with a guess", 2 * array,
          [&] { gpu::CastToFp8(kFormat, all, {largest, decode, seen}, stream); });
    print("FP8, the same by lines", 2 * array, [&] { gpu::CastLinesToFp8(all, {of_rows, of_columns}, stream); });
    print("FP8, the same by squares", 2 * array, [&] { gpu::CastSquaresToFp8(all, {of_rows, of_columns}, stream); });
#endif
  }

  /// Its forward pass computes the gradients too.
  void Head() {
    const Weight head = Parameter({sizes_.vocab, sizes_.hidden});
    const at::Tensor labels = at::randint(sizes_.vocab, {sizes_.tokens}, at::kLong);
    const double flops = 6.0 * static_cast<double>(sizes_.tokens * sizes_.hidden * sizes_.vocab);
    Print("LM head and cross-entropy", "both", Time([&] { ops::LinearCrossEntropy(x_, head, {}, labels).backward(); }),
          flops / flops_);
    x_.mutable_grad() = at::Tensor();
  }

  /// Only what a causal mask shows counts: half of the products.
  void Attention() {
    const std::int64_t dim = sizes_.hidden / sizes_.heads;
    const ops::HeadLayout layout{sizes_.heads, sizes_.heads, dim};
    const at::Tensor qkv = Random({sizes_.tokens, layout.columns()}, true);
    const ops::Sequences sequences = ops::Sequences::Even(sizes_.tokens / sizes_.length, sizes_.length);
    const double flops = 2.0 * static_cast<double>(sizes_.tokens * (sizes_.length + 1) * sizes_.hidden);
    const auto run = [&] { return Outputs{ops::Attention(qkv, layout, sequences)}; };
    {
      const at::NoGradGuard no_grad;
      Print("attention, causal", "forward", Time(run), flops / flops_);
    }
    Backward("attention, causal", 2.5 * flops / flops_, run, {qkv});
  }

  void Rope() {
    const std::int64_t dim = sizes_.hidden / sizes_.heads;
    const ops::HeadLayout layout{sizes_.heads, sizes_.heads, dim};
    const auto table = ops::RotaryTable::Make(sizes_.length, ops::RotaryFrequencies(dim, 1e4), {}, device_);
    const at::Tensor qkv = Random({sizes_.tokens, layout.columns()}, true);
    const ops::Sequences sequences = ops::Sequences::Even(sizes_.tokens / sizes_.length, sizes_.length);
    Elementwise("RoPE", 6, 6, [&] { return Outputs{ops::Rotate(qkv, table, layout, sequences)}; }, {qkv});
  }

  /// Steps of the optimizer over the parameters of a model.
  void Adamw() const {
    engine::LlamaConfig config;
    config.hidden_size = sizes_.hidden;
    config.intermediate_size = sizes_.intermediate;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = sizes_.heads;
    config.vocab_size = sizes_.vocab;
    auto made = engine::MakeModel(std::make_shared<const engine::LlamaConfig>(config), dtype_, device_, 1);
    if (!made) throw std::runtime_error(made.error().ToString());
    engine::ParameterBuffer& buffer = (*made)->buffer();
    buffer.EnableGradients();
    const bool wide = dtype_ == at::kFloat;
    for (const bool rounds : {false, true}) {
      engine::Adamw optimizer(buffer, {}, {}, {.bf16_moments = rounds, .rounds_weights = rounds && !wide});
      // Reads weights, gradients and moments; writes weights and moments, and clears the gradients.
      const std::size_t moments = 4 * (rounds ? 2 : sizeof(float));
      const std::size_t weights = wide ? 2 * sizeof(float) : rounds ? 2 * 2 : 2 * sizeof(float) + 2;
      const double bytes = static_cast<double>(config.ParameterCount() * (2 * sizeof(float) + moments + weights));
      Print(rounds ? "AdamW, bf16 state" : "AdamW", "step", Time([&] { optimizer.Step(1e-4, 1); }), bytes / bandwidth_);
    }
  }

  const Sizes sizes_;
  const at::ScalarType dtype_;
  const at::Device device_;
  at::Generator generator_;  ///< undefined: the GPU's own
  const at::Tensor x_ = Random({sizes_.tokens, sizes_.hidden}, true);
  const at::Tensor delta_ = Random({sizes_.tokens, sizes_.hidden}, true);
  double flops_ = 0, bandwidth_ = 0;  ///< a second
};

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (const auto ready = millrace::EnsureComputeEnvironment(argv); !ready) {
    fmt::print(stderr, "ops_bench: {}\n", ready.error().ToString());
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines are seen as they come, also by a pipe
  millrace::Sizes sizes;
  int threads = 2;
  CLI::App app("Times the ops of a model beside the speed of products and of memory");
  app.add_option("--threads", threads);
  app.add_option("--tokens", sizes.tokens);
  app.add_option("--length", sizes.length, "tokens of a sequence");
  app.add_option("--hidden", sizes.hidden);
  app.add_option("--intermediate", sizes.intermediate);
  app.add_option("--heads", sizes.heads);
  app.add_option("--vocab", sizes.vocab);
  app.add_option("--rounds", sizes.rounds);
  app.add_option("--device", sizes.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--only", sizes.only, "ops whose names contain this");
  CLI11_PARSE(app, argc, argv);
  millrace::engine::ConfigureRuntime(threads);
  const auto ran = millrace::engine::CatchTorch("measuring", [&] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) millrace::Bench(sizes, dtype).RunAll();
  });
  if (!ran) fmt::print(stderr, "ops_bench: {}\n", ran.error().ToString());
  return ran ? 0 : 1;
}
