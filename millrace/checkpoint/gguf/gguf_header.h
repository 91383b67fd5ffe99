// The header of a GGUF file: metadata, and where the tensors are. docs/formats/gguf.md says what of it Millrace uses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/gguf/ggml_type.h"

namespace millrace::checkpoint {

/// Headers are at most so long. A guess: those with vocabularies of 256,000 tokens have about 15 MiB.
inline constexpr std::uint64_t kMaxGgufHeader = 64 * kMiB;

/// A value of the metadata. Numbers keep what they are: an integer is 64 bits wide, a float is a double. Arrays of
/// arrays are left out.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;  ///< in C order: the last dimension is contiguous (the file has them reversed)
  std::uint64_t offset = 0;         ///< of the first byte in the file
  std::uint64_t bytes() const;
};

struct GgufHeader {
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;
  std::uint64_t bytes = 0;  ///< of the header, in front of the padding and the data

  /// Returns a member of the metadata, or null if it is absent or has another type.
  template <class T>
  const T* Find(std::string_view key) const {
    const auto found = metadata.find(std::string(key));
    return found == metadata.end() ? nullptr : std::get_if<T>(&found->second);
  }
};

/// Parses the beginning of a file of `file_bytes` bytes. Returns nothing if the header is longer than `bytes`. Checks
/// that the tensors lie inside of the file, and counts and lengths before memory is allocated. `what` names the file.
/// Errors: kCorrupt on other bytes; kUnsupported on other versions than 2 and 3, big-endian files, and other types of
/// tensors.
Result<std::optional<GgufHeader>> ParseGgufHeader(std::string_view bytes, std::uint64_t file_bytes,
                                                  std::string_view what);

/// Writes the header of a file of version 3. Integers of the metadata are written as u32, floats as f32, arrays of
/// integers as i32. Sets the offsets of the tensors, which follow each other in their order. Pads the header to the
/// alignment of 32.
std::string MakeGgufHeader(const std::map<std::string, GgufValue>& metadata, std::vector<GgufTensor>& tensors);

/// Returns the padding behind `bytes` of tensor data.
std::uint64_t GgufPadding(std::uint64_t bytes);

}  // namespace millrace::checkpoint
