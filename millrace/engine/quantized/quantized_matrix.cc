#include "millrace/engine/quantized/quantized_matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/base/hash/random.h"
#include "millrace/engine/quantized/code_maps.h"
#include "millrace/engine/quantized/quantize.h"

namespace millrace::engine {

double BitsPerElement(Quantization kind) {
  constexpr double kNf4Scale = (8.0 + 32.0 / kScaleBlock) / kNf4Block;
  return kind == Quantization::kNf4 ? 4 + kNf4Scale : 8;
}

std::string_view QuantizationName(Quantization kind) {
  switch (kind) {
    case Quantization::kNf4:
      return "nf4";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kFp8:
      return "fp8";
  }
  return "";
}

std::optional<Quantization> ParseQuantization(std::string_view name) {
  for (const Quantization kind : {Quantization::kNf4, Quantization::kInt8, Quantization::kFp8}) {
    if (QuantizationName(kind) == name) return kind;
  }
  return std::nullopt;
}

QuantizedMatrix::QuantizedMatrix(std::int64_t rows, std::int64_t columns, Nf4 nf4, std::shared_ptr<const void> owner)
    : rows_(rows),
      columns_(columns),
      kind_(Quantization::kNf4),
      nf4_(std::move(nf4)),
      codes_(nf4_.codes),
      owner_(std::move(owner)) {
  for (std::size_t byte = 0; byte < 256; ++byte) pairs_.push_back({nf4_.map[byte >> 4], nf4_.map[byte & 15]});
}

QuantizedMatrix::QuantizedMatrix(std::int64_t rows, std::int64_t columns, Int8 int8, std::shared_ptr<const void> owner)
    : rows_(rows), columns_(columns), kind_(Quantization::kInt8), codes_(int8.codes), owner_(std::move(owner)) {
  for (const float scale : int8.scales) factors_.push_back(scale * (1.0F / 127));
}

QuantizedMatrix::QuantizedMatrix(std::int64_t rows, std::int64_t columns, Fp8 fp8, std::shared_ptr<const void> owner)
    : rows_(rows),
      columns_(columns),
      kind_(Quantization::kFp8),
      codes_(fp8.codes),
      owner_(std::move(owner)),
      factors_(std::move(fp8.scales)) {}

float QuantizedMatrix::Nf4Scale(std::int64_t block) const {
  const auto number = static_cast<std::size_t>(block);
  if (!nf4_.nested) {
    float scale = 0;
    std::memcpy(&scale, nf4_.scales.data() + number * sizeof(float), sizeof(float));
    return scale;
  }
  return nf4_.scale_map[nf4_.scales[number]] * nf4_.scale_scales[number / static_cast<std::size_t>(nf4_.scale_block)] +
         nf4_.scale_offset;
}

std::span<const float> QuantizedMatrix::block_scales() const {
  std::call_once(block_scales_made_, [this] {
    const std::int64_t blocks = (rows_ * columns_ + nf4_.block - 1) / nf4_.block;
    block_scales_.resize(static_cast<std::size_t>(blocks));
    for (std::int64_t block = 0; block < blocks; ++block) {
      block_scales_[static_cast<std::size_t>(block)] = Nf4Scale(block);
    }
  });
  return block_scales_;
}

void QuantizedMatrix::DequantizeNf4(std::int64_t first, std::int64_t count, float* out) const {
  for (std::int64_t at = first; at < first + count;) {
    const std::int64_t block = at / nf4_.block;
    const std::int64_t end = std::min(first + count, (block + 1) * nf4_.block);
    const float scale = Nf4Scale(block);
    if (at % 2 != 0) {
      *out++ = pairs_[nf4_.codes[static_cast<std::size_t>(at / 2)]].second * scale;
      ++at;
    }
    const std::uint8_t* codes = nf4_.codes.data() + at / 2;
    const std::int64_t bytes = (end - at) / 2;
    for (std::int64_t i = 0; i < bytes; ++i) {
      const Pair& pair = pairs_[codes[i]];
      out[2 * i] = pair.first * scale;
      out[2 * i + 1] = pair.second * scale;
    }
    out += 2 * bytes;
    at += 2 * bytes;
    if (at < end) {
      *out++ = pairs_[codes[bytes]].first * scale;
      ++at;
    }
  }
}

void QuantizedMatrix::Dequantize(const MatrixBox& box, float* out, std::int64_t stride) const {
  for (std::int64_t row = box.row; row < box.row + box.rows; ++row, out += stride) {
    const std::int64_t first = row * columns_ + box.column;
    if (kind_ == Quantization::kNf4) {
      DequantizeNf4(first, box.columns, out);
      continue;
    }
    DequantizeBytes(row, first, box.columns, out);
  }
}

void QuantizedMatrix::DequantizeBytes(std::int64_t row, std::int64_t first, std::int64_t count, float* out) const {
  const float scale = factors_[static_cast<std::size_t>(row)];
  const std::uint8_t* codes = codes_.data() + first;
  if (kind_ == Quantization::kInt8) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
    return;
  }
  const std::array<float, 256>& map = E4m3Map();
  for (std::int64_t i = 0; i < count; ++i) out[i] = map[codes[i]] * scale;
}

std::uint64_t Fingerprint(const QuantizedWeights& weights) {
  // As many bytes of each matrix as the fingerprint of other weights has elements of each
  // (engine/config/frozen_sample.h).
  constexpr std::uint64_t kSampledBytes = 64;
  std::uint64_t sum = 0;
  for (const auto& [name, matrix] : weights) {
    std::uint64_t key = static_cast<std::uint64_t>(matrix->kind());
    for (const char c : name) key = Mix64(key ^ static_cast<std::uint8_t>(c));
    for (std::uint64_t i = 0; i < kSampledBytes; ++i) {
      const std::uint64_t draw = Mix64(key + i);
      sum += Mix64(draw ^ matrix->codes()[draw % matrix->codes().size()]);
    }
  }
  return sum;
}

void QuantizedRows::Append(std::shared_ptr<const QuantizedMatrix> matrix, const MatrixBox& box) {
  rows_ += box.rows;
  parts_.push_back({std::move(matrix), box});
}

QuantizedRows QuantizedRows::Rows(std::int64_t first, std::int64_t count) const {
  QuantizedRows rows;
  std::int64_t begin = 0;  // of the part
  for (const Part& part : parts_) {
    const std::int64_t from = std::max(first, begin), to = std::min(first + count, begin + part.box.rows);
    if (from < to) {
      MatrixBox box = part.box;
      box.row += from - begin;
      box.rows = to - from;
      rows.Append(part.matrix, box);
    }
    begin += part.box.rows;
  }
  return rows;
}

void QuantizedRows::Dequantize(std::int64_t first, std::int64_t count, float* out) const {
  std::int64_t before = 0;
  for (const Part& part : parts_) {
    const std::int64_t begin = std::max(first, before), end = std::min(first + count, before + part.box.rows);
    if (begin < end) {
      MatrixBox box = part.box;
      box.row += begin - before;
      box.rows = end - begin;
      part.matrix->Dequantize(box, out + (begin - first) * columns(), columns());
    }
    before += part.box.rows;
  }
}

}  // namespace millrace::engine
