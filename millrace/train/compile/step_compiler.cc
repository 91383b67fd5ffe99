#include "millrace/train/compile/step_compiler.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"
#include "millrace/engine/device/built_with_cuda.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/ops/cuda/tensors/lt_product.h"
#include "millrace/engine/tuning/measure_gpu_products.h"
#include "millrace/engine/tuning/measure_products.h"
#include "millrace/train/compile/product_json.h"
#include "millrace/train/ranks/share_text.h"
#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

using engine::ops::SeenProducts;
using engine::ops::StepKernels;

/// Returns the products of all ranks.
Result<SeenProducts> Union(engine::Collective& world, const SeenProducts& mine) {
  const std::string text = DumpJson(ProductsOf(mine));
  SeenProducts all;
  for (int rank = 0; rank < world.size(); ++rank) {
    MR_TRY(AddProducts(MR_TRY(ParseJson(MR_TRY(ShareText(world, text, rank)), "the products of a rank")), all));
  }
  return all;
}

/// Returns the fastest ways to make these products.
StepKernels Measure(const SeenProducts& products, [[maybe_unused]] at::Device device, Clock& clock) {
  StepKernels chosen{.products = engine::ops::MeasureProducts(products.on_cpu, clock)};
  if constexpr (engine::ops::kBuiltWithCuda) {
    if (!device.is_cpu()) chosen.gpu_products = engine::ops::cuda::MeasureGpuProducts(products.on_gpu, device);
  }
  return chosen;
}

/// Returns what products on the device depend on.
Json MachineOf([[maybe_unused]] at::Device device) {
  if constexpr (engine::ops::kBuiltWithCuda) {
    if (!device.is_cpu()) return {{"gpu", engine::DeviceName(device)}, {"cublas", engine::ops::cuda::CublasVersion()}};
  }
  const CpuInfo cpu = DetectCpu();
  std::vector<std::string_view> vectors;
  if (cpu.avx2_fma) vectors.emplace_back("avx2");
  if (cpu.avx512) vectors.emplace_back("avx512");
  if (cpu.avx512_bf16) vectors.emplace_back("avx512_bf16");
  if (cpu.amx_bf16) vectors.emplace_back("amx_bf16");
  return {{"brand", cpu.brand},  // clouds shorten it, so it is not enough
          {"family", cpu.family},
          {"model", cpu.model},
          {"vectors", vectors},
          {"threads", at::get_num_threads()}};
}

/// Reports an entry that is damaged as one that is not there.
Result<std::optional<CompiledEntry>> FindUndamaged(CompileCache& cache, const Json& made_for, const Logger& log) {
  auto found = cache.Find(made_for);
  if (found || found.error().code() != Code::kCorrupt) return found;
  log.Warning("a compiled step is damaged and is measured again; `millrace job compile --prune` deletes it",
              {{"error", found.error().ToString()}});
  return std::optional<CompiledEntry>();
}

}  // namespace

std::string ChangedKeys(const CompiledEntry& one, const CompiledEntry& other) {
  std::set<std::string> keys;
  const auto compare = [&](const Json& a, const Json& b) {
    for (const auto& [key, value] : a.items()) {
      const Json* found = JsonFind(b, key);
      if (found == nullptr || *found != value) keys.insert(key);
    }
  };
  compare(one.made_for, other.made_for);
  compare(other.made_for, one.made_for);
  return fmt::format("{}", fmt::join(keys, ", "));
}

Json CompileReport::ToJson() const {
  constexpr std::array<std::string_view, 3> kFrom = {"checkpoint", "cache", "measured"};
  return {{"event", "compiled"},  {"from", kFrom.at(static_cast<std::size_t>(from))},
          {"hash", entry.Hash()}, {"url", url},
          {"products", shapes},   {"choices", entry.products.size()},
          {"seconds", seconds}};
}

std::string CompileReport::ToText() const {
  std::string text = fmt::format("compiled step {}: ", entry.Hash().substr(0, 12));
  switch (from) {
    case From::kCheckpoint:
      text += "that of the checkpoint";
      break;
    case From::kCache:
      text += fmt::format("found at {}", url);
      break;
    case From::kMeasured:
      text += fmt::format("{} products measured in {:.1f} s, another method is faster for {}; kept at {}", shapes,
                          seconds, entry.products.size(), url);
  }
  if (peak_memory > 0) text += fmt::format("\na step took {} of memory on the fullest rank", FormatBytes(peak_memory));
  return text;
}

