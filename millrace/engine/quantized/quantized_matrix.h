// Matrices of codes, and how their elements are computed from them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "millrace/engine/quantized/quantization.h"

namespace millrace::engine {

/// Elements [row …, column …] of a matrix.
struct MatrixBox {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
};

/// The codes and scales of a matrix [rows, columns]. Immutable, so thread-safe.
class QuantizedMatrix {
 public:
  struct Nf4 {
    std::span<const std::uint8_t> codes;  ///< borrowed; two elements a byte, the first in the high half
    std::array<float, 16> map;            ///< what a code stands for
    int block = 64;                       ///< elements that share a scale; even
    /// Borrowed. A byte for each block: its scale is map[byte] · scale_scales[number / scale_block] + scale_offset.
    /// Without double quantization, a float32 for each block, not aligned.
    std::span<const std::uint8_t> scales;
    bool nested = true;
    std::vector<float> scale_map = {};  ///< 256 numbers
    std::vector<float> scale_scales = {};
    int scale_block = 256;
    float scale_offset = 0;
  };
  struct Int8 {
    std::span<const std::uint8_t> codes;  ///< borrowed; a signed byte for each element
    std::vector<float> scales;            ///< by row; an element is code · scale / 127
  };
  struct Fp8 {
    std::span<const std::uint8_t> codes;  ///< borrowed; E4M3, a byte for each element
    std::vector<float> scales;            ///< by row; an element is E4m3Map()[code] · scale
  };
  /// `owner` keeps the borrowed memory.
  /// REQUIRES: the spans have the lengths that the sizes say.
  QuantizedMatrix(std::int64_t rows, std::int64_t columns, Nf4 nf4, std::shared_ptr<const void> owner);
  QuantizedMatrix(std::int64_t rows, std::int64_t columns, Int8 int8, std::shared_ptr<const void> owner);
  QuantizedMatrix(std::int64_t rows, std::int64_t columns, Fp8 fp8, std::shared_ptr<const void> owner);

  Quantization kind() const { return kind_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::span<const std::uint8_t> codes() const { return codes_; }
  const Nf4& nf4() const { return nf4_; }  ///< REQUIRES: kind() is kNf4

  /// Returns the scales as numbers: what map[code] of an element in each block is multiplied by. The first call
  /// computes them: half a bit an element. Thread-safe. REQUIRES: kind() is kNf4.
  std::span<const float> block_scales() const;
  /// Returns what the codes of each row, or their numbers, are multiplied by. REQUIRES: kind() is not kNf4.
  std::span<const float> row_factors() const { return factors_; }

  /// The form of the matrix on a GPU.
  class DeviceForm {
   public:
    virtual ~DeviceForm() = default;
  };
  /// Returns it. The first call makes it with `make`, which returns a std::unique_ptr. Thread-safe.
  template <class Make>
  const DeviceForm& OnDevice(Make&& make) const {
    std::call_once(device_form_made_, [&] { device_form_ = make(); });
    return *device_form_;
  }

  /// Writes a box of elements, `stride` floats from one row to the next. One thread.
  void Dequantize(const MatrixBox& box, float* out, std::int64_t stride) const;

 private:
  void DequantizeBytes(std::int64_t row, std::int64_t first, std::int64_t count, float* out) const;
  void DequantizeNf4(std::int64_t first, std::int64_t count, float* out) const;
  float Nf4Scale(std::int64_t block) const;

  std::int64_t rows_, columns_;
  Quantization kind_;
  Nf4 nf4_;
  std::span<const std::uint8_t> codes_;
  std::shared_ptr<const void> owner_;
  struct Pair {
    float first, second;
  };
  std::vector<Pair> pairs_;     ///< of kNf4: what a byte stands for, without the scale
  std::vector<float> factors_;  ///< of the other kinds
  mutable std::once_flag block_scales_made_;
  mutable std::vector<float> block_scales_;
  mutable std::once_flag device_form_made_;
  mutable std::unique_ptr<const DeviceForm> device_form_;
};

/// The quantized weights of a model, by parameter: "model.layers.0.mlp.up_proj.weight". Matrices are [out, in], also
/// those that Hugging Face's files of other models hold transposed (GPT-2's Conv1D).
using QuantizedWeights = std::map<std::string, std::shared_ptr<const QuantizedMatrix>>;

/// Returns a fingerprint of the weights: a hash of some codes of each.
std::uint64_t Fingerprint(const QuantizedWeights& weights);

/// Some rows of a layer's weight: boxes of quantized matrices, one on the other.
class QuantizedRows {
 public:
  /// REQUIRES: all boxes are equally wide.
  void Append(std::shared_ptr<const QuantizedMatrix> matrix, const MatrixBox& box);
  bool empty() const { return parts_.empty(); }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return empty() ? 0 : parts_.front().box.columns; }
  /// Returns rows `first` …. REQUIRES: first + count <= rows().
  QuantizedRows Rows(std::int64_t first, std::int64_t count) const;
  /// Calls use(matrix, box) for each box, in the order of rows.
  template <class Use>
  void ForEachBox(Use&& use) const {
    for (const Part& part : parts_) use(*part.matrix, part.box);
  }
  /// Writes rows `first` … as a dense matrix [count, columns()]. One thread.
  void Dequantize(std::int64_t first, std::int64_t count, float* out) const;

 private:
  struct Part {
    std::shared_ptr<const QuantizedMatrix> matrix;
    MatrixBox box;
  };
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
};

}  // namespace millrace::engine
