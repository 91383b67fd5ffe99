// The commit record of a checkpoint: one small object that names every byte. See docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/box.h"

namespace millrace::checkpoint {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kU8,
  kBool,
  kF64,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kF8E4M3,
  kF8E5M2,
};
inline constexpr int kDTypes = 15;
std::string_view DTypeName(DType dtype);  ///< safetensors' names: "F32", "BF16", …
Result<DType> ParseDType(std::string_view name);
std::uint64_t DTypeBytes(DType dtype);

/// A run of consecutive elements (in C order) of a box of a tensor, as one rank stored it. The run is all of the box,
/// or a part of it if flat buffers were sharded.
struct Slice {
  std::string tensor;       ///< name within its group
  std::uint64_t begin = 0;  ///< first element, counted within the box
  std::uint64_t elements = 0;
  std::string file;          ///< key relative to the checkpoint
  std::uint64_t offset = 0;  ///< of its bytes in that file
  Box box;                   ///< of the tensor
  bool operator==(const Slice&) const = default;
};
struct TensorMeta {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * DTypeBytes(dtype); }
  /// Fails with kCorrupt if a dimension is negative or if bytes() does not fit 63 bits. `name` is the tensor's.
  Status Check(std::string_view name) const;
  bool operator==(const TensorMeta&) const = default;
};
struct FileMeta {
  std::uint64_t size = 0;
  std::uint64_t chunk_bytes = 0;
  /// The CRC-32C of each chunk of chunk_bytes; the last chunk may be short. Empty if unknown (Hugging Face files).
  std::vector<std::uint32_t> chunk_crc32c;
  bool operator==(const FileMeta&) const = default;
};

/// The member of Manifest::meta that holds the model's Hugging Face config.json.
inline constexpr std::string_view kMetaModelConfig = "model_config";
/// The group of the model's weights; the names behind it are Hugging Face's.
inline constexpr std::string_view kModelGroup = "model/";
/// Small files that came with a model, such as its tokenizer's, are tensors of bytes in this group.
inline constexpr std::string_view kFilesGroup = "files/";

/// Who made a checkpoint. Any member may be empty.
struct Provenance {
  std::string host, user;
  std::string program, version;                  ///< "millrace-train", "0.1.0"
  std::map<std::string, std::string> libraries;  ///< name to version: {"torch": "2.11.0"}
  bool operator==(const Provenance&) const = default;
};
/// Returns the provenance of this process: host and user of this machine, and the given program and version.
Provenance LocalProvenance(std::string program, std::string version);

/// Identifies a checkpoint below one root.
struct CheckpointId {
  std::uint64_t step = 0;
  std::string attempt;
  auto operator<=>(const CheckpointId&) const = default;
};

/// Everything a reader needs. Tensor names carry their group as a prefix: "model/…", "optimizer/…".
struct Manifest {
  static constexpr int kVersion = 2;                    ///< the version that is written; version 1 is read too
  static constexpr std::uint64_t kMaxBytes = 1 * kGiB;  ///< of the serialized form
  std::uint64_t step = 0;
  int ranks = 1;
  std::string attempt;  ///< tells several attempts at this step apart; the folder of the files
  std::string created;  ///< ISO 8601
  Provenance written_by;
  std::optional<CheckpointId> parent;     ///< the checkpoint that the run resumed from, or saved before
  std::map<std::string, double> metrics;  ///< such as {"loss": 2.31}: retention keeps the best by them; finite
  std::map<std::string, TensorMeta> tensors;
  std::vector<Slice> slices;
  std::map<std::string, FileMeta> files;
  Json meta;  ///< the caller's: schedule, data state, RNG, job file, model config

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
