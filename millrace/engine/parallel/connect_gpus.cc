#include "millrace/engine/parallel/connect_gpus.h"

#include <utility>

#include "millrace/collectives/nccl/nccl_group.h"
#include "millrace/engine/parallel/staged.h"

#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "millrace/engine/errors.h"
#endif

namespace millrace::engine {

using collectives::SideStream;
using collectives::StreamDevice;
using collectives::StreamPoint;

#ifdef MILLRACE_CUDA
namespace {

class GpuPoint final : public StreamPoint {
 public:
  explicit GpuPoint(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) { event_.record(stream); }
  // A GPU that has failed says so to everyone who asks it.
  Result<bool> IsPassed() const override {
    return CatchTorch("an exchange of GPUs", [&] { return event_.query(); });
  }
  Status HoldCurrent() const override {
    return CatchTorch("an exchange of GPUs", [&] { event_.block(c10::cuda::getCurrentCUDAStream(device_)); });
  }
  void Hold(const c10::cuda::CUDAStream& stream) const { event_.block(stream); }

 private:
  const c10::DeviceIndex device_;
  mutable at::cuda::CUDAEvent event_;  // its functions change nothing once it is recorded
};

Result<std::shared_ptr<const StreamPoint>> MarkOn(const c10::cuda::CUDAStream& stream) {
  return CatchTorch("an exchange of GPUs",
                    [&]() -> std::shared_ptr<const StreamPoint> { return std::make_shared<GpuPoint>(stream); });
}

class GpuStream final : public SideStream {
 public:
  explicit GpuStream(c10::DeviceIndex device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)) {}
  void* handle() override { return stream_.stream(); }
  Status WaitFor(const StreamPoint& point) override {
    return CatchTorch("an exchange of GPUs", [&] { static_cast<const GpuPoint&>(point).Hold(stream_); });
  }
  Result<std::shared_ptr<const StreamPoint>> RecordPoint() override { return MarkOn(stream_); }

 private:
  const c10::cuda::CUDAStream stream_;
};

class GpuStreams final : public StreamDevice {
 public:
  explicit GpuStreams(at::Device device) : device_(device.index()) {}
  Status UseHere() override {
    return CatchTorch("an exchange of GPUs", [&] { c10::cuda::set_device(device_); });
  }
  Result<std::unique_ptr<SideStream>> NewStream() override {
    return CatchTorch("an exchange of GPUs",
                      [&]() -> std::unique_ptr<SideStream> { return std::make_unique<GpuStream>(device_); });
  }
  Result<std::shared_ptr<const StreamPoint>> MarkCurrent() override {
    return MarkOn(c10::cuda::getCurrentCUDAStream(device_));
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

Result<GpuGroup> ConnectGpus(std::unique_ptr<Collective> inner, at::Device device, bool shares_gpu, Duration timeout) {
  if (inner->size() == 1) return GpuGroup{std::move(inner), ""};
  const auto library = collectives::LoadNccl();
  std::string why;
  if (shares_gpu) {
    why = "ranks share GPUs";
  } else if (!library) {
    why = library.error().ToString();
  }
  const at::Tensor unable = at::full({1}, why.empty() ? 0 : 1, at::kInt);
  MR_TRY(inner->AllReduce(unable, Reduction::kMax));
  if (unable.item<int>() != 0) {
    if (why.empty()) why = "another rank cannot use NCCL";
    return GpuGroup{StageThroughHost(std::move(inner), device), std::move(why)};
  }
  auto group = MR_TRY(collectives::MakeNcclGroup(
      std::move(inner), {.api = *library, .device = MakeStreamDevice(device), .timeout = timeout}));
  return GpuGroup{std::move(group), ""};
}

}  // namespace millrace::engine
