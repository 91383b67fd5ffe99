#include "millrace/engine/device/device_reader.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "millrace/base/copy.h"
#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/errors.h"

namespace millrace::engine {
namespace {

/// The bytes of one copy: enough for the bus to run at full speed. A snapshot has such a buffer for each of its
/// threads.
constexpr std::size_t kPinnedBytes = 16 * kMiB;

}  // namespace

void DeviceReader::MarkWritten() {
  if (!device_.is_cpu()) written_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

Status DeviceReader::Read(MutableByteSpan to, ByteSpan from) {
  if (device_.is_cpu()) {
    CopyNonTemporal(to.data(), from);
    return {};
  }
  return CatchTorch("copying from the GPU", [&] {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
    written_.block(stream);
    auto* const all = const_cast<std::byte*>(from.data());  // from_blob takes no const memory
    if (at::from_blob(all, {static_cast<std::int64_t>(from.size())}, at::kByte).is_pinned()) {
      stream.synchronize();
      CopyNonTemporal(to.data(), from);
      return;
    }
    const c10::StreamGuard on_stream(stream);
    const auto most = static_cast<std::int64_t>(std::min(kPinnedBytes, from.size()));
    const at::Tensor pinned = EmptyOnHost({most}, at::kByte, device_);
    const auto* const read = static_cast<const std::byte*>(pinned.data_ptr());
    for (std::size_t done = 0; done < from.size(); done += kPinnedBytes) {
      const std::size_t count = std::min(kPinnedBytes, from.size() - done);
      const at::Tensor part = at::from_blob(all + done, {static_cast<std::int64_t>(count)},
                                            at::TensorOptions().dtype(at::kByte).device(device_));
      pinned.narrow(0, 0, part.numel()).copy_(part, /*non_blocking=*/true);
      stream.synchronize();
      CopyNonTemporal(to.data() + done, {read, count});
    }
  });
}

}  // namespace millrace::engine
