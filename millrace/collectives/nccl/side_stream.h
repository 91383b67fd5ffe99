// The interface of a device's streams: work that runs beside the computation, and points in a stream that other work
// waits for.
#pragma once

#include <memory>

#include "millrace/base/result.h"

namespace millrace::collectives {

/// A point in the work of a stream. Thread-safe.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  /// Returns whether the device has passed the point. Errors: those of the device, which may be reported late.
  virtual Result<bool> IsPassed() const = 0;
  /// Makes later work of the calling thread on the device wait for the point. The thread itself does not wait.
  virtual Status HoldCurrent() const = 0;
};

/// A queue of work that a device does in order, beside its other streams.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual void* handle() = 0;  ///< cudaStream_t
  virtual Status WaitFor(const StreamPoint& point) = 0;
  virtual Result<std::shared_ptr<const StreamPoint>> RecordPoint() = 0;
};

/// The streams of a device. Thread-safe.
class StreamDevice {
 public:
  virtual ~StreamDevice() = default;
  /// Selects this device for the calling thread.
  virtual Status UseHere() = 0;
  virtual Result<std::unique_ptr<SideStream>> NewStream() = 0;
  /// Returns a point after all work that the calling thread has given the device so far.
  virtual Result<std::shared_ptr<const StreamPoint>> MarkCurrent() = 0;
};

}  // namespace millrace::collectives
