#include "millrace/collectives/nccl/side_stream.h"

#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace millrace::engine {

#ifdef MILLRACE_CUDA
namespace {

class GpuPoint final : public StreamPoint {
 public:
  explicit GpuPoint(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) { event_.record(stream); }
  bool IsPassed() const override { return event_.query(); }
  void HoldCurrent() const override { event_.block(c10::cuda::getCurrentCUDAStream(device_)); }
  void Hold(const c10::cuda::CUDAStream& stream) const { event_.block(stream); }

 private:
  const c10::DeviceIndex device_;
  mutable at::cuda::CUDAEvent event_;  // its functions change nothing once it is recorded
};

class GpuStream final : public SideStream {
 public:
  explicit GpuStream(c10::DeviceIndex device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)) {}
  void* handle() override { return stream_.stream(); }
  void WaitFor(const StreamPoint& point) override { static_cast<const GpuPoint&>(point).Hold(stream_); }
  std::shared_ptr<const StreamPoint> Mark() override { return std::make_shared<GpuPoint>(stream_); }

 private:
  const c10::cuda::CUDAStream stream_;
};

class GpuStreams final : public StreamDevice {
 public:
  explicit GpuStreams(at::Device device) : device_(device.index()) {}
  void UseHere() override { c10::cuda::set_device(device_); }
  std::unique_ptr<SideStream> NewStream() override { return std::make_unique<GpuStream>(device_); }
  std::shared_ptr<const StreamPoint> MarkCurrent() override {
    return std::make_shared<GpuPoint>(c10::cuda::getCurrentCUDAStream(device_));
  }

 private:
  const c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<StreamDevice> MakeStreamDevice(at::Device device) { return std::make_shared<GpuStreams>(device); }
#else
std::shared_ptr<StreamDevice> MakeStreamDevice(at::Device device) {
  TORCH_CHECK(false, "this program was built without CUDA: no streams of ", device);
}
#endif

}  // namespace millrace::engine
