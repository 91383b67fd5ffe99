// Hashes the words of a text, and runs of consecutive words. Texts that share many runs are near duplicates, or copies
// of held-out texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace millrace::data {

/// Replaces `words` by a hash for each word of the text, in their order. A word is a run of letters and digits; the
/// letters A to Z count as a to z. Each character of Chinese and Japanese is a word, because these texts have no
/// spaces. White space, punctuation and symbols only separate words. REQUIRES: the text is UTF-8.
void HashWords(std::string_view text, std::vector<std::uint64_t>& words);

/// Replaces `runs` by one hash for each run of `length` consecutive words, also if runs repeat. A text of fewer words
/// has one run, of all its words. A text without words has none. REQUIRES: length > 0.
void HashRuns(std::span<const std::uint64_t> words, std::size_t length, std::vector<std::uint64_t>& runs);

}  // namespace millrace::data
