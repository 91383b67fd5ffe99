// Quantized matrices for tests and benchmarks, with their codes in memory of their own.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/engine/config/model_config.h"
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

/// Returns the codes of a float32 matrix: E4M3.
inline std::shared_ptr<const QuantizedMatrix> ToFp8(const at::Tensor& matrix) {
  const at::Tensor dense = matrix.contiguous();
  const auto rows = static_cast<std::size_t>(dense.size(0)), columns = static_cast<std::size_t>(dense.size(1));
  const auto codes = std::make_shared<std::vector<std::uint8_t>>(rows * columns);
  std::vector<float> scales;
  for (std::size_t row = 0; row < rows; ++row) {
    scales.push_back(QuantizeFp8({dense.data_ptr<float>() + row * columns, columns},
                                 std::span(*codes).subspan(row * columns, columns)));
  }
  return std::make_shared<const QuantizedMatrix>(
      dense.size(0), dense.size(1), QuantizedMatrix::Fp8{.codes = *codes, .scales = std::move(scales)}, codes);
}

/// Returns random bytes, of the generator `key`.
inline std::vector<std::uint8_t> RandomCodes(std::int64_t count, std::uint64_t key) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < codes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = Mix64(key + i);
    std::memcpy(codes.data() + i, &word, std::min(sizeof(word), codes.size() - i));
  }
  return codes;
}

/// Return codes of random numbers up to 0.05, for measuring speed. Thousands of times as fast as quantizing.
inline std::shared_ptr<const QuantizedMatrix> RandomNf4(std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  struct Memory {
    std::vector<std::uint8_t> codes, scales;
  };
  auto memory = std::make_shared<Memory>();
  memory->codes = RandomCodes((rows * columns + 1) / 2, key);
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
inline std::shared_ptr<const QuantizedMatrix> RandomInt8(std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  const auto codes = std::make_shared<const std::vector<std::uint8_t>>(RandomCodes(rows * columns, key));
  constexpr float kScale = 0.05F;
  return std::make_shared<const QuantizedMatrix>(
      rows, columns,
      QuantizedMatrix::Int8{.codes = *codes, .scales = std::vector<float>(static_cast<std::size_t>(rows), kScale)},
      codes);
}

inline std::shared_ptr<const QuantizedMatrix> RandomFp8(std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  auto codes = std::make_shared<std::vector<std::uint8_t>>(RandomCodes(rows * columns, key));
  for (std::uint8_t& code : *codes) code &= 0xbf;  // below 2
  constexpr float kScale = 0.05F / 2;
  return std::make_shared<const QuantizedMatrix>(
      rows, columns,
      QuantizedMatrix::Fp8{.codes = *codes, .scales = std::vector<float>(static_cast<std::size_t>(rows), kScale)},
      codes);
}

/// Returns random codes for the matrices of a model's blocks: without the time and memory of a model to quantize.
inline std::shared_ptr<const QuantizedWeights> RandomBlocks(const ModelConfig& config, Quantization kind) {
  const auto random = kind == Quantization::kNf4 ? RandomNf4 : kind == Quantization::kInt8 ? RandomInt8 : RandomFp8;
  auto weights = std::make_shared<QuantizedWeights>();
  const plan::ModelShape shape = config.Shape();
  for (std::int64_t block = 0; block < shape.num_layers; ++block) {
    for (const plan::Layer& layer : shape.block) {
      if (layer.kind != plan::LayerKind::kColumns && layer.kind != plan::LayerKind::kRows) continue;
      const auto add = [&](const std::string& name, std::int64_t outputs) {
        weights->emplace(fmt::format(fmt::runtime(name), block) + ".weight",
                         random(outputs, layer.in, weights->size() << 40));
      };
      if (layer.output_names.empty()) add(layer.name, std::accumulate(layer.outputs.begin(), layer.outputs.end(), 0L));
      for (std::size_t i = 0; i < layer.output_names.size(); ++i) add(layer.output_names[i], layer.outputs[i]);
    }
  }
  return weights;
}

}  // namespace millrace::engine::testing
