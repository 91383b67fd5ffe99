#include "millrace/engine/device/host_copy.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "millrace/engine/device/host_memory.h"

namespace millrace::engine {
namespace {

c10::Stream CurrentStream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

/// Lets the stream wait for all that the caller's stream was given so far.
void AwaitCaller(c10::Stream stream) {
  c10::Event reached(stream.device_type());
  reached.record(CurrentStream(stream.device()));
  reached.block(stream);
}

}  // namespace

HostCopy::HostCopy(const at::Tensor& tensor, c10::Stream copies)
    : copies_(copies),
      host_(EmptyOnHost(tensor.sizes(), tensor.scalar_type(), tensor.device())),
      fetched_(copies.device_type()) {
  AwaitCaller(copies_);
  const c10::StreamGuard on_copies(copies_);
  host_.copy_(tensor, /*non_blocking=*/true);
  tensor.record_stream(copies_);
}

void HostCopy::Fetch() {
  if (there_.defined()) return;
  // The memory is the caller's stream's, which frees it.
  there_ = at::empty(host_.sizes(), at::TensorOptions().dtype(host_.scalar_type()).device(copies_.device()));
  there_.record_stream(copies_);
  AwaitCaller(copies_);
  const c10::StreamGuard on_copies(copies_);
  there_.copy_(host_, /*non_blocking=*/true);
  fetched_.record(copies_);
}

at::Tensor HostCopy::TakeTensor() {
  Fetch();
  fetched_.block(CurrentStream(copies_.device()));
  host_.reset();
  return std::exchange(there_, at::Tensor());
}

}  // namespace millrace::engine
