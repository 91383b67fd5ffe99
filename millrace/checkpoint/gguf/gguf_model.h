// A GGUF file as a model of a checkpoint: its config.json, and how the bytes of its tensors become Hugging Face's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/tensor_meta.h"
#include "millrace/checkpoint/gguf/gguf_header.h"
#include "millrace/checkpoint/gguf/gguf_vocabulary.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// A tensor of the file. It is decoded by units, which follow each other in the file and in the tensor: a block, or a
/// head whose rows have another order in the file.
struct GgufPart {
  std::string name;  ///< Hugging Face's
  TensorMeta meta;   ///< of the decoded tensor
  GgmlType type = GgmlType::kF32;
  std::uint64_t offset = 0, stored_bytes = 0;  ///< in the file
  std::uint64_t head_rows = 0;                 ///< rows of a unit, if they are in llama.cpp's order; 0: they are not

  std::uint64_t unit_elements() const;
  std::uint64_t unit_bytes() const { return unit_elements() * DTypeBytes(meta.dtype); }
  std::uint64_t stored_unit_bytes() const { return unit_elements() / BlockElements(type) * BlockBytes(type); }
  /// Decodes whole units.
  void Decode(ByteSpan stored, MutableByteSpan elements) const;
  /// Returns the elements of a row, along the last dimension.
  std::uint64_t row_elements() const;
};

/// Moves the rows of one head from Hugging Face's order to llama.cpp's: row s·(rows/2) + j becomes row 2·j + s.
/// REQUIRES: `rows` is even.
std::uint64_t TurnedRow(std::uint64_t row, std::uint64_t rows);

struct GgufModel {
  std::string architecture;
  Json config;                          ///< config.json
  std::vector<GgufPart> parts;          ///< in the order of the file
  std::vector<std::string> transposed;  ///< names of parts that are the transposes of Hugging Face's matrices
  GgufTokenizer tokenizer;
  std::uint64_t header_bytes = 0;
};

/// Describes the model of a file. `config`: replaces what the metadata say. `rope_factors`: the values of
/// rope_freqs.weight, if the file has that tensor; not used with a config.
/// Errors: kUnsupported if the architecture or a feature of it is unknown; kCorrupt if metadata or tensors are missing.
Result<GgufModel> DescribeGgufModel(const GgufHeader& header, const std::optional<Json>& config,
                                    std::span<const float> rope_factors, std::string_view what);

/// Reads the header of the file at `location`. Blocks.
/// Errors: kNotFound if there is no such file; those of ParseGgufHeader.
struct ReadGguf {
  object::ObjectInfo info;
  GgufHeader header;
};
Result<ReadGguf> ReadGgufHeader(const object::ReadLocation& location, object::Call call);

/// Reads the header and rope_freqs.weight of the file at `location` and describes its model. Blocks.
/// Errors: those of ReadGgufHeader and DescribeGgufModel; kStale if the file changes meanwhile.
struct OpenedGguf {
  object::ObjectInfo info;
  GgufModel model;
};
Result<OpenedGguf> OpenGgufFile(const object::ReadLocation& location, const std::optional<Json>& config,
                                object::Call call);

}  // namespace millrace::checkpoint
