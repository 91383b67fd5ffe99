// How the frozen weights of a model are stored in fewer bits.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::engine {

enum class Quantization {
  kNf4,   ///< 4-bit NormalFloat in blocks of 64, with double quantization (Dettmers et al. 2023, "QLoRA")
  kInt8,  ///< 8-bit integers, with one scale a row (Dettmers et al. 2022, "LLM.int8()")
};

/// Returns the bits an element takes, with its share of scales of large matrices.
double BitsPerElement(Quantization kind);
/// Returns "nf4" or "int8", the words of job files and commands.
std::string_view QuantizationName(Quantization kind);
std::optional<Quantization> ParseQuantization(std::string_view name);

}  // namespace millrace::engine
