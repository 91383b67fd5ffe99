// Finds the pattern that a file's regular expressions stand for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/tokenizer/splitting/splitter.h"

namespace millrace::tokenizer {

/// Among regular expressions, stands for Hugging Face's pre-tokenizer Digits, which makes every number a word.
inline constexpr std::string_view kEachDigit = "Digits";

/// Returns the pattern that splits a text as these regular expressions do, one after another. Nothing if none is known.
std::optional<SplitPattern> PatternOf(std::span<const std::string> regexes);

}  // namespace millrace::tokenizer
