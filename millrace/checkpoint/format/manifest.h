// The manifest, the commit record of a checkpoint: one object that names the file and checksum of every byte.
// docs/formats/checkpoint.md, "Manifest", describes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// A run of consecutive elements, in C order, of a box of a tensor, and its place in a file. The run is the whole box,
/// or a part of it if an optimizer sharded flat buffers.
struct Slice {
  std::string tensor;       ///< key of Manifest::tensors
  std::uint64_t begin = 0;  ///< first element, counted within the box
  std::uint64_t elements = 0;
  std::string file;          ///< key of Manifest::files
  std::uint64_t offset = 0;  ///< of its bytes in that file
  Box box;                   ///< of the tensor
  bool operator==(const Slice&) const = default;
};
/// Size and checksums of a file.
struct FileMeta {
  std::uint64_t size = 0;
  std::uint64_t chunk_bytes = 0;
  /// The CRC-32C of each chunk of chunk_bytes; the last chunk may be short. Empty if unknown (Hugging Face files).
  std::vector<std::uint32_t> chunk_crc32c;
  bool operator==(const FileMeta&) const = default;
};

/// The member of Manifest::meta that holds the model's Hugging Face config.json.
inline constexpr std::string_view kMetaModelConfig = "model_config";
/// The member of Manifest::meta that holds the model's generation_config.json, which a run carries through.
inline constexpr std::string_view kMetaGenerationConfig = "generation_config";
/// The member of Manifest::meta that lists the weights which are stored as the transposes of Hugging Face's matrices.
inline constexpr std::string_view kMetaTransposed = "transposed";
/// The member of Manifest::meta that holds an adapter's adapter_config.json.
inline constexpr std::string_view kMetaAdapterConfig = "adapter_config";
/// The group of the model's weights; the names behind it are Hugging Face's.
inline constexpr std::string_view kModelGroup = "model/";
/// The group of an adapter's (LoRA) weights; the names behind it are PEFT's.
inline constexpr std::string_view kAdapterGroup = "adapter/";
/// The group of an optimizer's state. A tensor's name behind it is the state's, a slash, and the parameter's.
inline constexpr std::string_view kOptimizerGroup = "optimizer/";
/// Small files that came with a model, such as its tokenizer's, are tensors of bytes in this group.
inline constexpr std::string_view kFilesGroup = "files/";

/// Identifies a checkpoint below one root.
struct CheckpointId {
  std::uint64_t step = 0;
  std::string attempt;
  auto operator<=>(const CheckpointId&) const = default;
};

/// The run that made a checkpoint: all attempts of one supervisor, or the ranks of one start without a supervisor.
struct RunLineage {
  std::string id;                  ///< random; empty: unknown, as in checkpoints of older versions
  int attempt = 1;                 ///< the number of this start of the run
  std::vector<std::string> after;  ///< the ids of the runs from whose checkpoints it went on

  /// Returns whether a run belongs to the past of this one.
  bool WentOnFrom(std::string_view run) const { return std::ranges::find(after, run) != after.end(); }
  bool operator==(const RunLineage&) const = default;
};

/// All that a reader needs besides the files. Tensor names carry their group as a prefix: "model/…", "optimizer/…".
struct Manifest {
  static constexpr int kVersion = 2;  ///< of written manifests; readers also take version 1
  /// The largest serialized manifest that readers take: docs/formats/checkpoint.md, "Manifest".
  static constexpr std::uint64_t kMaxBytes = 1 * kGiB;
  std::uint64_t step = 0;
  int ranks = 1;
  std::string attempt;  ///< random name of this attempt at the step, and of the folder of its files
  std::string created;  ///< ISO 8601
  Provenance written_by;
  RunLineage run;
  std::optional<CheckpointId> parent;     ///< the checkpoint that the run resumed from, or saved before
  std::map<std::string, double> metrics;  ///< finite, such as {"loss": 2.31}; retention ranks checkpoints by them
  std::map<std::string, TensorMeta> tensors;
  std::vector<Slice> slices;
  std::map<std::string, FileMeta> files;  ///< by key relative to the step's folder
  Json meta;                              ///< the caller's: schedule, data state, random state, job file, model config

  CheckpointId id() const { return {step, attempt}; }
  std::uint64_t FileBytes() const;  ///< of all files

  /// Returns the manifest as JSON in canonical order: equal manifests give equal bytes.
  /// REQUIRES: Check() holds.
  std::string Serialize() const;
  /// Fails with kCorrupt unless boxes cover every tensor exactly once, slices cover every box exactly once and lie
  /// inside their files, and the files' names stay inside the checkpoint. `name` names the manifest in messages.
  Status Check(std::string_view name) const;
  /// Parses what one rank reports to rank 0. Checks the form, but not the coverage of tensors.
  static Result<Manifest> ParsePart(std::string_view text, std::string_view name);
  /// Parses a committed manifest. Verifies its checksum and its form, then Check().
  static Result<Manifest> Parse(std::string_view text, std::string_view name);
};

}  // namespace millrace::checkpoint
