// A tensor of a GPU that waits on the host until it is needed again.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace millrace::engine {

/// Keeps a tensor of a GPU in pinned memory of the host, and brings it back. Both copies are made on a stream of their
/// own, beside what the GPU computes; no call waits for the GPU. "The caller's stream" is the current one of the thread
/// that calls. One thread at a time. Throws c10::Error if there is not enough memory.
class HostCopy {
 public:
  /// Takes what the tensor has when the caller's stream gets here. Nothing may write to it later; it may be freed at
  /// once. `copies`: a stream of the same GPU, which borrows its memory until the copy is made.
  HostCopy(const at::Tensor& tensor, c10::Stream copies);
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  /// Begins to bring it back, behind what the caller's stream was given so far. Again: does nothing.
  void Fetch();
  /// Returns the tensor, dense. The caller's stream waits for it. At most once.
  at::Tensor TakeTensor();

 private:
  const c10::Stream copies_;
  at::Tensor host_, there_;
  c10::Event fetched_;
};

}  // namespace millrace::engine
