#include "millrace/serve/client/event_stream.h"

#include <utility>

namespace millrace::serve {

Result<std::optional<std::string>> EventStream::Next() {
  while (true) {
    const std::size_t end = unread_.find_first_of("\r\n", read_);
    // A "\r" at the end may be half of "\r\n".
    if (end == std::string::npos || (unread_[end] == '\r' && end + 1 == unread_.size())) break;
    const std::string_view line = std::string_view(unread_).substr(read_, end - read_);
    read_ = end + (unread_[end] == '\r' && unread_[end + 1] == '\n' ? 2 : 1);
    if (line.empty()) {
      if (!std::exchange(has_data_, false)) continue;
      return std::exchange(data_, {});
    }
    if (!line.starts_with("data:")) continue;
    std::string_view value = line.substr(5);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (std::exchange(has_data_, true)) data_ += '\n';
    data_ += value;
    if (data_.size() > kMaxEventBytes) break;
  }
  unread_.erase(0, std::exchange(read_, 0));
  if (unread_.size() + data_.size() > kMaxEventBytes) {
    return Fail(Code::kCorrupt, "the server sent an event of more than {} bytes", kMaxEventBytes);
  }
  return std::optional<std::string>();
}

}  // namespace millrace::serve
