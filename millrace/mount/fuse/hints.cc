#include "millrace/mount/fuse/hints.h"

#include <cstddef>

#include "millrace/base/text.h"
#include "millrace/object/local/mount_hints.h"
#include "millrace/vfs/types/names.h"

namespace millrace::mount {

Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument) {
  using object::WillOpenRequest;
  constexpr std::size_t kNamesAt = offsetof(WillOpenRequest, names);
  if (argument.size() != sizeof(WillOpenRequest)) return Fail(Code::kInvalidArgument, "hints of another size");
  const auto bytes = LoadLittle<std::uint32_t>(argument.data());
  if (bytes > argument.size() - kNamesAt) return Fail(Code::kInvalidArgument, "hints longer than their argument");
  std::string_view text = AsText(argument.subspan(kNamesAt, bytes));
  if (text.empty()) return std::vector<std::string>();
  if (text.back() != '\0') return Fail(Code::kInvalidArgument, "the last hint has no end");
  text.remove_suffix(1);
  std::vector<std::string> names;
  for (std::string_view name : Split(text, '\0')) {
    for (std::string_view component : Split(name, '/')) {
      if (!vfs::IsShowable(component)) return Fail(Code::kInvalidArgument, "\"{}\" is no relative path", name);
    }
    names.emplace_back(name);
  }
  return names;
}

}  // namespace millrace::mount
