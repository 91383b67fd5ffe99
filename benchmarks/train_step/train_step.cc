// Times training steps of a Llama or GPT-2 on this CPU: forward, backward, clipping, AdamW. Prints one JSON object. Its
// peer, torch_peer.py, does the same in PyTorch; compare.py runs both and prints the ratio.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <set>

#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/engine/families/gpt2/gpt2_config.h"
#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/gradients/divided_gradients.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/runtime.h"
#include "millrace/engine/testing/in_memory_codes.h"
#include "millrace/engine/tuning/measure_products.h"

namespace millrace {
namespace {

struct Options {
  std::string family = "llama";
  std::int64_t hidden = 512, intermediate = 1376, layers = 8, heads = 8, kv_heads = 8, vocab = 32000;
  std::int64_t batch = 4, length = 512;
  std::int64_t lora = 0;      ///< rank of adapters of all linear layers, which are trained in place of the model
  bool nf4 = false;           ///< these layers have 4-bit weights
  std::int64_t document = 0;  ///< tokens per document of a row; the last may be shorter. 0: one document per row
  int threads = 2, steps = 5, warmup = 2;
  bool bf16 = false;
  std::string compile = "auto";  ///< as train.compile: auto | on | off
};

/// Where documents begin in the concatenated rows, and where the last one ends.
std::vector<std::int32_t> Documents(const Options& options) {
  std::vector<std::int32_t> bounds;
  for (std::int64_t row = 0; row < options.batch; ++row) {
    for (std::int64_t t = 0; t < options.length; t += options.document) {
      bounds.push_back(static_cast<std::int32_t>(row * options.length + t));
    }
  }
  bounds.push_back(static_cast<std::int32_t>(options.batch * options.length));
  return bounds;
}

/// What this process has used up to now.
rusage Used() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used;
}

std::shared_ptr<const engine::ModelConfig> MakeConfig(const Options& options) {
  if (options.family == "gpt2") {
    auto config = std::make_shared<engine::Gpt2Config>();
    config->hidden_size = options.hidden;
    config->intermediate_size = options.intermediate;
    config->num_layers = options.layers;
    config->num_heads = options.heads;
    config->vocab_size = options.vocab;
    config->embedding_dropout = config->attention_dropout = config->residual_dropout = 0;
    return config;
  }
  auto config = std::make_shared<engine::LlamaConfig>();
  config->hidden_size = options.hidden;
  config->intermediate_size = options.intermediate;
  config->num_layers = options.layers;
  config->num_heads = options.heads;
  config->num_kv_heads = options.kv_heads;
  config->vocab_size = options.vocab;
  return config;
}

/// Returns the codes of the matrices of a new model's blocks.
Result<std::shared_ptr<const engine::QuantizedWeights>> QuantizedBlocks(
    const std::shared_ptr<const engine::ModelConfig>& config) {
  const auto model = MR_TRY(engine::MakeModel(config, at::kFloat, at::kCPU, 1));
  auto weights = std::make_shared<engine::QuantizedWeights>();
  for (const engine::NamedParameter& parameter : model->Parameters()) {
    const bool of_block =
        parameter.name.find(".layers.") != std::string::npos || parameter.name.find(".h.") != std::string::npos;
    if (of_block && parameter.tensor.dim() == 2) {
      weights->emplace(parameter.name, engine::testing::ToNf4(parameter.tensor));
    }
  }
  return std::shared_ptr<const engine::QuantizedWeights>(std::move(weights));
}

engine::LoraOptions LoraOf(const Options& options) {
  return {.rank = static_cast<int>(options.lora), .alpha = 2 * static_cast<double>(options.lora)};
}

Result<std::unique_ptr<engine::Model>> Make(const Options& options,
                                            const std::shared_ptr<const engine::ModelConfig>& config) {
  engine::ModelShare share;
  if (options.lora > 0) share.lora = LoraOf(options);
  if (options.nf4) share.quantized = MR_TRY(QuantizedBlocks(config));
  return engine::MakeModel(config, options.bf16 ? at::kBFloat16 : at::kFloat, at::kCPU, 1, std::move(share));
}

/// Returns how the steps are computed. `trial` makes the passes of one.
engine::ops::StepKernels KernelsOf(const Options& options, const std::function<void()>& trial) {
  engine::ops::StepKernels kernels{.plain = options.compile == "off"};
  if (options.compile != "on") return kernels;
  std::set<engine::ops::ProductShape> seen;
  {
    const engine::ops::KernelScope scope(kernels, &seen);
    trial();
  }
  kernels.products = engine::ops::MeasureProducts(seen, SystemClock());
  for (const auto& [shape, method] : kernels.products) {
    fmt::print(stderr, "[{}, {}]{} · [{}, {}]{}, {}: {}\n", shape.rows, shape.inner, shape.left_transposed ? "ᵀ" : "",
               shape.inner, shape.columns, shape.right_transposed ? "ᵀ" : "", static_cast<int>(shape.result),
               engine::ops::ProductMethodName(method));
  }
  return kernels;
}

int Run(const Options& options) {
  engine::ConfigureRuntime(options.threads);
  const std::shared_ptr<const engine::ModelConfig> config = MakeConfig(options);
  auto made = Make(options, config);
  if (!made) {
    fmt::print(stderr, "{}\n", made.error().ToString());
    return 1;
  }
  engine::Model& model = **made;
  model.buffer().EnableGradients();
  engine::Adamw optimizer(model.buffer(), {});
  const auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor ids = at::randint(options.vocab, {options.batch, options.length + 1}, generator, at::kLong);
  const at::Tensor inputs = ids.narrow(1, 0, options.length).contiguous();
  const at::Tensor labels = ids.narrow(1, 1, options.length).contiguous();
  const std::vector<std::int32_t> documents = options.document > 0 ? Documents(options) : std::vector<std::int32_t>();
  const double tokens = static_cast<double>(options.batch * options.length);

  const auto passes = [&] {
    const at::Tensor sum = model.LossSum(inputs, labels, documents);
    sum.backward();
    return sum.item<double>();
  };
  const engine::ops::StepKernels kernels = KernelsOf(options, [&] {
    passes();
    optimizer.Skip();
  });
  const engine::ops::KernelScope scope(kernels);
  std::vector<double> seconds;
  std::clock_t processor = 0;  // CPU time of all threads; other work on the machine changes it little
  std::int64_t faults = 0;     // pages that came from the system
  double loss = 0;
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) {
      processor = std::clock();
      faults = Used().ru_minflt;
    }
    const auto start = std::chrono::steady_clock::now();
    const double sum = passes();
    const double norm = engine::GradientNorm(model.buffer(), 1 / tokens);
    optimizer.Step(3e-4, engine::ClipScale(norm, 1) / tokens);
    loss = sum / tokens;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (step >= options.warmup) seconds.push_back(took.count());
  }
  const double processor_s = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC / options.steps;
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  plan::ModelShape shape = config->Shape();
  if (options.lora > 0) shape.Adapt(LoraOf(options), 0);
  const double flops =
      shape.FlopsPerToken(static_cast<double>(options.document > 0 ? options.document : options.length));
  fmt::print("{}\n", DumpJson({{"program", "millrace"},
                               {"parameters", config->ParameterCount()},
                               {"step_s_min", seconds.front()},
                               {"step_s", median},
                               {"step_s_max", seconds.back()},
                               {"cpu_s", processor_s},
                               {"tokens_per_s", tokens / median},
                               {"peak_mib", Used().ru_maxrss >> 10},
                               {"page_faults", (Used().ru_minflt - faults) / options.steps},
                               {"gflops", flops * tokens / median / 1e9},
                               {"loss", loss}}));
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (const auto ready = millrace::EnsureComputeEnvironment(argv); !ready) {
    fmt::print(stderr, "train_step: {}\n", ready.error().ToString());
    return 1;
  }
  millrace::Options options;
  CLI::App app("Times training steps of a model on this CPU");
  app.add_option("--family", options.family)->check(CLI::IsMember({"llama", "gpt2"}));
  app.add_option("--hidden", options.hidden);
  app.add_option("--intermediate", options.intermediate);
  app.add_option("--layers", options.layers);
  app.add_option("--heads", options.heads);
  app.add_option("--kv-heads", options.kv_heads, "of a Llama");
  app.add_option("--vocab", options.vocab);
  app.add_option("--batch", options.batch);
  app.add_option("--length", options.length);
  app.add_option("--document", options.document);
  app.add_option("--lora", options.lora);
  app.add_flag("--nf4", options.nf4, "4-bit weights; with --lora");
  app.add_option("--threads", options.threads);
  app.add_option("--steps", options.steps);
  app.add_flag("--bf16", options.bf16);
  app.add_option("--compile", options.compile)->check(CLI::IsMember({"auto", "on", "off"}));
  CLI11_PARSE(app, argc, argv);
  return millrace::Run(options);
}
