// Quantized matrices for tests and benchmarks, with their codes in memory of their own.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/engine/quantized/code_maps.h"
#include "millrace/engine/quantized/quantize.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::testing {

/// Returns the codes of a float32 matrix: NF4 with double quantization.
inline std::shared_ptr<const QuantizedMatrix> ToNf4(const at::Tensor& matrix) {
  struct Memory {
    std::vector<std::uint8_t> codes;
    QuantizedScales scales;
  };
  const at::Tensor dense = matrix.contiguous();
  const std::span<const float> elements(dense.data_ptr<float>(), static_cast<std::size_t>(dense.numel()));
  auto memory = std::make_shared<Memory>();
  memory->codes.resize((elements.size() + 1) / 2);
  std::vector<float> scales((elements.size() + kNf4Block - 1) / kNf4Block);
  QuantizeNf4(elements, memory->codes, scales);
  memory->scales = QuantizeScales(scales);
  return std::make_shared<const QuantizedMatrix>(
      dense.size(0), dense.size(1),
      QuantizedMatrix::Nf4{.codes = memory->codes,
                           .map = kNf4Map,
                           .scales = memory->scales.codes,
                           .scale_map = {DynamicMap().begin(), DynamicMap().end()},
                           .scale_scales = memory->scales.block_scales,
                           .scale_offset = memory->scales.offset},
      memory);
}

/// Returns NF4 codes of random numbers up to 0.05, for measuring speed. Thousands of times as fast as quantizing.
inline std::shared_ptr<const QuantizedMatrix> RandomNf4(std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  struct Memory {
    std::vector<std::uint8_t> codes, scales;
  };
  auto memory = std::make_shared<Memory>();
  memory->codes.resize((static_cast<std::size_t>(rows * columns) + 1) / 2);
  for (std::size_t i = 0; i < memory->codes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = Mix64(key + i);
    std::memcpy(memory->codes.data() + i, &word, std::min(sizeof(word), memory->codes.size() - i));
  }
  const std::size_t blocks = (static_cast<std::size_t>(rows * columns) + kNf4Block - 1) / kNf4Block;
  memory->scales.resize(blocks);
  constexpr float kScale = 0.05F;
  return std::make_shared<const QuantizedMatrix>(
      rows, columns,
      QuantizedMatrix::Nf4{.codes = memory->codes,
                           .map = kNf4Map,
                           .scales = memory->scales,
                           .scale_map = {DynamicMap().begin(), DynamicMap().end()},
                           .scale_scales = std::vector<float>((blocks + kScaleBlock - 1) / kScaleBlock),
                           .scale_offset = kScale},
      memory);
}

}  // namespace millrace::engine::testing
