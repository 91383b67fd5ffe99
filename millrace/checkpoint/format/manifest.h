// The manifest, the commit record of a checkpoint: one object that names the file and checksum of every byte.
// docs/formats/checkpoint.md, "Manifest", describes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/contents.h"

namespace millrace::checkpoint {

/// The member of Manifest::meta that holds the model's Hugging Face config.json.
inline constexpr std::string_view kMetaModelConfig = "model_config";
/// The member of Manifest::meta that holds the model's generation_config.json, which a run carries through.
inline constexpr std::string_view kMetaGenerationConfig = "generation_config";
/// The member of Manifest::meta that lists the weights which are stored as the transposes of Hugging Face's matrices.
inline constexpr std::string_view kMetaTransposed = "transposed";
/// The member of Manifest::meta that holds an adapter's adapter_config.json.
inline constexpr std::string_view kMetaAdapterConfig = "adapter_config";
/// All that a reader needs besides the files.
struct Manifest : CheckpointContents {
  static constexpr int kVersion = 2;  ///< of written manifests; readers also take version 1
  /// The largest serialized manifest that readers take: docs/formats/checkpoint.md, "Manifest".
  static constexpr std::uint64_t kMaxBytes = 1 * kGiB;
  Json meta;  ///< the caller's: schedule, data state, random state, job file, model config

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
