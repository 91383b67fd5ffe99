// The commit point of a checkpoint: one small object that names every byte. See docs/formats/checkpoint.md.
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

/// A run of consecutive elements (in C order) of a box of a tensor, as one writer stored it: all of the box, or what
/// sharding of flat buffers left of it.
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
  /// Fails with kCorrupt on a negative dimension and where bytes() would not fit 63 bits; `name` is the tensor's.
  Status Check(std::string_view name) const;
  bool operator==(const TensorMeta&) const = default;
};
struct FileMeta {
  std::uint64_t size = 0;
  std::uint64_t chunk_bytes = 0;
  /// Of each chunk_bytes of the file, the last may be short. Empty where nothing is known (Hugging Face files).
  std::vector<std::uint32_t> chunk_crc32c;
  bool operator==(const FileMeta&) const = default;
};

/// The member of Manifest::meta that holds the model's Hugging Face config.json.
inline constexpr std::string_view kMetaModelConfig = "model_config";
/// The group of the model's weights; the names behind it are Hugging Face's.
inline constexpr std::string_view kModelGroup = "model/";
/// Small files that came with a model, such as its tokenizer's, are tensors of bytes in this group.
inline constexpr std::string_view kFilesGroup = "files/";

/// Who made a checkpoint. Any of it may be empty.
struct Provenance {
  std::string host, user;
  std::string program, version;                  ///< "millrace-train", "0.1.0"
  std::map<std::string, std::string> libraries;  ///< name to version: {"torch": "2.11.0"}
  bool operator==(const Provenance&) const = default;
};
/// This machine and user; the caller adds what it is.
Provenance LocalProvenance(std::string program, std::string version);

/// A checkpoint among others of one root.
struct CheckpointId {
  std::uint64_t step = 0;
  std::string attempt;
  auto operator<=>(const CheckpointId&) const = default;
};

/// Everything a reader needs. Tensor names carry their group as a prefix: "model/…", "optimizer/…".
struct Manifest {
  static constexpr int kVersion = 2;                    ///< that is written; 1 is read too
  static constexpr std::uint64_t kMaxBytes = 1 * kGiB;  ///< of the serialized form
  std::uint64_t step = 0;
  int ranks = 1;
  std::string attempt;  ///< which of several tries at this step; the folder of its files
  std::string created;  ///< ISO 8601
  Provenance written_by;
  std::optional<CheckpointId> parent;     ///< what the run went on from, or saved before
  std::map<std::string, double> metrics;  ///< {"loss": 2.31}: by which the best are kept; finite
  std::map<std::string, TensorMeta> tensors;
  std::vector<Slice> slices;
  std::map<std::string, FileMeta> files;
  Json meta;  ///< the caller's: schedule, data state, RNG, job file, model config

  CheckpointId id() const { return {step, attempt}; }
  std::uint64_t FileBytes() const;  ///< of all files

  /// In canonical order: equal manifests give equal bytes. Check() must hold.
  std::string Serialize() const;
  /// Fails with kCorrupt unless every tensor is covered exactly once by boxes, those by slices that lie inside their
  /// files, and the files' names stay inside the checkpoint. `name` names the manifest in messages.
  Status Check(std::string_view name) const;
  /// What one rank reports to rank 0, as a manifest of its own: checked for form, not for coverage.
  static Result<Manifest> ParsePart(std::string_view text, std::string_view name);
  /// Verifies the checksum, the form, then Check().
  static Result<Manifest> Parse(std::string_view text, std::string_view name);
};

}  // namespace millrace::checkpoint
