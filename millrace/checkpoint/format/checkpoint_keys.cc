#include "millrace/checkpoint/format/checkpoint_keys.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kManifestSuffix = ".json";
constexpr std::string_view kHoldPart = ".hold-", kGoingPart = ".going-";
constexpr std::size_t kAttemptDigits = 16;

bool IsAttempt(std::string_view text) {
  return text.size() == kAttemptDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

CheckpointKeys::CheckpointKeys(std::string_view root) : root_(root) {
  while (root_.ends_with('/')) root_.pop_back();
  if (!root_.empty()) root_ += '/';
}

std::string CheckpointKeys::StepName(std::uint64_t step) const { return fmt::format("{}{:08}", StepsPrefix(), step); }

std::optional<std::uint64_t> CheckpointKeys::ParseStep(std::string_view digits) const {
  std::uint64_t step = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  bool canonical = error == std::errc() && end == digits.data() + digits.size() && step <= kMaxStep &&
                   digits == fmt::format("{:08}", step);
  return canonical ? std::optional(step) : std::nullopt;
}

std::optional<std::uint64_t> CheckpointKeys::StepOfManifest(std::string_view key) const {
  std::string prefix = StepsPrefix();
  if (!key.starts_with(prefix) || !key.ends_with(kManifestSuffix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  if (key.size() < kManifestSuffix.size()) return std::nullopt;
  key.remove_suffix(kManifestSuffix.size());
  return ParseStep(key);
}

std::optional<CheckpointKeys::FileKey> CheckpointKeys::ParseFileKey(std::string_view key) const {
  std::string prefix = StepsPrefix();
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  std::size_t first = key.find('/');
  std::size_t second = first == key.npos ? first : key.find('/', first + 1);
  if (second == key.npos) return std::nullopt;
  auto step = ParseStep(key.substr(0, first));
  std::string_view attempt = key.substr(first + 1, second - first - 1);
  if (!step || !IsAttempt(attempt)) return std::nullopt;
  return FileKey{*step, attempt};
}

std::string CheckpointKeys::NewHoldKey(std::uint64_t step) const {
  return fmt::format("{}{}{}", StepName(step), kHoldPart, NewAttempt());
}
std::string CheckpointKeys::NewRemovalKey(std::uint64_t step) const {
  return fmt::format("{}{}{}", StepName(step), kGoingPart, NewAttempt());
}

std::optional<CheckpointKeys::Mark> CheckpointKeys::ParseMark(std::string_view key) const {
  const std::string prefix = StepsPrefix();
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  const std::size_t dot = std::min(key.find('.'), key.size());
  const auto step = ParseStep(key.substr(0, dot));
  const std::string_view mark = key.substr(dot);
  if (!step) return std::nullopt;
  if (mark == ".pin") return Mark{*step, MarkKind::kPin};
  for (auto [part, kind] : {std::pair(kHoldPart, MarkKind::kHold), std::pair(kGoingPart, MarkKind::kRemoval)})
    if (mark.starts_with(part) && IsAttempt(mark.substr(part.size()))) return Mark{*step, kind};
  return std::nullopt;
}

std::string RankFile(std::string_view attempt, int rank) {
  return fmt::format("{}/rank-{:05}.safetensors", attempt, rank);
}
std::string NewAttempt() { return SecureHex(kAttemptDigits / 2); }
std::string NewFence() { return fmt::format("{{\"fence\":\"{}\"}}\n", SecureHex(16)); }

bool IsFence(std::string_view content) {
  constexpr std::string_view kBegin = "{\"fence\":\"", kEnd = "\"}\n";
  if (content.size() != kFenceBytes || !content.starts_with(kBegin) || !content.ends_with(kEnd)) return false;
  content.remove_prefix(kBegin.size());
  content.remove_suffix(kEnd.size());
  return content.find_first_not_of("0123456789abcdef") == content.npos;
}

}  // namespace millrace::checkpoint
