// The commit point of a checkpoint: one small object that names every byte. See docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::checkpoint {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kI64, kI32, kU8, kBool };
std::string_view DTypeName(DType dtype);  ///< safetensors' names: "F32", "BF16", …
Result<DType> ParseDType(std::string_view name);
std::uint64_t DTypeBytes(DType dtype);

/// A run of consecutive elements (in C order) of a tensor, as one writer stored it.
struct Slice {
  std::string tensor;         ///< name within its group
  std::uint64_t begin = 0;    ///< first element
  std::uint64_t elements = 0;
  std::string file;           ///< key relative to the checkpoint
  std::uint64_t offset = 0;   ///< of its bytes in that file
};
struct TensorMeta {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t elements() const;
};
struct FileMeta {
  std::uint64_t size = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<std::uint32_t> chunk_crc32c;  ///< of each chunk_bytes of the file, the last may be short
};

/// Everything a reader needs. Tensor names carry their group as a prefix: "model/…", "optimizer/…".
struct Manifest {
  static constexpr int kVersion = 1;
  std::uint64_t step = 0;
  int ranks = 1;
  std::string created;  ///< ISO 8601
  std::map<std::string, TensorMeta> tensors;
  std::vector<Slice> slices;
  std::map<std::string, FileMeta> files;
  Json meta;  ///< the caller's: scheduler, data state, RNG, model config

  std::string Serialize() const;
  /// Fails with kCorrupt unless every tensor is covered exactly once by slices that lie inside their files.
  static Result<Manifest> Parse(std::string_view text, std::string_view name);
};

}  // namespace millrace::checkpoint
