// Counts the bytes of tensors, for tests of what is kept.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace millrace::engine {

/// Counts, while it lives, the CPU memory that tensors of this thread allocate and free.
class MemoryMeter {
 public:
  MemoryMeter() : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  /// Returns the bytes that were allocated since the beginning and not freed.
  std::int64_t bytes() const { return count_->bytes; }
  /// Returns the largest value that bytes() has had.
  std::int64_t peak() const { return count_->peak; }

 private:
#if TORCH_VERSION_MAJOR < 2
  using Total = int64_t;
#else
  using Total = size_t;
#endif
  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, Total, Total, c10::Device) override {
      bytes += size;
      peak = std::max(peak, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t bytes = 0, peak = 0;
  };
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard guard_;
};

}  // namespace millrace::engine
