// The ways in which the frozen weights of a model are stored in fewer bits.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::engine {

enum class Quantization {
  kNf4,   ///< 4-bit NormalFloat in blocks of 64, with double quantization (Dettmers et al. 2023, "QLoRA")
  kInt8,  ///< 8-bit integers, with one scale a row (Dettmers et al. 2022, "LLM.int8()")
  kFp8,   ///< 8-bit floating-point numbers (E4M3), with one scale a row, as vLLM's and llm-compressor's FP8_DYNAMIC
};

/// Returns the bits an element takes, with its share of scales of large matrices.
double BitsPerElement(Quantization kind);
/// Returns "nf4", "int8" or "fp8", the words of job files and commands.
std::string_view QuantizationName(Quantization kind);
std::optional<Quantization> ParseQuantization(std::string_view name);
inline constexpr std::string_view kQuantizationNames = "nf4, int8 or fp8";  ///< for messages

}  // namespace millrace::engine
