#include "millrace/base/process/work_share.h"

#include <charconv>
#include <optional>

namespace millrace {
namespace {

constexpr std::uint32_t kMaxShares = 1 << 20;

std::optional<std::uint32_t> WholeNumber(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Result<WorkShare> WorkShare::Parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto index = WholeNumber(text.substr(0, slash));
  const auto count = slash == text.npos ? std::nullopt : WholeNumber(text.substr(slash + 1));
  if (!index || !count || *count == 0 || *count > kMaxShares || *index >= *count) {
    return Fail(Code::kInvalidArgument, "{} should be a share, such as 0/4, 1/4, 2/4 or 3/4", text);
  }
  return WorkShare{.index = *index, .count = *count};
}

}  // namespace millrace
