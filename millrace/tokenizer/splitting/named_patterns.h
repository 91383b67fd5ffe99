// The regular expressions that files of vocabularies name patterns by.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/tokenizer/splitting/splitter.h"

namespace millrace::tokenizer {

/// Stands among regular expressions for Hugging Face's step that makes every number a word.
inline constexpr std::string_view kEachDigit = "Digits";

/// Which pattern splits a text as these do, one after another; nothing if none is known.
std::optional<SplitPattern> PatternOf(std::span<const std::string> regexes);

}  // namespace millrace::tokenizer
