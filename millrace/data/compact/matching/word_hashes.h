// The words of a text as hashes, and runs of consecutive words. Near duplicates and held-out texts are found by runs.
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

/// Replaces `runs` by a hash for each run of `length` consecutive words, also for runs that occur repeatedly. Fewer
/// words are one run; no words have none. REQUIRES: length > 0.
void HashRuns(std::span<const std::uint64_t> words, std::size_t length, std::vector<std::uint64_t>& runs);

}  // namespace millrace::data
