// Replacements in decoded text.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace millrace::tokenizer {

/// Returns `text` with each `from` replaced by `to`, from the left. REQUIRES: `from` is not empty.
inline std::string ReplaceAll(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// Hugging Face's clean-up of English, which is applied to each token by itself.
inline std::string CleanUpSpaces(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (auto [from, to] : kChanges) text = ReplaceAll(std::move(text), from, to);
  return text;
}

}  // namespace millrace::tokenizer
