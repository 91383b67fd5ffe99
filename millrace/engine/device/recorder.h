// Work for a device that is recorded once and done many times; on a GPU, a CUDA graph. The host then starts one thing
// in place of hundreds, and the GPU does not wait for it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

namespace millrace::engine {

/// Work that was recorded. It reads and writes the same memory each time.
class RecordedWork {
 public:
  struct Form;  ///< what a device has of it
  explicit RecordedWork(std::unique_ptr<Form> form);
  RecordedWork(RecordedWork&& other) noexcept;
  ~RecordedWork();
  /// Gives the work to the device, on the current stream.
  void Replay();

 private:
  std::unique_ptr<Form> form_;
};

/// Records the work of one thread for one device. What it recorded shares memory for what is computed on the way, so
/// that one piece of work runs at a time. On a CPU, a recording is the function itself, which is called again. Not
/// thread-safe.
class Recorder {
 public:
  explicit Recorder(at::Device device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  /// Records what `work` gives the device, which does not do it yet. `work` leaves its results in tensors that were
  /// there before, and what it uses lives as long as the recording. It may not wait for the device, and must have run
  /// once before without being recorded: libraries prepare themselves then. Throws what `work` throws, and c10::Error
  /// if something cannot be recorded.
  RecordedWork Record(std::function<void()> work);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;  ///< null for a CPU
};

}  // namespace millrace::engine
