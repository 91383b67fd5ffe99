// Quantizes one weight while its elements stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/quantized/quantized_names.h"
#include "millrace/checkpoint/convert/stream/tensor_stream.h"
#include "millrace/engine/quantized/quantize.h"

namespace millrace::checkpoint {

/// Takes the elements of a matrix in C order, and passes their codes on. Keeps the scales, which belong behind them.
/// One thread.
class WeightQuantizer {
 public:
  /// `meta`: of the weight; a matrix of F32, F16 or BF16.
  WeightQuantizer(engine::Quantization kind, const TensorMeta& meta) : kind_(kind), meta_(meta) {}

  /// Takes further elements. Codes go to `sink` as soon as blocks are whole.
  /// Errors: those of `sink`; kInvalidArgument if an element is not finite.
  Status Add(ByteSpan elements, const ByteSink& sink);
  /// Passes the last codes on.
  /// REQUIRES: all elements were added.
  Status Finish(const ByteSink& sink);
  /// Returns the bytes of a part other than the codes, and forgets those that are large. `part` is one of PartsOf();
  /// each is asked for once. REQUIRES: Finish() was called.
  std::string TakeBytes(const QuantizedPart& part);

 private:
  Status Encode(std::size_t elements, const ByteSink& sink);

  const engine::Quantization kind_;
  const TensorMeta meta_;
  std::vector<float> pending_;  ///< elements whose block or row is not whole
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  engine::QuantizedScales nested_;
};

}  // namespace millrace::checkpoint
