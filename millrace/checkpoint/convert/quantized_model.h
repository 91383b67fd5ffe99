// A model with quantized weights on this machine's disk, for training over it or serving it.
#pragma once

#include <filesystem>
#include <memory>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::checkpoint {

/// Maps the *.safetensors files of a folder and finds the weights that nf4, int8 or fp8 stores there, with or
/// without double quantization. Their names are those of a checkpoint (ModelNames). The matrices keep the mapping.
/// Blocks.
/// Errors: kCorrupt if a weight lacks a part, or a part has another length than the weight's shape says; kUnsupported
/// for other quantizations, such as fp4.
Result<std::shared_ptr<const engine::QuantizedWeights>> MapQuantizedWeights(const std::filesystem::path& folder);

struct QuantizedModel {
  /// A Hugging Face folder with the model's other weights, and with the quantized ones as bitsandbytes stores them.
  std::filesystem::path folder;
  std::shared_ptr<const engine::QuantizedWeights> weights;  ///< mapped from there
  /// Owns a folder that QuantizeForOneLoad() made: the folder is removed when the last copy of this pointer is gone.
  /// The mapped weights stay valid. Null for a folder that stays.
  std::shared_ptr<const void> one_load = {};
};

/// Returns the model of `source` with its blocks' matrices quantized as `kind`. Makes a folder for it below `cache`
/// first, unless there is one: quantizes the weights while they stream from the store, or copies them if `source` has
/// them quantized. The folder's name follows from the source's version, so all runs and ranks of a machine share it.
/// One process makes it while others wait. An interrupted one leaves nothing that is used. The folder stays until the
/// user removes it; nothing that maps it minds that. Blocks. Errors: kInvalidArgument if `source` is quantized in
/// another kind; kUnsupported if in another way; those of Export and MapQuantizedWeights.
Result<QuantizedModel> OpenQuantizedModel(object::Connection& connection, const ModelSource& source,
                                          engine::Quantization kind, const std::filesystem::path& cache,
                                          MemoryBudget& budget, const Logger& log, const object::Call& call = {});

/// As OpenQuantizedModel(), for a model that another will soon replace, such as the newest checkpoint of a run: nobody
/// shares the folder, and it is gone when the caller drops `one_load`. Then the codes take space on the disk as long as
/// they are mapped, and no longer. One process of a machine at a time has such a folder, and others wait; what a killed
/// one left is removed by the next.
Result<QuantizedModel> QuantizeForOneLoad(object::Connection& connection, const ModelSource& source,
                                          engine::Quantization kind, const std::filesystem::path& cache,
                                          MemoryBudget& budget, const Logger& log, const object::Call& call = {});

/// Returns where OpenQuantizedModel() keeps its folders by default: "quantized" in the user's cache.
/// Errors: those of DefaultCacheFolder.
Result<std::filesystem::path> DefaultQuantizedFolder();

}  // namespace millrace::checkpoint
