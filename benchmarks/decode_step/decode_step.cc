// Times greedy decoding of a model with random weights on this CPU or GPU: it reads prompts, then makes one token of
// each sequence a step. Prints one JSON object. Its peer is benchmarks/gpu/torch_decode.py.
#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>

#include "benchmarks/train_step/presets.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/runtime.h"
#include "millrace/engine/testing/in_memory_codes.h"

namespace millrace {
namespace {

struct Options {
  std::string config = "gptj-6b", device = "cpu", precision = "bf16", weights;
  std::int64_t layers = 0, batch = 1, prompt = 128, tokens = 128;
  int rounds = 5, threads = 2;
};

/// The seconds of one round.
struct Round {
  double whole = 0;
  double steps = 0;  ///< without the prompt
};

Result<std::shared_ptr<const engine::ModelConfig>> MakeConfig(const Options& options) {
  Json json = Presets().at(options.config).config;
  if (options.layers > 0) json[json.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = options.layers;
  return engine::ParseModelConfig(json, options.config);
}

/// Returns the time now, after the device has done what it was told.
std::chrono::steady_clock::time_point Now([[maybe_unused]] const Options& options) {
#ifdef MILLRACE_CUDA
  if (options.device == "cuda") C10_CUDA_CHECK(cudaDeviceSynchronize());
#endif
  return std::chrono::steady_clock::now();
}

/// Returns the bytes of weights that a step reads: of all but the token table, unless that is the head, too.
double BytesOfStep(const engine::ModelConfig& config, at::ScalarType type, std::optional<engine::Quantization> kind) {
  const engine::ModelSizes sizes = config.sizes();
  const std::int64_t table = sizes.vocab_size * sizes.hidden_size;
  const std::int64_t of_tables = config.Shape().tied() ? table : 2 * table;
  const double of_type = static_cast<double>(at::elementSize(type));
  const double of_block = kind ? engine::BitsPerElement(*kind) / 8 : of_type;
  const double of_head = kind ? 1 : of_type;  // its codes are int8
  return static_cast<double>(config.ParameterCount() - of_tables) * of_block + static_cast<double>(table) * of_head;
}

Round Decode(const Options& options, engine::Model& model, const at::Tensor& prompts) {
  const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
  engine::CachedRows cache = model.MakeCachedRows(options.batch, options.prompt + options.tokens);
  const auto start = Now(options);
  at::Tensor next = model.Logits(prompts, &cache).argmax(-1);
  const auto read = Now(options);
  for (std::int64_t i = 1; i < options.tokens; ++i) next = model.Logits(next, &cache).argmax(-1);
  const auto end = Now(options);
  return {.whole = seconds(start, end), .steps = seconds(read, end)};
}

void AddGpuFigures([[maybe_unused]] const Options& options, [[maybe_unused]] Json& result) {
#ifdef MILLRACE_CUDA
  if (options.device != "cuda") return;
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingDeviceAllocator::DeviceStats stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  result["card"] = std::string(at::cuda::getCurrentDeviceProperties()->name);
  result["peak_gib"] = static_cast<double>(stats.allocated_bytes.at(all).peak) / (1 << 30);
#endif
}

Status Run(const Options& options) {
  engine::ConfigureRuntime(options.threads);
  const auto config = MR_TRY(MakeConfig(options));
  const at::ScalarType type = options.precision == "bf16"   ? at::kBFloat16
                              : options.precision == "fp16" ? at::kHalf
                                                            : at::kFloat;
  const auto kind = engine::ParseQuantization(options.weights);
  engine::ModelShare share;
  if (kind) share.quantized = engine::testing::RandomBlocks(*config, *kind);
  const auto model = MR_TRY(engine::MakeModel(config, type, at::Device(options.device), 1, share));
  if (kind) MR_TRY(engine::CatchTorch("quantizing the head", [&] { model->QuantizeHead(); }));
  const auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor prompts =
      at::randint(config->sizes().vocab_size, {options.batch, options.prompt}, generator, at::kLong)
          .to(at::Device(options.device));
  std::vector<Round> rounds = MR_TRY(engine::CatchTorch("decoding", [&] {
    Decode(options, *model, prompts);  // warms up
    std::vector<Round> all;
    for (int i = 0; i < options.rounds; ++i) all.push_back(Decode(options, *model, prompts));
    return all;
  }));
  std::ranges::sort(rounds, {}, &Round::whole);
  const Round median = rounds[rounds.size() / 2];
  const auto steps = static_cast<double>(options.tokens - 1), rows = static_cast<double>(options.batch);
  Json result = {{"program", "millrace"},
                 {"config", options.config},
                 {"batch", options.batch},
                 {"prompt", options.prompt},
                 {"tokens", options.tokens},
                 {"precision", options.precision},
                 {"weights", kind ? options.weights : options.precision},
                 {"tokens_per_s", rows * static_cast<double>(options.tokens) / median.whole},
                 {"decode_tokens_per_s", rows * steps / median.steps},
                 {"decode_step_s", median.steps / steps},
                 {"weights_gb_per_s", BytesOfStep(*config, type, kind) * steps / median.steps / 1e9}};
  AddGpuFigures(options, result);
  fmt::print("{}\n", DumpJson(result));
  return {};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (const auto ready = millrace::EnsureComputeEnvironment(argv); !ready) {
    fmt::print(stderr, "decode_step: {}\n", ready.error().ToString());
    return 1;
  }
  millrace::Options options;
  CLI::App app("Times decoding with a model");
  app.add_option("--config", options.config, "llama2-7b, gpt2-124m, gpt2-medium or gptj-6b")
      ->check([](const std::string& name) { return millrace::Presets().contains(name) ? "" : "no such model"; });
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"f32", "bf16", "fp16"}));
  app.add_option("--weights", options.weights, "random codes in place of weights")
      ->check(CLI::IsMember({"int8", "fp8", "nf4"}));
  app.add_option("--layers", options.layers, "fewer than the model has");
  app.add_option("--batch", options.batch, "sequences that are decoded together");
  app.add_option("--prompt", options.prompt, "tokens of each prompt");
  app.add_option("--tokens", options.tokens, "that each sequence gets")->check(CLI::Range(2, 1 << 20));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  const millrace::Status ran = millrace::Run(options);
  if (!ran) fmt::print(stderr, "decode_step: {}\n", ran.error().ToString());
  return ran ? 0 : 1;
}
