// The properties of a matrix product on a GPU that decide its speed, and the methods that can make the product.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::engine::ops {

/// The type of a matrix of a product.
enum class GpuNumber { kFloat, kTf32, kBfloat16, kHalf, kE4m3, kE5m2 };
/// "f32", "tf32", "bf16", "fp16", "e4m3", "e5m2"
std::string_view GpuNumberName(GpuNumber number);
std::optional<GpuNumber> ParseGpuNumber(std::string_view name);

/// The elements of an 8-bit matrix that share a scale.
enum class Fp8Grain {
  kTensor,   ///< all
  kLines,    ///< 128 of a line
  kSquares,  ///< 128 of 128 lines
};
/// "tensor", "lines", "squares"
std::string_view Fp8GrainName(Fp8Grain grain);
std::optional<Fp8Grain> ParseFp8Grain(std::string_view name);

/// The use of a product's result.
enum class ProductResult {
  kSet,          ///< it replaces c
  kSetWithBias,  ///< with a bias in each row
  kAdd,          ///< it is added to c
  kAddWithSums,  ///< and the rows of the left matrix are summed: for the gradients of a weight and its bias; on GPUs
};
/// "set", "set_with_bias", "add", "add_with_sums"
std::string_view ProductResultName(ProductResult result);
std::optional<ProductResult> ParseProductResult(std::string_view name);

/// A matrix in memory: lines of dense elements, `stride` elements apart.
struct GpuOperand {
  GpuNumber number = GpuNumber::kFloat;
  Fp8Grain grain = Fp8Grain::kTensor;  ///< of 8-bit ones
  bool transposed = false;             ///< the lines are columns
  std::int64_t stride = 0;
  auto operator<=>(const GpuOperand&) const = default;
};
/// A product [rows, inner] · [inner, columns] on a GPU. The rows of the result are dense. All memory begins at
/// multiples of 16 bytes.
struct GpuProduct {
  std::int64_t rows = 0, columns = 0, inner = 0;
  GpuOperand left, right, out;
  ProductResult result = ProductResult::kSet;
  auto operator<=>(const GpuProduct&) const = default;
};

/// An algorithm that makes a product: cuBLAS's own description (cublasLtMatmulAlgo_t). For one version of cuBLAS and
/// one kind of GPU.
struct GpuAlgorithm {
  std::array<std::uint64_t, 8> words{};
  auto operator<=>(const GpuAlgorithm&) const = default;
  /// 128 hexadecimal digits.
  std::string ToText() const;
  static std::optional<GpuAlgorithm> FromText(std::string_view text);
};

}  // namespace millrace::engine::ops
