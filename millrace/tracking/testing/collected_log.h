// A log whose lines a test reads.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"

namespace millrace::tracking {

/// Thread-safe.
class CollectedLog {
 public:
  Logger logger() const { return Logger(lines_, LogLevel::kInfo); }
  /// Returns all lines, each with a newline.
  std::string text() const {
    MutexLock lock(lines_->mutex);
    return lines_->text;
  }
  /// Returns how many times `part` is in the log.
  int Count(std::string_view part) const {
    const std::string all = text();
    int count = 0;
    for (std::size_t at = all.find(part); at != all.npos; at = all.find(part, at + part.size())) ++count;
    return count;
  }

 private:
  struct Lines final : LogSink {
    void Write(std::string_view line) override {
      MutexLock lock(mutex);
      text += std::string(line) + "\n";
    }
    mutable Mutex mutex;
    std::string text MR_GUARDED_BY(mutex);
  };
  std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
};

}  // namespace millrace::tracking
