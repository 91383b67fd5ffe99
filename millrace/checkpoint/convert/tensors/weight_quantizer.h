// Quantizes one weight while its elements stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/engine/quantized/quantize.h"

namespace millrace::checkpoint {

/// Quantizes the elements of a matrix in C order, and passes their codes to a sink. Keeps the scales, which a file has
/// after the codes. One thread.
class WeightQuantizer {
 public:
  /// `meta` describes the weight: a matrix of F32, F16 or BF16.
  WeightQuantizer(engine::Quantization kind, const TensorMeta& meta) : kind_(kind), meta_(meta) {}

  /// Adds elements. Passes codes to `sink` as soon as their block or row is complete.
  /// Errors: those of `sink`; kInvalidArgument if an element is not finite.
  Status Add(ByteSpan elements, const ByteSink& sink);
  /// Passes the last codes to `sink`.
  /// REQUIRES: all elements were added.
  Status Finish(const ByteSink& sink);
  /// Returns the bytes of another part than the codes, and frees large parts. `part` is one of PartsOf(). Call it once
  /// for each part. REQUIRES: Finish() was called.
  std::string TakeBytes(const QuantizedPart& part);

 private:
  Status Encode(std::size_t elements, const ByteSink& sink);

  const engine::Quantization kind_;
  const TensorMeta meta_;
  std::vector<float> pending_;  ///< elements of an incomplete block or row
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  engine::QuantizedScales nested_;
};

}  // namespace millrace::checkpoint
