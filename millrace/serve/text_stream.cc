#include "millrace/serve/text_stream.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::size_t kContext = 6;                        // tokens of the prompt that decide about what follows
constexpr std::size_t kMaxWaiting = 8;

/// Bytes of the character that starts with `lead`; 0 if none does.
std::size_t CharacterLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

std::size_t UnfinishedTail(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    return CharacterLength(byte) > back ? back : 0;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  if (IsValidUtf8(text)) return std::string(text);
  std::string valid;
  while (!text.empty()) {
    std::size_t length = CharacterLength(static_cast<unsigned char>(text.front()));
    if (length > 0 && length <= text.size() && IsValidUtf8(text.substr(0, length))) {
      valid += text.substr(0, length);
      text.remove_prefix(length);
    } else {
      valid += kReplacement;
      text.remove_prefix(1);
    }
  }
  return valid;
}

Detokenizer::Detokenizer(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> prompt)
    : tokenizer_(tokenizer) {
  auto tail = prompt.last(std::min(kContext, prompt.size()));
  window_.assign(tail.begin(), tail.end());
  emitted_ = window_.size();
}

Result<std::string> Detokenizer::Add(TokenId token) {
  window_.push_back(token);
  return Take(window_.size() - emitted_ >= kMaxWaiting);
}

Result<std::string> Detokenizer::Finish() { return emitted_ == window_.size() ? std::string() : Take(true); }

Result<std::string> Detokenizer::Take(bool all) {
  std::string before = MR_TRY(tokenizer_.Decode(std::span(window_).first(emitted_)));
  std::string text = MR_TRY(tokenizer_.Decode(window_));
  text.erase(0, text.starts_with(before) ? before.size() : std::min(before.size(), text.size()));
  if (!all && (text.empty() || text.ends_with(kReplacement) || UnfinishedTail(text) > 0)) return std::string();
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(emitted_));
  emitted_ = window_.size();
  return ReplaceInvalidUtf8(text);
}

std::string StopMatcher::Add(std::string_view text) {
  if (stopped_) return {};
  pending_ += text;
  std::size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, pending_.find(stop));
  std::string out;
  if (found != std::string::npos) {
    stopped_ = true;
    out = pending_.substr(0, found);
    pending_.clear();
  } else {
    out = pending_.substr(0, pending_.size() - HeldBack());
    pending_.erase(0, out.size());
  }
  return out;
}

/// The longest end of the pending text that a stop string begins with.
std::size_t StopMatcher::HeldBack() const {
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, pending_.size()); length > held; --length) {
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, length))) held = length;
    }
  }
  return held;
}

std::string StopMatcher::Finish() { return std::exchange(pending_, {}); }

}  // namespace millrace::serve
