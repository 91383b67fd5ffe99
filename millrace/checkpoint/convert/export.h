// From a checkpoint to the formats of others.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/source/foreign_format.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/checkpoint/convert/stream/export_target.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

struct ExportOptions {
  ForeignFormat format = ForeignFormat::kHuggingFace;
  /// Of kTorch and kDcp: only what lies below this path, without it ("model" gives a plain state_dict). Empty: all.
  std::string group;
  std::uint64_t file_bytes = 5'000'000'000;  ///< of files of weights; only a tensor that is larger makes a larger one
  /// For kHuggingFace: small files to put beside the model, such as its tokenizer's, by name. A file of the same name
  /// in the checkpoint takes precedence.
  std::map<std::string, std::string> files;
};
/// Writes what `format` has of a checkpoint to `to`, a folder, or with kTorch a file:
///   kHuggingFace  kModelGroup as model.safetensors, or shards and an index, config.json, and the model's other files
///   kPeft         kAdapterGroup as adapter_model.safetensors, and adapter_config.json
///   kTorch        the state as one file that torch.load(weights_only=True) reads
///   kDcp          the state as torch.distributed.checkpoint's FileSystemReader wants it
/// Whoever opens the folder meanwhile finds what was there before, or all that is new: what names the others (index,
/// .metadata) is replaced by one put after they are there, then weights that lay there before are removed. Only where a
/// model's configuration or tokenizer changes do they go first, and there is no model meanwhile. Every byte is verified
/// on its way; memory in flight is reserved in `budget`. kNotFound when the checkpoint lacks what the format needs.
/// Blocks. `progress` counts bytes of tensors.
Result<ExportResult> Export(Reader& reader, const object::Location& to, MemoryBudget& budget,
                            const ExportOptions& options = {}, object::Call call = {},
                            const ByteProgress& progress = {});

/// How many bytes of tensors an Export will read.
std::uint64_t ExportBytes(const Manifest& manifest, const ExportOptions& options);

}  // namespace millrace::checkpoint
