// Reads the memory of a device beside what the device computes.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// Copies from the memory of a device to memory of the process, on streams of its own. So the copies of a snapshot run
/// beside the next passes. Pinned buffers of bounded size lie between. Memory of the host that kernels write (pinned)
/// is read when they have done so.
class DeviceReader {
 public:
  explicit DeviceReader(at::Device device) : device_(device), written_(device.type()) {}

  /// From now on, Read() returns what memory has when the work is done that this thread has given the device so far.
  /// One thread at a time, while no Read() runs.
  void MarkWritten();
  /// Copies from an address of the device, or of pinned memory, and returns when the bytes are there. Nothing may write
  /// to them meanwhile. Thread-safe. REQUIRES: both have the same size.
  Status Read(MutableByteSpan to, ByteSpan from);

 private:
  const at::Device device_;
  c10::Event written_;
};

}  // namespace millrace::engine