Json CompiledFor(const StepFacts& facts) {
  Json made_for = {{"model", facts.model},
                   {"precision", facts.precision},
                   {"objective", facts.objective},
                   {"micro_batch", facts.micro_batch},
                   {"sequence_length", facts.sequence_length},
                   {"layout",
                    {{"tensor", facts.shape.tensor},
                     {"sequence", facts.parallel.sequence},
                     {"pipeline", facts.shape.pipeline},
                     {"schedule", engine::PipelineScheduleName(facts.parallel.schedule)},
                     {"virtual_stages", facts.parallel.virtual_stages}}},
                   {"processor", MachineOf(facts.device)},
                   {"libraries", {{"torch", TORCH_VERSION}, {"onednn", engine::ops::OneDnnVersion()}}}};
  if (!facts.adapter.is_null()) made_for["adapter"] = facts.adapter;
  if (!facts.base.empty()) made_for["base"] = facts.base;
  if (facts.fp8_scaling != "none") made_for["fp8_scaling"] = facts.fp8_scaling;
  return made_for;
}

Result<CompileReport> CompileStep(object::Connection& connection, engine::Collective& world, std::string cache_url,
                                  const Json& made_for, const std::optional<CompiledEntry>& resumed,
                                  const TrialStep& trial, at::Device device, Clock& clock, const Logger& log) {
  const Stopwatch watch(clock);
  if (cache_url.empty()) cache_url = MR_TRY(CompileCache::DefaultUrl());
  CompileCache cache = MR_TRY(CompileCache::Open(connection, cache_url));
  CompileReport report{.url = cache.UrlOf(made_for)};
  const bool leads = world.rank() == 0;
  const auto share = [&](const std::optional<CompiledEntry>& entry) -> Result<std::optional<CompiledEntry>> {
    const std::string text = MR_TRY(ShareText(world, entry ? DumpJson(entry->ToJson()) : "", 0));
    if (text.empty()) return std::nullopt;
    return CompiledEntry::FromJson(MR_TRY(ParseJson(text, report.url)), report.url);
  };
  const auto end = [&](CompileReport::From from, CompiledEntry entry) {
    report.from = from;
    report.entry = std::move(entry);
    report.seconds = watch.Seconds();
    return report;
  };

  // Rank 0 decides, because ranks might run on different processors.
  using From = CompileReport::From;
  std::optional<CompiledEntry> found;
  const bool same = resumed && resumed->made_for == made_for;
  if (leads) found = same ? resumed : MR_TRY(FindUndamaged(cache, made_for, log));
  if (auto entry = MR_TRY(share(found))) return end(same ? From::kCheckpoint : From::kCache, *std::move(entry));

  SeenProducts seen;
  MR_TRY(trial({}, seen));
  const SeenProducts products = MR_TRY(Union(world, seen));
  report.shapes = products.on_cpu.size() + products.on_gpu.size();
  std::optional<CompiledEntry> made;
  if (leads) {
    const StepKernels chosen =
        MR_TRY(engine::CatchTorch("measuring products", [&] { return Measure(products, device, clock); }));
    made = {.made_for = made_for, .products = ChoicesOf(chosen)};
    const auto kept = cache.Keep(*made);
    if (kept) made = *kept;
    // A damaged entry stands in its place. This run has its own, also in its checkpoints.
    if (!kept && kept.error().code() != Code::kCorrupt) return Fail(kept.error());
  }
  return end(From::kMeasured, MR_TRY(share(made)).value());
}

Result<std::uint64_t> PeakMemory(engine::Collective& world, at::Device device) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  // What a GPU's allocator has taken, it keeps.
  const std::int64_t mine = device.is_cpu() ? std::int64_t{used.ru_maxrss} * 1024
                                            : static_cast<std::int64_t>(engine::DeviceMemoryInUse(device));
  const at::Tensor peak = at::scalar_tensor(mine, at::kLong);
  MR_TRY(world.AllReduce(peak, engine::Reduction::kMax));
  return static_cast<std::uint64_t>(peak.item<std::int64_t>());
}

}  // namespace millrace::train
