#include "millrace/base/files/confine.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace {

Status CheckConfined(std::string_view name, std::string_view root, std::string_view record, NameSegments segments) {
  constexpr std::size_t kQuoted = 128;  // bytes of the name in a message: enough to find it, short enough for a line
  auto refuse = [&](std::string_view why) {
    return Fail(Code::kCorrupt, "{}: the name \"{}\" is refused: {}", record,
                IsValidUtf8(name) ? name.substr(0, kQuoted) : "…", why);
  };
  if (!name.starts_with(root) || name.size() == root.size()) {
    return refuse(root.empty() ? "it is empty" : fmt::format("it is not below {}", root));
  }
  if (name.size() > kMaxConfinedBytes) return refuse(fmt::format("it has more than {} bytes", kMaxConfinedBytes));
  if (!IsValidUtf8(name) || name.find('\0') != std::string_view::npos) return refuse("it is not UTF-8, or has a NUL");
  if (segments == NameSegments::kAny) return {};
  std::string_view rest = name.substr(root.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const auto is_plain = [](std::string_view segment) { return !segment.empty() && segment != "." && segment != ".."; };
  if (!std::ranges::all_of(Split(rest, '/'), is_plain)) return refuse("a segment of it is empty, \".\" or \"..\"");
  return {};
}

}  // namespace millrace
