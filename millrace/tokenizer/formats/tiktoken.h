// tiktoken's files, which list tokens by rank.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Returns whether the first line is one of a file of ranks: base64, a space, a number.
bool LooksLikeTiktoken(std::string_view text);

/// Loads lines of "base64 rank". `pattern` and `name` select how text is split, as in LoadOptions. Special tokens, of
/// which the file knows nothing, are those of the vocabulary with this number of ranks; another vocabulary has
/// none.
Result<std::shared_ptr<const Tokenizer>> LoadTiktoken(std::string_view text, std::string_view name,
                                                      std::string_view pattern, std::string fingerprint);

}  // namespace millrace::tokenizer
