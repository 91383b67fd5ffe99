// Compiles the step of a run: measures which method makes each product of the step fastest on this machine. A cache
// keeps the result for all later runs with the same model, batch, layout and machine.
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
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/compile/compile_cache.h"
#include "millrace/train/options/compile.h"

namespace millrace::train {

/// A compiled step, and how the run got it.
struct CompileReport {
  enum class From { kCheckpoint, kCache, kMeasured } from = From::kMeasured;
  CompiledEntry entry;
  std::string url;         ///< URL of the entry in the cache
  std::size_t shapes = 0;  ///< the number of products that were measured; 0: none
  double seconds = 0;      ///< the time until the entry was known
  /// The most memory that any rank had, up to the end of a whole step, in bytes. 0: not measured; only `millrace job
  /// compile` measures it.
  std::uint64_t peak_memory = 0;

  Json ToJson() const;
  std::string ToText() const;  ///< one line
};

/// The model, batch and layout of a step. A compiled step is valid only for these and for the machine.
struct StepFacts {
  Json model;  ///< the content of config.json
  std::string_view precision, objective;
  int micro_batch = 1, sequence_length = 1;
  engine::ParallelOptions parallel;
  engine::MeshShape shape;
  Json adapter;           ///< the content of adapter_config.json; null: no adapter is trained
  std::string_view base;  ///< the name of a Quantization; empty: the weights are not quantized
  at::Device device = at::kCPU;
  std::string_view fp8_scaling = "none";  ///< the name of an Fp8Scaling
};
/// Returns the facts, together with this rank's processor and threads or its GPU, and with the versions of the
/// libraries that multiply. It is the `made_for` of a CompiledEntry.
Json CompiledFor(const StepFacts& facts);

/// Returns the keys whose values differ between the `made_for` of two entries: "processor, libraries".
std::string ChangedKeys(const CompiledEntry& one, const CompiledEntry& other);

/// Makes a step on this rank with the methods of `kernels`, collects the products of the step in `seen`, and undoes its
/// own changes.
using TrialStep = std::function<Status(const engine::ops::StepKernels& kernels, engine::ops::SeenProducts& seen)>;

/// Returns a compiled step for `made_for`: `resumed` if it was made for the same, else the entry of the cache. If there
/// is neither, measures one and keeps it in the cache. To measure, all ranks make a trial step. Then rank 0 measures
/// the products of all ranks on its `device`, while the other ranks wait.
///
/// `resumed`: the entry of the checkpoint that the run resumes from. `cache_url`: as CompileCache::Open(); empty: the
/// user's cache.
/// Collective over `world`; all ranks get the same entry. Blocks.
/// Errors: those of the trial step, the group and the store. A damaged entry of the cache is logged and measured again.
Result<CompileReport> CompileStep(object::Connection& connection, engine::Collective& world, std::string cache_url,
                                  const Json& made_for, const std::optional<CompiledEntry>& resumed,
                                  const TrialStep& trial, at::Device device, Clock& clock, const Logger& log);

/// Returns the most memory of its device that any rank has had so far, in bytes (CompileReport::peak_memory). On a GPU,
/// counts the memory of all programs. Collective over `world`. Blocks. Errors: those of Collective.
Result<std::uint64_t> PeakMemory(engine::Collective& world, at::Device device);

}  // namespace millrace::train
