#include "millrace/mount/check.h"

#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#include "millrace/base/text.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/mount/status/control.h"

namespace millrace::mount {

Status CheckMount(const std::string& given, Duration timeout, CheckedParts parts) {
  // In a thread of its own, because a daemon that hangs keeps its caller in the kernel.
  auto answer = std::make_shared<std::promise<Status>>();
  auto answered = answer->get_future();
  std::thread([answer, given, parts] {
    auto check = [&]() -> Status {
      const std::string path = MR_TRY(ResolveMountPoint(given));
      auto mounted = MR_TRY(FindMount(path));
      if (!mounted) return Fail(Code::kNotFound, "nothing is mounted on {}", path);
      MR_TRY(QueryDaemon(path));
      if (parts == CheckedParts::kDaemon) return {};
      std::error_code error;
      if (std::filesystem::directory_iterator listing(path, error); error) {
        return Fail(Code::kUnavailable, "{} cannot be listed: {}", path, error.message());
      }
      return {};
    };
    answer->set_value(check());
  }).detach();
  if (answered.wait_for(timeout) != std::future_status::ready) {
    return Fail(Code::kDeadlineExceeded, "the mount on {} has not answered for {}", given, FormatDuration(timeout));
  }
  return answered.get();
}

}  // namespace millrace::mount
