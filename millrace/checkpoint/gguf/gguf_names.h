// Names of tensors in GGUF files, and Hugging Face's names of the same tensors. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::checkpoint {

/// The architectures that Millrace reads and writes: values of general.architecture, and of config.json's model_type.
inline constexpr std::string_view kGgufLlama = "llama", kGgufQwen2 = "qwen2", kGgufQwen3 = "qwen3", kGgufGpt2 = "gpt2";
/// Returns whether it is one of them.
bool IsGgufArchitecture(std::string_view architecture);

/// Returns Hugging Face's name of a tensor, or nothing if models of that architecture and number of blocks have no such
/// tensor.
std::optional<std::string> HuggingFaceNameOf(std::string_view architecture, std::string_view gguf_name,
                                             std::int64_t blocks);
/// The reverse.
std::optional<std::string> GgufNameOf(std::string_view architecture, std::string_view name, std::int64_t blocks);

/// Returns whether llama.cpp has the rows of this weight or bias in another order: those of queries and keys of Llama.
/// Its RoPE turns neighbouring rows of a head, and Hugging Face's turns row i and row i + half.
bool HasTurnedRows(std::string_view architecture, std::string_view name);
/// Returns whether the heads of that tensor are those of keys.
bool IsOfKeys(std::string_view name);
/// Returns whether Hugging Face stores the transpose of what GGUF stores: linear layers of GPT-2.
bool IsStoredTransposed(std::string_view architecture, std::string_view name);

}  // namespace millrace::checkpoint
