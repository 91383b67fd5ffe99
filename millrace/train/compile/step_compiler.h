// Compiles a run's step: finds what computes it fastest on this machine, once for all runs like it.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/engine/layout/mesh.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/ops/choice/step_kernels.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/compile_cache/compile_cache.h"

namespace millrace::train {

/// How the passes of a step are computed.
enum class Compile {
  kAuto,  ///< by fused ops, with products that are made alike everywhere
  kOn,    ///< by fused ops; products are made by what is fastest on this machine
  kOff,   ///< by the ops' references: operations of ATen one by one, as eager PyTorch computes
};
std::string_view CompileName(Compile compile);  ///< "auto", "on", "off"

/// How a compiled step came about.
struct CompileReport {
  enum class From { kCheckpoint, kCache, kMeasured } from = From::kMeasured;
  CompiledEntry entry;
  std::string url;         ///< of the entry in the cache
  std::size_t shapes = 0;  ///< of products that were measured; 0 if none were
  double seconds = 0;      ///< until the choices were known
  /// The most memory that a rank had up to the end of a whole step, in bytes; 0: none was made (job compile).
  std::uint64_t peak_memory = 0;

  Json ToJson() const;
  std::string ToText() const;  ///< one line
};

/// What a compiled step depends on, beside the machine.
struct StepFacts {
  Json model;  ///< config.json
  std::string_view precision, objective;
  int micro_batch = 1, sequence_length = 1;
  engine::ParallelOptions parallel;
  engine::MeshShape shape;
  Json adapter;           ///< adapter_config.json; null: no adapter is trained
  std::string_view base;  ///< the name of a Quantization; empty: in full
  at::Device device = at::kCPU;
  std::string_view fp8_scaling = "none";  ///< the name of an Fp8Scaling
};
/// Returns the facts with the processor and the threads of this rank, or its GPU, and the versions of the libraries
/// that multiply.
Json CompiledFor(const StepFacts& facts);

/// Returns the keys of what two entries were made for that differ: "processor, libraries".
std::string ChangedKeys(const CompiledEntry& one, const CompiledEntry& other);

/// Makes a step on this rank in the scope of `kernels` and undoes what it has changed.
using TrialStep = std::function<Status(const engine::ops::StepKernels& kernels, engine::ops::SeenProducts& seen)>;

/// Returns the entry of `resumed` if it was made for the same; else that of the cache; else measures one and keeps it
/// there. Then all ranks make a trial step, and rank 0 measures the products of all of them on its `device`, while the
/// others wait.
/// Collective over `world`; all ranks get the same entry. Blocks.
/// Errors: those of the trial step, the group and the store. A damaged entry of the cache is reported to the log, and
/// replaced by measuring.
/// `cache_url`: as CompileCache::Open(); empty: the user's cache.
Result<CompileReport> CompileStep(object::Connection& connection, engine::Collective& world, std::string cache_url,
                                  const Json& made_for, const std::optional<CompiledEntry>& resumed,
                                  const TrialStep& trial, at::Device device, Clock& clock, const Logger& log);

/// Returns the most memory of its device that a rank has had so far, in bytes: CompileReport::peak_memory. On a GPU,
/// all programs count. Collective over `world`. Blocks. Errors: those of Collective.
Result<std::uint64_t> PeakMemory(engine::Collective& world, at::Device device);

}  // namespace millrace::train
