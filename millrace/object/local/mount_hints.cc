#include "millrace/object/local/mount_hints.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace millrace::object {

const unsigned long kWillOpenRequest = _IOWR('M', 2, WillOpenRequest);

Result<std::size_t> WillOpen(int directory, std::span<const std::string> names) {
  std::size_t taken = 0;
  auto request = std::make_unique<WillOpenRequest>();
  while (taken < names.size()) {
    *request = {};
    std::uint32_t count = 0;
    for (const std::string& name : names.subspan(taken)) {
      if (request->bytes + name.size() + 1 > sizeof request->names) break;
      std::ranges::copy(name, request->names + request->bytes);  // the zero byte is there
      request->bytes += static_cast<std::uint32_t>(name.size() + 1);
      ++count;
    }
    if (::ioctl(directory, kWillOpenRequest, request.get()) != 0) {
      return Fail(errno == ENOTTY ? Code::kUnsupported : Code::kInvalidArgument, "the file system takes no hints");
    }
    taken += request->taken;
    if (count == 0 || request->taken < count) break;
  }
  return taken;
}

}  // namespace millrace::object
