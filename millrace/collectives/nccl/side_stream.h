// Work for a device beside what it computes, and what waits for it.
#pragma once

#include <memory>

#include "millrace/base/result.h"

namespace millrace::collectives {

/// A point in the work of a stream. Thread-safe.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  /// Whether the device has come to it. Errors: those of the device, which may come late.
  virtual Result<bool> IsPassed() const = 0;
  /// What the calling thread gives the device from now on waits for the point. The thread itself does not.
  virtual Status HoldCurrent() const = 0;
};

/// A queue of work that a device does in order, beside its other streams.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual void* handle() = 0;  ///< cudaStream_t
  virtual Status WaitFor(const StreamPoint& point) = 0;
  virtual Result<std::shared_ptr<const StreamPoint>> Mark() = 0;
};

/// The streams of a device. Thread-safe.
class StreamDevice {
 public:
  virtual ~StreamDevice() = default;
  /// Makes it the device of the calling thread.
  virtual Status UseHere() = 0;
  virtual Result<std::unique_ptr<SideStream>> NewStream() = 0;
  /// Marks what the calling thread has given the device so far.
  virtual Result<std::shared_ptr<const StreamPoint>> MarkCurrent() = 0;
};

}  // namespace millrace::collectives
