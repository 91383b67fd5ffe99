// Times each op of a model on this CPU, forward and backward, beside what the machine allows: the speed of a large
// product of matrices for ops that multiply, the bandwidth of a sum of two arrays for ops that read and write.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>

#include "millrace/base/process/cpu.h"
#include "millrace/engine/ops/activation.h"
#include "millrace/engine/ops/attention.h"
#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/rotary.h"
#include "millrace/engine/optim/blocks.h"
#include "millrace/engine/runtime.h"

namespace millrace {
namespace {

namespace ops = engine::ops;
namespace cpu = engine::cpu;

/// Sizes of a batch and a model.
struct Sizes {
  std::int64_t tokens = 4096, length = 512, hidden = 2048, intermediate = 5632, heads = 32, vocab = 32000;
  int rounds = 5;
  std::string only;  ///< ops whose names contain it
};

class Bench {
 public:
  Bench(const Sizes& sizes, at::ScalarType dtype)
      : sizes_(sizes), dtype_(dtype), generator_(at::detail::createCPUGenerator(1)) {}

  void RunAll() {
    MeasureLimits();
    if (Wanted("linear")) Linear();
    if (Wanted("LM head and cross-entropy")) Head();
    if (Wanted("attention, causal")) Attention();
    Elementwise("RMSNorm, residual", 4, 4,
                [&] {
                  const ops::Normed normed = ops::AddRmsNorm(x_, delta_, Parameter({sizes_.hidden}), 1e-5);
                  return Outputs{normed.sum, normed.out};
                },
                {x_, delta_});
    Elementwise("LayerNorm, residual", 4, 4,
                [&] {
                  const Weight weight = Parameter({sizes_.hidden}), bias = Parameter({sizes_.hidden});
                  const ops::Normed normed = ops::AddLayerNorm(x_, delta_, weight, bias, 1e-5);
                  return Outputs{normed.sum, normed.out};
                },
                {x_, delta_});
    Elementwise("GELU", 2, 3, [&] { return Outputs{ops::Activate(x_, ops::Activation::kGeluTanh)}; }, {x_});
    Elementwise("GELU with erf", 2, 3, [&] { return Outputs{ops::Activate(x_, ops::Activation::kGelu)}; }, {x_});
    const at::Tensor gate_up = Random({sizes_.tokens, 2 * sizes_.intermediate}, true);
    const double inner = static_cast<double>(sizes_.intermediate) / static_cast<double>(sizes_.hidden);
    Elementwise("SwiGLU", 3 * inner, 5 * inner, [&] { return Outputs{ops::Swiglu(gate_up)}; }, {gate_up});
    Rope();
    if (Wanted("AdamW")) Adamw();
  }

 private:
  using Weight = engine::Weight;
  using Outputs = std::vector<at::Tensor>;
  using Run = std::function<Outputs()>;

  at::Tensor Random(at::IntArrayRef shape, bool gradient = false) {
    return at::randn(shape, generator_).to(dtype_).set_requires_grad(gradient);
  }
  Weight Parameter(at::IntArrayRef shape) {
    return {.value = Random(shape, true), .gradient = at::zeros(shape, at::kFloat)};
  }

  bool Wanted(std::string_view op) const { return op.contains(sizes_.only); }

  /// Returns the least time of some rounds in seconds.
  double Time(const std::function<void()>& work) const {
    work();
    double least = 1e30;
    for (int round = 0; round < sizes_.rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      work();
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least;
  }

  void MeasureLimits() {
    const at::NoGradGuard no_grad;
    const std::int64_t n = 3072;
    const at::Tensor a = Random({n, n}), b = Random({n, n}), c = at::zeros({n, n}, at::kFloat);
    flops_ = 2.0 * n * n * n / Time([&] { ops::AddProduct(c, a, b); });
    const at::Tensor p = at::ones({64 << 20}, at::kFloat), q = at::ones_like(p);
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
      const std::vector<at::Tensor> outputs = run();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& each : outputs) gradients.push_back(at::ones_like(each));
      const auto start = std::chrono::steady_clock::now();
      torch::autograd::grad(outputs, inputs, gradients);
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    Print(op, "backward", seconds, least);
  }

  void Linear() {
    const Weight weight = Parameter({sizes_.intermediate, sizes_.hidden}), bias = Parameter({sizes_.intermediate});
    const double flops = 2.0 * static_cast<double>(sizes_.tokens * sizes_.hidden * sizes_.intermediate);
    const auto run = [&] { return Outputs{ops::Linear(x_, {weight, bias})}; };
    {
      const at::NoGradGuard no_grad;
      Print("linear", "forward", Time(run), flops / flops_);
    }
    Backward("linear", 2 * flops / flops_, run, {x_});
  }

  /// Its forward pass computes the gradients too.
  void Head() {
    const Weight head = Parameter({sizes_.vocab, sizes_.hidden});
    const at::Tensor labels = at::randint(sizes_.vocab, {sizes_.tokens}, generator_, at::kLong);
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
    const auto table = ops::RotaryTable::Make(sizes_.length, ops::RotaryFrequencies(dim, 1e4), {}, at::kCPU);
    const at::Tensor qkv = Random({sizes_.tokens, layout.columns()}, true);
    const ops::Sequences sequences = ops::Sequences::Even(sizes_.tokens / sizes_.length, sizes_.length);
    Elementwise("RoPE", 6, 6, [&] { return Outputs{ops::Rotate(qkv, table, layout, sequences)}; }, {qkv});
  }

  void Adamw() const {
    const std::int64_t n = 48 << 20;
    const at::Tensor weights = at::ones({n}, dtype_),
                     master = dtype_ == at::kFloat ? weights : at::ones({n}, at::kFloat);
    const at::Tensor gradients = at::ones({n}, at::kFloat), first = at::zeros({n}, at::kFloat),
                     second = at::zeros({n}, at::kFloat);
    const cpu::AdamwStep step{.lr = 1e-4F,
                              .beta1 = 0.9F,
                              .beta2 = 0.95F,
                              .eps = 1e-8F,
                              .weight_decay = 0.1F,
                              .correction1 = 0.1F,
                              .correction2 = 0.05F,
                              .gradient_scale = 1};
    engine::RunBlocks blocks;
    blocks.Add(n);
    ops::DispatchType(weights, [&]<class T>(T) {
      const auto pass = [&] {
        blocks.ForEach([&](std::size_t i) {
          const auto [run, from, count] = blocks.all()[i];
          const auto at = [&, begin = from](const at::Tensor& x) { return ops::Data<float>(x) + begin; };
          cpu::Adamw(step, ops::Data<T>(weights) + from, at(master), at(gradients), at(first), at(second), count);
        });
      };
      const double bytes = static_cast<double>(n) * (8 * sizeof(float) + (dtype_ == at::kFloat ? 0 : sizeof(T)));
      Print("AdamW", "step", Time(pass), bytes / bandwidth_);
    });
  }

  const Sizes sizes_;
  const at::ScalarType dtype_;
  at::Generator generator_;
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
  app.add_option("--only", sizes.only, "ops whose names contain this");
  CLI11_PARSE(app, argc, argv);
  millrace::engine::ConfigureRuntime(threads);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) millrace::Bench(sizes, dtype).RunAll();
}
