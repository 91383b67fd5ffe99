// Exports: turns a checkpoint of Millrace into files of other programs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/gguf/ggml_type.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/quantized/quantization.h"

namespace millrace::checkpoint {

struct ExportOptions {
  ForeignFormat format = ForeignFormat::kHuggingFace;
  /// For kTorch and kDcp: the group to export. Its prefix is removed, so "model" gives a plain state_dict. Empty: all.
  std::string group;
  /// The most tensor bytes in one file of weights; a larger tensor has a file of its own. 5 GB: the default
  /// max_shard_size of transformers 4.
  std::uint64_t file_bytes = 5'000'000'000;
  /// For kHuggingFace and kGguf: small files of the model, such as its tokenizer's, by name. For kHuggingFace, a file
  /// of the same name in the checkpoint takes precedence.
  std::map<std::string, std::string> files;
  /// For kHuggingFace: the matrices of blocks are written as codes, in the form of bitsandbytes.
  std::optional<engine::Quantization> quantization;
  std::optional<GgmlType> gguf_type;  ///< for kGguf: the type of matrices; nothing: as in the checkpoint
  TensorChange change;                ///< of the tensors that are written, such as AdapterMerge::Apply; may be empty
};
/// Writes the checkpoint, or a group of it, to `to`. `to` is a file for kTorch and kGguf, and a folder for the other
/// formats:
///   kHuggingFace  kModelGroup as model.safetensors, or shards and an index, config.json, and the model's other files
///   kPeft         kAdapterGroup as adapter_model.safetensors, and adapter_config.json
///   kTorch        the state as one file that torch.load(weights_only=True) reads
///   kGguf         kModelGroup as one file for llama.cpp
///   kDcp          the state as a folder for the FileSystemReader of torch.distributed.checkpoint
/// A program that opens the folder meanwhile finds the old checkpoint or the new one. New shards get new names. One put
/// of the index, of .metadata or of the only file replaces the checkpoint. Then Export removes the old weights. If a
/// model's configuration or tokenizer changes, Export removes the old weights first, and the folder has no model
/// meanwhile.
/// Checks every chunk that it reads. Reserves the memory in flight in `budget`. `progress` counts bytes of tensors.
/// Blocks.
/// Errors: kNotFound if the checkpoint lacks what the format needs; kUnsupported if a value has no form in the format.
Result<ExportResult> Export(Reader& reader, const object::Location& to, MemoryBudget& budget,
                            const ExportOptions& options = {}, object::Call call = {},
                            const ByteProgress& progress = {});

/// Returns the bytes of all tensors that an Export with these options covers, as a total for its progress.
std::uint64_t ExportBytes(const Manifest& manifest, const ExportOptions& options);

}  // namespace millrace::checkpoint
