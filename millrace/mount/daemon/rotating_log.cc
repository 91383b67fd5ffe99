#include "millrace/mount/daemon/rotating_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/sync.h"

namespace millrace::mount {
namespace {

class RotatingLog final : public LogSink {
 public:
  RotatingLog(std::string path, std::uint64_t limit) : path_(std::move(path)), limit_(limit) {}

  void Write(std::string_view line) override {
    std::string text(line);
    text += '\n';
    MutexLock lock(mutex_);
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    struct stat written{}, named{};
    if (::fstat(STDERR_FILENO, &written) != 0 || static_cast<std::uint64_t>(written.st_size) <= limit_) return;
    if (::stat(path_.c_str(), &named) != 0 || named.st_dev != written.st_dev || named.st_ino != written.st_ino) return;
    Rotate();
  }

 private:
  void Rotate() MR_REQUIRES(mutex_) {
    if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return;
    const auto next = OpenFile(path_, O_WRONLY | O_CREAT | O_APPEND, 0640);
    if (!next) return;
    ::dup2(next->get(), STDOUT_FILENO);
    ::dup2(next->get(), STDERR_FILENO);
  }

  const std::string path_;
  const std::uint64_t limit_;
  Mutex mutex_;
};

}  // namespace

std::shared_ptr<LogSink> MakeRotatingLog(std::string path, std::uint64_t limit) {
  return std::make_shared<RotatingLog>(std::move(path), limit);
}

}  // namespace millrace::mount
