#include "millrace/engine/parallel/connect_gpus.h"

#include <utility>

#include "millrace/collectives/nccl/nccl_group.h"
#include "millrace/engine/parallel/gpu_streams.h"
#include "millrace/engine/parallel/staged.h"

namespace millrace::engine {

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
