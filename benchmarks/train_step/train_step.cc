// Times training steps of a model on this CPU or GPU: forward, backward, clipping, AdamW. Prints one JSON object. Its
// peers do the same in PyTorch: torch_peer.py on a CPU, where compare.py runs both and prints the ratio, and
// benchmarks/gpu/torch_step.py on a GPU.
#include <ATen/Parallel.h>
#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <set>

#include "benchmarks/train_step/presets.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/families/gpt2/gpt2_config.h"
#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/runtime.h"
#include "millrace/engine/sharding/divided_gradients.h"
#include "millrace/engine/testing/in_memory_codes.h"
#include "millrace/engine/tuning/measure_gpu_products.h"
#include "millrace/engine/tuning/measure_products.h"
#include "millrace/plan/machine.h"

#ifdef MILLRACE_CUDA
// PyPI's packages of CUDA lack the header cuda_profiler_api.h, which declares these two.
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
#endif

namespace millrace {
namespace {

/// The number of layers if no preset names it.
constexpr std::int64_t kLayers = 8;

struct Options {
  std::string family = "llama";
  std::string config;  ///< one of Presets(), in place of the family and its sizes
  std::string device = "cpu";
  std::int64_t micro_batches = 1;
  std::string precision = "f32", fp8_scaling = "current", recompute = "none";
  std::int64_t hidden = 512, intermediate = 1376, some_layers = 0, heads = 8, kv_heads = 8, vocab = 32000;
  std::int64_t batch = 4, length = 0;
  std::int64_t lora = 0;      ///< rank of adapters of all linear layers, which are trained in place of the model
  bool nf4 = false;           ///< these layers have 4-bit weights
  std::int64_t document = 0;  ///< tokens per document of a row; the last may be shorter. 0: one document per row
  int threads = 2, steps = 5, warmup = 2;
  bool progress = false;
  bool offload_state = false, offload_inputs = false;  ///< of the optimizer; of blocks that are computed again
  std::string compile = "auto";                        ///< as train.compile: auto | on | off
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
  if (!options.config.empty()) {
    Json json = Presets().at(options.config).config;
    if (options.some_layers > 0) json[json.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = options.some_layers;
    auto config = engine::ParseModelConfig(json, options.config);
    if (!config) throw std::invalid_argument(config.error().ToString());
    return *config;
  }
  if (options.family == "gpt2") {
    auto config = std::make_shared<engine::Gpt2Config>();
    config->hidden_size = options.hidden;
    config->intermediate_size = options.intermediate;
    config->num_layers = options.some_layers > 0 ? options.some_layers : kLayers;
    config->num_heads = options.heads;
    config->vocab_size = options.vocab;
    config->embedding_dropout = config->attention_dropout = config->residual_dropout = 0;
    return config;
  }
  auto config = std::make_shared<engine::LlamaConfig>();
  config->hidden_size = options.hidden;
  config->intermediate_size = options.intermediate;
  config->num_layers = options.some_layers > 0 ? options.some_layers : kLayers;
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
  if (options.nf4) {
    share.quantized = options.device == "cpu" ? MR_TRY(QuantizedBlocks(config))
                                              : engine::testing::RandomBlocks(*config, engine::Quantization::kNf4);
  }
  const at::ScalarType type = options.precision == "bf16" || options.precision == "fp8" ? at::kBFloat16
                              : options.precision == "fp16"                             ? at::kHalf
                                                                                        : at::kFloat;
  return engine::MakeModel(config, type, at::Device(options.device), 1, std::move(share));
}

/// Returns how the steps are computed. `trial` makes the passes of one.
engine::ops::StepKernels KernelsOf(const Options& options, const std::function<void()>& trial) {
  engine::ops::StepKernels kernels{.plain = options.compile == "off"};
  if (options.precision == "fp8") kernels.fp8 = engine::ops::ParseFp8Scaling(options.fp8_scaling).value();
  if (options.compile != "on") return kernels;
  engine::ops::SeenProducts seen;
  {
    const engine::ops::KernelScope scope(kernels, &seen);
    trial();
  }
  kernels.products = engine::ops::MeasureProducts(seen.on_cpu, SystemClock());
#ifdef MILLRACE_CUDA
  kernels.gpu_products = engine::ops::cuda::MeasureGpuProducts(seen.on_gpu, at::Device(options.device));
  fmt::print(stderr, "{} of {} products by another algorithm\n", kernels.gpu_products.size(), seen.on_gpu.size());
#endif
  for (const auto& [shape, method] : kernels.products) {
    fmt::print(stderr, "[{}, {}]{} · [{}, {}]{}, {}: {}\n", shape.rows, shape.inner, shape.left_transposed ? "ᵀ" : "",
               shape.inner, shape.columns, shape.right_transposed ? "ᵀ" : "", static_cast<int>(shape.result),
               engine::ops::ProductMethodName(method));
  }
  return kernels;
}

/// Sets the amax of the next step by the largest values of this one.
void UpdateAmax(engine::ops::LargestValues& largest, std::vector<engine::ops::OfFp8Tensors>& amaxes) {
  const std::vector<engine::ops::OfFp8Tensors> seen = largest.TakeSeen();
  for (std::size_t layer = 0; layer < seen.size(); ++layer) {
    std::ranges::transform(amaxes[layer], seen[layer], amaxes[layer].begin(), engine::ops::DecayedAmax);
  }
  largest.SetAmax(amaxes);
}

/// What the steps learn from: random tokens. `rows` · `length` of them are one micro-batch.
struct Tokens {
  at::Tensor inputs, labels, row_labels;
  std::vector<std::int32_t> documents;
  double predicted = 1;  ///< of all tokens
  engine::ModelBatch Batch() const {
    return {.inputs = inputs, .labels = labels, .documents = documents, .row_labels = row_labels};
  }
};

Tokens MakeTokens(const Options& options, const engine::ModelConfig& config, std::uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor ids =
      at::randint(config.sizes().vocab_size, {options.batch, options.length + 1}, generator, at::kLong);
  Tokens tokens{.inputs = ids.narrow(1, 0, options.length).contiguous().to(at::Device(options.device)),
                .labels = ids.narrow(1, 1, options.length).contiguous()};
  if (options.document > 0) tokens.documents = Documents(options);
  if (config.family() == "bert") {
    const std::int64_t masked = std::max<std::int64_t>(1, std::lround(0.15 * static_cast<double>(options.length)));
    tokens.labels.narrow(1, masked, options.length - masked).fill_(engine::ops::kIgnoreLabel);
    tokens.row_labels = at::randint(2, {options.batch}, generator, at::kLong);
    tokens.predicted = static_cast<double>(masked) / static_cast<double>(options.length);
  }
  return tokens;
}

/// Returns the floating-point operations of a trained token. BERT's head computes only the tokens that are predicted.
double FlopsPerToken(const Options& options, const engine::ModelConfig& config, double predicted) {
  plan::ModelShape shape = config.Shape();
  if (options.lora > 0) shape.Adapt(LoraOf(options), 0);
  const double length = static_cast<double>(options.document > 0 ? options.document : options.length);
  const engine::ModelSizes sizes = config.sizes();
  const auto head = static_cast<double>(sizes.hidden_size * (sizes.vocab_size + sizes.hidden_size));
  return shape.FlopsPerToken(length) - 6 * head * (1 - predicted);
}

/// Waits until the device has done what it was told.
void Synchronize(const Options& options) {
#ifdef MILLRACE_CUDA
  if (options.device == "cuda") C10_CUDA_CHECK(cudaDeviceSynchronize());
#else
  (void)options;
#endif
}

/// Tells profilers of GPUs that the steps that are measured begin or end.
void Profile([[maybe_unused]] bool begin) {
#ifdef MILLRACE_CUDA
  (void)(begin ? cudaProfilerStart() : cudaProfilerStop());
#endif
}

void AddGpuFigures([[maybe_unused]] const Options& options, [[maybe_unused]] double flops_rate,
                   [[maybe_unused]] Json& result) {
#ifdef MILLRACE_CUDA
  if (options.device != "cuda") return;
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingDeviceAllocator::DeviceStats stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  const std::string card = at::cuda::getCurrentDeviceProperties()->name;
  result["card"] = card;
  result["peak_gib"] = static_cast<double>(stats.allocated_bytes.at(all).peak) / (1 << 30);
  result["reserved_gib"] = static_cast<double>(stats.reserved_bytes.at(all).peak) / (1 << 30);
  if (const auto peaks = plan::PeaksOf(card)) {
    const double peak = options.precision == "f32"    ? peaks->f32
                        : options.precision == "tf32" ? peaks->tf32
                        : options.precision == "fp8"  ? peaks->fp8
                                                      : peaks->bf16;
    if (peak > 0) result["mfu"] = flops_rate / peak;
  }
#endif
}

int Run(Options options) {
  engine::ConfigureRuntime(options.threads);
  if (options.length == 0) options.length = options.config.empty() ? 512 : Presets().at(options.config).length;
  const std::shared_ptr<const engine::ModelConfig> config = MakeConfig(options);
  auto made = Make(options, config);
  if (!made) {
    fmt::print(stderr, "{}\n", made.error().ToString());
    return 1;
  }
  engine::Model& model = **made;
  if (options.recompute == "selective") {
    model.SetRecompute(engine::Recompute::kSelective);
  } else if (options.recompute != "none") {
    model.SetRecompute(engine::Recompute::kFull, options.recompute == "full" ? 1 : std::stoi(options.recompute),
                       options.offload_inputs);
  }
  model.buffer().EnableGradients();
  engine::Adamw optimizer(model.buffer(), {}, {}, {.on_host = options.offload_state});
  std::vector<Tokens> micro_batches;
  for (std::int64_t i = 0; i < options.micro_batches; ++i) {
    micro_batches.push_back(MakeTokens(options, *config, static_cast<std::uint64_t>(i) + 1));
  }
  const double tokens = static_cast<double>(options.batch * options.length * options.micro_batches);
  const double labels = tokens * micro_batches.front().predicted;

  const auto passes = [&] {
    at::Tensor sum;
    for (const Tokens& each : micro_batches) {
      const at::Tensor loss = model.LossSum(each.Batch());
      model.Backward(0, loss);
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    return sum;
  };
  engine::ops::StepKernels kernels = KernelsOf(options, [&] {
    passes();
    optimizer.Skip();
  });
  engine::ops::LargestValues largest(model.linear_layers().size(), at::Device(options.device));
  std::vector<engine::ops::OfFp8Tensors> amaxes(largest.layers());
  kernels.largest = &largest;
  const engine::ops::KernelScope scope(kernels);
  std::vector<double> seconds;
  std::clock_t processor = 0;  // CPU time of all threads; other work on the machine changes it little
  std::int64_t faults = 0;     // pages that came from the system
  double loss = 0;
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) {
      processor = std::clock();
      faults = Used().ru_minflt;
      Profile(true);
    }
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor sum = passes();
    const double norm = engine::GradientNorm(model.buffer(), 1 / labels);
    optimizer.Step(3e-4, engine::ClipScale(norm, 1) / labels);
    if (kernels.fp8 == engine::ops::Fp8Scaling::kDelayed) UpdateAmax(largest, amaxes);
    Synchronize(options);
    loss = sum.item<double>() / labels;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (step >= options.warmup) seconds.push_back(took.count());
    if (options.progress) {
      fmt::print(stderr, "step {}: {:.4f} s, loss {:.4f}, norm {:.4f}\n", step, took.count(), loss, norm);
    }
  }
  Profile(false);
  const double processor_s = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC / options.steps;
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const double flops = FlopsPerToken(options, *config, micro_batches.front().predicted) * tokens / median;
  Json result = {{"program", "millrace"},
                 {"parameters", config->ParameterCount()},
                 {"config", options.config.empty() ? options.family : options.config},
                 {"batch", options.batch},
                 {"length", options.length},
                 {"micro_batches", options.micro_batches},
                 {"precision", options.precision},
                 {"fp8_scaling", options.precision == "fp8" ? options.fp8_scaling : "none"},
                 {"recompute", options.recompute},
                 {"offload_state", options.offload_state},
                 {"offload_inputs", options.offload_inputs},
                 {"steps", options.steps},
                 {"step_s_min", seconds.front()},
                 {"step_s", median},
                 {"step_s_max", seconds.back()},
                 {"cpu_s", processor_s},
                 {"tokens_per_s", tokens / median},
                 {"peak_mib", Used().ru_maxrss >> 10},
                 {"page_faults", (Used().ru_minflt - faults) / options.steps},
                 {"gflops", flops / 1e9},
                 {"model_tflops", flops / 1e12},
                 {"loss", loss}};
  AddGpuFigures(options, flops, result);
  fmt::print("{}\n", DumpJson(result));
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
  CLI::App app("Times training steps of a model");
  app.add_option("--family", options.family)->check(CLI::IsMember({"llama", "gpt2"}));
  app.add_option("--hidden", options.hidden);
  app.add_option("--intermediate", options.intermediate);
  app.add_option("--layers", options.some_layers, "of a preset, fewer than it has; of other models, 8 by default");
  app.add_option("--config", options.config, "llama2-7b, gpt2-124m, gpt2-medium, bert-large or gptj-6b")
      ->check([](const std::string& name) { return millrace::Presets().contains(name) ? "" : "no such model"; });
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--micro-batches", options.micro_batches, "of a step, each of --batch sequences");
  app.add_option("--recompute", options.recompute, "none, selective, full, or N: every N-th block");
  app.add_flag("--offload-state", options.offload_state, "of the optimizer, to the memory of the host");
  app.add_flag("--offload-inputs", options.offload_inputs, "of blocks that are computed again");
  app.add_option("--warmup", options.warmup);
  app.add_flag("--progress", options.progress, "print each step");
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
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"f32", "tf32", "bf16", "fp16", "fp8"}));
  app.add_option("--fp8-scaling", options.fp8_scaling)->check(CLI::IsMember({"current", "delayed", "block"}));
  app.add_flag_callback("--bf16", [&] { options.precision = "bf16"; });
  app.add_option("--compile", options.compile)->check(CLI::IsMember({"auto", "on", "off"}));
  CLI11_PARSE(app, argc, argv);
  return millrace::Run(options);
}
