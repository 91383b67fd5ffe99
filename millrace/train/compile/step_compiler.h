// Compiles a run's step: finds what computes it fastest on this machine, once for all runs like it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/ops/choice/step_kernels.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/compile_cache/compile_cache.h"
#include "millrace/train/layout.h"
#include "millrace/train/options.h"

namespace millrace::train {

std::string_view CompileName(Options::Compile compile);  ///< "auto", "on", "off"

/// How a compiled step came about.
struct CompileReport {
  enum class From { kCheckpoint, kCache, kMeasured } from = From::kMeasured;
  CompiledEntry entry;
  std::string url;         ///< of the entry in the cache
  std::size_t shapes = 0;  ///< of products that were measured; 0 if none were
  double seconds = 0;      ///< until the choices were known
  /// The most memory that a rank had up to the end of a whole step, in bytes; 0: none was made (Options::compile_only).
  std::uint64_t peak_memory = 0;

  Json ToJson() const;
  std::string ToText() const;  ///< one line
};

/// Returns what a compiled step depends on: the model, what a rank has of it, the batch, the processor, its threads,
/// and the libraries that multiply.
Json CompiledFor(const Options& options, const engine::ModelConfig& config, const RankLayout& layout,
                 const Json& adapter_config);

/// Returns the choices of an entry. Errors: kCorrupt if they are none.
Result<std::map<engine::ops::ProductShape, engine::ops::ProductMethod>> ChosenProducts(const CompiledEntry& entry);

/// Returns the keys of what two entries were made for that differ: "processor, libraries".
std::string ChangedKeys(const CompiledEntry& one, const CompiledEntry& other);

/// Makes a step on this rank in the scope of `kernels` and undoes what it has changed.
using TrialStep =
    std::function<Status(const engine::ops::StepKernels& kernels, std::set<engine::ops::ProductShape>& seen)>;

/// Returns the entry of `resumed` if it was made for the same; else that of the cache; else measures one and keeps it
/// there. Then all ranks make a trial step, and rank 0 measures the products of all of them, while the others wait.
/// Collective over `world`; all ranks get the same entry. Blocks.
/// Errors: those of the trial step, the group and the store. A damaged entry of the cache is reported to the log, and
/// replaced by measuring.
Result<CompileReport> CompileStep(object::Connection& connection, engine::Collective& world, const Options& options,
                                  const Json& made_for, const std::optional<CompiledEntry>& resumed,
                                  const TrialStep& trial);

}  // namespace millrace::train
